"""Reward models: those that Burnish trained, which may see, and sequence classifiers of transformers with one label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from math import prod
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

from burnish.language.model.chat import apply_template
from burnish.language.model.reward_head import about_image, is_reward_model
from burnish.registry import register
from burnish.rewards.base import Reward, Score
from burnish.rewards.networks.inputs import tokenizer_of
from burnish.rewards.networks.language import HeadOptions, sees
from burnish.rewards.networks.loading import frozen
from burnish.rewards.text.base import LanguageReward, Response
from burnish.types.media import Fit, Media
from burnish.utils.errors import UserError
from burnish.utils.weights import load_network

if TYPE_CHECKING:
    import numpy as np

    from burnish.types.prompt import Prompt

TOTAL: dict[str, Callable[[list[float]], float]] = {
    "min": min, "mean": mean, "last": itemgetter(-1), "product": prod, "each": sum,
}  # fmt: skip


@register("language reward", "reward_model")
class RewardModel(HeadOptions, LanguageReward):
    """What a reward model makes of the conversation with the response."""

    path: str
    """Directory, or org/name on the Hugging Face hub: a reward model that burnish export wrote, or one of transformers
    with AutoModelForSequenceClassification weights and a tokenizer. Without a chat template, the latter reads prompt
    and response as a pair of texts."""
    media: Literal["refuse", "leave_out"] = "refuse"
    """Prompts with images, videos or sounds that the model can't read: refuse them, or leave_out the media. A reward
    model of Burnish that sees reads them, unless they are left out."""
    steps: Literal["min", "mean", "last", "product", "each"] = "min"
    """How the values of steps become one, where the model judges every step. each gives a step its value where it ends,
    and their sum is the reward: PPO and REINFORCE take it token by token, GRPO with algorithm.advantage=group_steps."""

    @property
    def judges_steps(self) -> bool | None:  # type: ignore[override]
        return self.steps == "each"

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        if not self._is_ours:
            if self.heads is not None or self.steps != "min":
                raise UserError(
                    f"path of reward reward_model is {self.path}, a classifier with one label, which has no heads and "
                    "judges no steps; leave heads and steps out"
                )
            return
        about = self._about()
        if about.question:
            raise UserError(
                f"path of reward reward_model is {self.path}, which judges images that were drawn for a prompt, and "
                "no responses; it is a reward of generators"
            )
        if self.steps != "min" and not about.separator:
            raise UserError(
                f"steps of reward reward_model is {self.steps}, but {self.path} judges whole responses; remove it"
            )

    def unfit(self, prompt: Prompt) -> str:
        unread = prompt.media and self.media == "refuse" and not (self._is_ours and sees(self.folder()))
        return "the model can't read its images; set media=leave_out to score the text alone" if unread else ""

    @property
    def _is_ours(self) -> bool:
        return is_reward_model(self.folder())

    def load(self) -> Any:
        if self._is_ours:
            return super().load()
        return _load(self.folder(), self.dtype, self.resting)

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Score]:
        if not self._is_ours:
            return self._by_classifier(responses, prompts)
        separator, texts = self._about().separator, [response.text for response in responses]
        ends = [step_ends(text, separator) if separator else None for text in texts]
        scores = self._by_heads(prompts, texts, ends, media=self.media != "leave_out")
        return [
            Score(None, values) if isinstance(values, str) else self._score(values, own)
            for values, own in zip(scores, ends, strict=True)
        ]

    def _score(self, values: list[float], ends: Sequence[int] | None) -> Score:
        if ends is None:
            return Score(values[0])
        if not values:
            return Score(None, "it has no step to judge")
        steps = tuple(zip(ends, values, strict=True)) if self.steps == "each" else ()
        note = ", ".join(f"{value:.2f}" for value in values)
        return Score(float(TOTAL[self.steps](values)), note, steps=steps)

    def _by_classifier(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Score]:
        """By a classifier of transformers, which reads texts."""
        network, tokenizer = self.load()
        rows = [_tokenized(tokenizer, r.text, p) for r, p in zip(responses, prompts, strict=True)]
        lengths = [len(row["input_ids"]) for row in rows]
        values = self.by_length(
            network, lengths, self.max_length, lambda batch: _logits(network, [rows[i] for i in batch])
        )
        return [Score(None, value) if isinstance(value, str) else Score(value) for value in values]


@register("flow reward", "reward_model")
class ImageRewardModel(HeadOptions, Reward):
    """What a reward model that was trained on images for prompts (algorithm.question) makes of an image."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        if not is_reward_model(self.folder()):
            raise UserError(
                f"path of reward {self.name} is {self.path!r}, which has no heads that Burnish trained; train a model "
                "that sees with algorithm=bradley_terry and algorithm.question on pairs of images, and export it"
            )
        if not self._about().question or not sees(self.folder()):
            raise UserError(
                f"path of reward {self.name} is {self.path!r}, which was trained to judge responses, and no images; "
                "train one with algorithm.question"
            )

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Score]:
        about = self._about()
        fit = Fit(min_pixels=about.min_pixels, max_pixels=about.max_pixels)
        questions = []
        for image, prompt in zip(images, prompts, strict=True):
            shown = tuple(replace(media, fit=fit) for media in (*prompt.images, Media.array(image)))
            questions.append(about_image(about.question, prompt.text, shown))
        scores = self._by_heads(questions, [""] * len(images), [None] * len(images), media=True)
        return [Score(None, row) if isinstance(row, str) else Score(row[0]) for row in scores]


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
    from torch.nn.utils.rnn import pad_sequence

    config = network.config.get_text_config()
    used = {token for row in rows for token in row["input_ids"]}
    # The network finds the end of a row by its padding token. If it has none, use a token that is in no row: the usual
    # choice, the end-of-text token, would make it read one token too early.
    known = config.pad_token_id
    filler = known if known is not None else next(i for i in range(config.vocab_size) if i not in used)
    columns = {name: [torch.tensor(row[name]) for row in rows] for name in rows[0]}
    columns["attention_mask"] = [torch.ones(len(row["input_ids"]), dtype=torch.long) for row in rows]
    padded = {
        name: pad_sequence(column, batch_first=True, padding_value=filler if name == "input_ids" else 0)
        for name, column in columns.items()
    }
    config.pad_token_id = filler
    try:
        logits = network(**{name: value.to(network.device) for name, value in padded.items()}).logits
    finally:
        config.pad_token_id = known
    return logits[:, 0].float().tolist()  # type: ignore[no-any-return]


@cache
def _load(folder: Path, dtype: str, device: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForSequenceClassification

    network = load_network(
        AutoModelForSequenceClassification, folder, dtype=getattr(torch, dtype), trust_remote_code=False
    )
    if network.config.num_labels != 1:
        raise UserError(f"{folder} has {network.config.num_labels} labels; a reward model must have one")
    return frozen(network, folder, device), tokenizer_of(folder)


def step_ends(text: str, separator: str) -> list[int]:
    """Characters at which the steps of a response end, separators included; empty steps are none."""
    *closed, rest = text.split(separator)
    pieces = [*(piece + separator for piece in closed), rest]
    return [end for piece, end in zip(pieces, accumulate(map(len, pieces)), strict=True) if piece.strip()]
