"""Reads a question about pictures or a clip, and gives the states at the tokens of the reward.

The published models were trained with plain positions, one per token along all three axes, not with those of
Qwen2-VL's own forward pass. Attention is causal: what follows the last token of the reward is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.language.model.chat import apply_template, read_template, unused_character
from burnish.rewards.headed.pixels import Geometry, Patches
from burnish.utils.errors import UserError
from burnish.utils.reading import read_text

if TYPE_CHECKING:
    from torch import Tensor

PLACE = re.compile(r"\{prompt\}")


@dataclass(frozen=True)
class Question:
    """One row of a batch."""

    ids: list[int]
    ends: list[int]  # where the tokens of the reward are
    shown: Sequence[Patches]
    video: bool


class QuestionReader:
    """Tokens of a base model with those that the reward added."""

    def __init__(self, base: Path, tokens: Sequence[str], config: Any) -> None:
        """Args: ``tokens`` of the reward, in the order in which training added them."""
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(base, local_files_only=True, trust_remote_code=False)
        tokenizer.add_tokens(list(tokens), special_tokens=True)
        self.base, self.tokens, self.tokenizer = base, tuple(tokens), tokenizer
        self.marks: list[int] = tokenizer.convert_tokens_to_ids(list(tokens))
        rows = config.get_text_config().vocab_size
        if max(self.marks) >= rows:
            raise UserError(
                f"the checkpoint knows {rows} tokens, and {tokens[-1]} would be number {max(self.marks)}; give the "
                "base whose tokenizer it was trained with"
            )
        template = read_template(base, tokenizer, vision=True)
        if template is None:
            raise UserError(f"base is {base}, whose tokenizer has no chat template; give the instruct model")
        tokenizer.chat_template = template
        self.placeholders = {False: config.image_token_id, True: config.video_token_id}
        self.geometry = Geometry.of(base, config.vision_config)
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        self.control = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))

    def question(self, template: str, text: str, shown: Sequence[Patches], *, video: bool = False) -> Question:
        """A template with the prompt in its place, behind what is shown.

        Tokens that a prompt writes down stay text: they are split where its control tokens are.

        Raises:
            UserError: the chat template writes other placeholders than one for each thing that is shown.
        """
        mark = unused_character(template + text)
        cut = self.control.sub(lambda found: found[0][0] + mark + found[0][1:], text)
        filled = PLACE.sub(lambda _: cut, template)
        parts = [{"type": "video" if video else "image"} for _ in shown]
        chat = [{"role": "user", "content": [*parts, {"type": "text", "text": filled}]}]
        rendered = apply_template(self.base, self.tokenizer, chat, prompt=True)
        pieces = (self.tokenizer(piece, add_special_tokens=False).input_ids for piece in rendered.split(mark) if piece)
        ids = list(chain.from_iterable(pieces))
        placeholder = self.placeholders[video]
        if ids.count(placeholder) != len(shown):
            raise UserError(
                f"by the chat template of base a question has {ids.count(placeholder)} places for {len(shown)} "
                "pictures; give the instruct model that the reward was trained on"
            )
        counts = iter(one.tokens for one in shown)
        wide = list(chain.from_iterable([one] * next(counts) if one == placeholder else [one] for one in ids))
        ends = [wide.index(one) for one in self.marks]
        return Question(wide[: max(ends) + 1], ends, shown, video)

    def states(self, network: Any, questions: Sequence[Question]) -> Tensor:
        """The last hidden states [B, K, D] at the K tokens of the reward, float32."""
        import torch

        device = next(network.parameters()).device
        longest = max(len(one.ids) for one in questions)
        # causal: what fills a row up behind its last token of the reward changes nothing before it
        ids = torch.tensor([[*one.ids, *[self.marks[0]] * (longest - len(one.ids))] for one in questions])
        positions = torch.arange(longest).expand(3, len(questions), longest)
        kind = "_videos" if questions[0].video else ""
        grid = "video_grid_thw" if questions[0].video else "image_grid_thw"
        shown = [one for question in questions for one in question.shown]
        pixels = {
            f"pixel_values{kind}": torch.cat([one.rows for one in shown]).to(device),
            grid: torch.tensor([one.grid for one in shown], device=device),
        }
        out = network(input_ids=ids.to(device), position_ids=positions.to(device), use_cache=False, **pixels)
        ends = torch.tensor([one.ends for one in questions], device=device)
        rows = torch.arange(len(questions), device=device)[:, None]
        states: Tensor = out.last_hidden_state[rows, ends].float()
        return states


def checked_template(file: Path, tokens: Sequence[str], option: str) -> str:
    """The text of a question, exactly as the file has it: white space before the reward's tokens changes the score.

    Raises:
        UserError: it can't be read, or lacks the prompt or a token.
    """
    try:
        text = read_text(file)
    except UserError as error:
        raise UserError(f"{option} is {file}: {error}") from None
    for what in ("{prompt}", *tokens):
        if text.count(what) != 1:
            raise UserError(f"{option} is {file}, in which {what} stands {text.count(what)} times; it must stand once")
    if [*tokens] != sorted(tokens, key=text.index):
        raise UserError(f"{option} is {file}, whose tokens must come in the order {', '.join(tokens)}")
    return text
