"""Reward models: those that Burnish trained, which may see, and sequence classifiers of transformers with one label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from burnish.language.model.chat import apply_template
from burnish.language.model.reward_head import is_reward_model
from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.text.base import LanguageReward, Response
from burnish.rewards.text.loaded_options import HeadOptions
from burnish.rewards.text.reading_model import awake, sees
from burnish.types.prompt import kinds_of
from burnish.utils.errors import UserError
from burnish.utils.weights import load_network, refuse_non_finite

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


@register("language reward", "reward_model")
class RewardModel(HeadOptions, LanguageReward):
    """What a reward model makes of the conversation with the response."""

    has_weights: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    path: str
    """Directory, or org/name on the Hugging Face hub: a reward model that burnish export wrote, or one of transformers
    with AutoModelForSequenceClassification weights and a tokenizer. Without a chat template, the latter reads prompt
    and response as a pair of texts."""
    media: Literal["refuse", "leave_out"] = "refuse"
    """Prompts with pictures, videos or sounds that the model can't read: refuse them, or leave_out the media. A reward
    model of Burnish that sees reads them, unless they are left out."""
    steps: Literal["min", "mean", "last", "product", "each"] = "min"
    """How the values of steps become one, where the model judges every step. each gives a step its value where it ends,
    and their sum is the reward: PPO and REINFORCE take it token by token, GRPO with algorithm.advantage=group_steps."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        folder = self._checked("the folder of a sequence classifier of transformers with one label")
        self._check_heads(folder)
        if is_reward_model(folder) and sees(folder):
            return
        for prompt in kinds_of(prompts):
            if self.media == "refuse" and self.judges(prompt) and prompt.media:
                raise UserError(
                    f"reward reward_model can't read the pictures of prompt {prompt.text[:60]!r}; set media=leave_out "
                    "to score the text alone"
                )

    def _check_heads(self, folder: Path) -> None:
        """Refuse options about heads and steps that the model does not have."""
        if not is_reward_model(folder):
            if self.heads is not None or self.steps != "min":
                raise UserError(
                    f"path of reward reward_model is {self.path}, a classifier with one label, which has no heads and "
                    "judges no steps; leave heads and steps out"
                )
            return
        about = self._about(folder)
        if about.question:
            raise UserError(
                f"path of reward reward_model is {self.path}, which judges pictures that were drawn for a prompt, and "
                "no responses; it is a reward of generators"
            )
        if self.steps != "min" and not about.separator:
            raise UserError(
                f"steps of reward reward_model is {self.steps}, but {self.path} judges whole responses; leave it out"
            )

    def prepare(self) -> None:
        folder = self._folder()
        if is_reward_model(folder):
            self._reader(folder)
        else:
            _load(folder, self.dtype, self.device, self.put_away)

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        folder = self._folder()
        return self._judged(folder, responses, prompts) if is_reward_model(folder) else self._read(responses, prompts)

    def _judged(self, folder: Path, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        """By heads that Burnish trained, which read what the prompts show."""
        reader = self._reader(folder)
        about, model = reader.about, reader.model
        encoded = reader.encode(prompts, media=self.media != "leave_out")
        lengths = [encoded.table.lengths[row] for row in encoded.index.tolist()]
        longest = min(self.max_length, model.max_positions)
        texts = [response.text for response in responses]
        total = [n + len(model.response_ids(text)) for n, text in zip(lengths, texts, strict=True)]
        ends = [step_ends(text, about.separator) if about.separator else None for text in texts]
        verdicts = [
            Verdict(None, (), f"{n} tokens exceed max_length={longest}" if n > longest else "it has no step to judge")
            for n in total
        ]
        rows = [i for i, n in enumerate(total) if n <= longest and ends[i] != []]
        rows.sort(key=lambda i: (int(encoded.index[i]), total[i]))  # responses to one prompt share its forward pass
        for start in range(0, len(rows), self.batch_size):
            some = rows[start : start + self.batch_size]
            found = reader.scores(encoded.select(some), [texts[i] for i in some], [ends[i] for i in some])
            for i, by_step in zip(some, found, strict=True):
                values = [self._sum(about, one) for one in by_step]
                verdicts[i] = self._verdict(values, ends[i])
        return verdicts

    def _verdict(self, values: list[float], ends: Sequence[int] | None) -> Verdict:
        if ends is None:
            return Verdict(values[0])
        note = ", ".join(f"{value:.2f}" for value in values)
        if self.steps == "each":
            return Verdict(sum(values), (), note, steps=tuple(zip(ends, values, strict=True)))
        total: dict[str, Callable[[list[float]], float]] = {
            "min": min, "mean": mean, "last": itemgetter(-1), "product": prod,
        }  # fmt: skip
        return Verdict(float(total[self.steps](values)), (), note)

    def _read(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        """By a classifier of transformers, which reads texts."""
        network, tokenizer = _load(self._folder(), self.dtype, self.device, self.put_away)
        ids = [_tokenized(tokenizer, r.text, p) for r, p in zip(responses, prompts, strict=True)]
        verdicts = [
            Verdict(None, (), f"{len(one['input_ids'])} tokens exceed max_length={self.max_length}") for one in ids
        ]
        short = [i for i, one in enumerate(ids) if len(one["input_ids"]) <= self.max_length]
        short.sort(key=lambda i: len(ids[i]["input_ids"]))  # batches of similar length need little padding
        with awake(network, self.device, self.put_away):
            for start in range(0, len(short), self.batch_size):
                rows = short[start : start + self.batch_size]
                for i, value in zip(rows, _logits(network, [ids[i] for i in rows]), strict=True):
                    verdicts[i] = Verdict(value)
        return verdicts


def _tokenized(tokenizer: Any, response: str, prompt: Prompt) -> dict[str, list[int]]:
    """Tokenizer output for a conversation that ends with the response."""
    if not tokenizer.chat_template:
        text = "\n".join(message.said for message in prompt.turns)
        return dict(tokenizer(text, response))
    chat = [{"role": message.role, "content": message.said} for message in prompt.turns]
    chat.append({"role": "assistant", "content": response})
    text = apply_template(Path(tokenizer.name_or_path), tokenizer, chat, prompt=False)
    return {"input_ids": tokenizer(text, add_special_tokens=False).input_ids}


def _logits(network: Any, rows: Sequence[dict[str, list[int]]]) -> list[float]:
    import torch

    config = network.config.get_text_config()
    longest = max(len(row["input_ids"]) for row in rows)
    used = {token for row in rows for token in row["input_ids"]}
    # The network finds the end of a row by its padding token. If it has none, use a token that is in no row: the usual
    # choice, the end-of-text token, would make it read one token too early.
    known = config.pad_token_id
    filler = known if known is not None else next(i for i in range(config.vocab_size) if i not in used)
    padded = {
        name: torch.tensor(
            [row[name] + [filler if name == "input_ids" else 0] * (longest - len(row[name])) for row in rows]
        )
        for name in rows[0]
    }
    padded["attention_mask"] = torch.tensor(
        [[i < len(row["input_ids"]) for i in range(longest)] for row in rows]
    ).long()
    config.pad_token_id = filler
    try:
        with torch.inference_mode():
            logits = network(**{name: value.to(network.device) for name, value in padded.items()}).logits
    finally:
        config.pad_token_id = known
    scores: list[float] = logits[:, 0].float().tolist()
    return scores


@cache
def _load(folder: Path, dtype: str, device: str, put_away: bool) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    try:
        network = load_network(
            AutoModelForSequenceClassification, folder, dtype=getattr(torch, dtype), trust_remote_code=False
        )
        refuse_non_finite(network, folder)
    except UserError as error:
        raise UserError(f"{folder} can't be loaded as a reward model: {error}") from None
    if network.config.num_labels != 1:
        raise UserError(f"{folder} has {network.config.num_labels} labels; a reward model must have one")
    return network.to("cpu" if put_away else device).eval(), tokenizer


def step_ends(text: str, separator: str) -> list[int]:
    """Characters at which the steps of a response end, separators included; empty steps are none."""
    ends, start = [], 0
    while start < len(text):
        found = text.find(separator, start)
        end = len(text) if found < 0 else found + len(separator)
        if text[start:end].strip():
            ends.append(end)
        start = end
    return ends
