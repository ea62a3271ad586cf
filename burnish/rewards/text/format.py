"""The form of a response: whether it has the one that is asked for, and how much it repeats itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from burnish.registry import ReadIf, register
from burnish.rewards.base import Score
from burnish.rewards.text.base import LanguageReward, Response
from burnish.types.prompt import Prompt

# as in LightRFT's examples; atomic groups, so that a text is read once, however often it repeats a tag
FORMS = {
    "answer": "(?>.*?<answer>).*</answer>",
    "think_answer": "(?>.*?<think>)(?>.*?</think>)(?>.*?<answer>).*</answer>",
    "think_then_boxed": r"(?>((?!\\boxed\{).)*?<think>)(?>((?!\\boxed\{).)*?</think>)(?>.*?\\boxed\{)(?>.*?\}).*",
    "think_then_answer": "(?>((?!<answer>).)*?<think>)(?>((?!<answer>).)*?</think>)(?>.*?<answer>)(?>.*?</answer>).*",
}


@register("language reward", "format")
class Format(LanguageReward):
    r"""1 if the response has the form, else 0. The prompt is not part of it.

    ``answer``: <answer>...</answer> with nothing after it (LightRFT's r1_aqa). ``think_answer``: the same with
    <think>...</think> before it. ``think_then_boxed``: the first <think>...</think> ends before the first \boxed{...}
    (geo3k). ``think_then_answer``: it ends before the first <answer>...</answer> (grm).
    """

    form: Literal["answer", "think_answer", "think_then_boxed", "think_then_answer", "pattern"] = "answer"
    """The form; pattern uses your regular expression."""
    pattern: Annotated[str | None, ReadIf("form", "pattern")] = None
    """Regular expression that the full response must match; a dot also matches line ends."""

    @model_validator(mode="after")
    def _pattern_is_one(self) -> Self:
        try:
            _ = self._whole
        except (re.error, TypeError) as error:
            why = "" if self.pattern is None else f": {error}"
            raise ValueError(
                f"pattern is {self.pattern!r}, which is not a regular expression{why}; give one, or choose another form"
            ) from None
        return self

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Score]:
        return [Score(float(self._whole.fullmatch(response.text) is not None)) for response in responses]

    @property
    def endless(self) -> str:  # type: ignore[override]
        return "pattern" if self.form == "pattern" else ""

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        return re.compile(FORMS.get(self.form, self.pattern), re.DOTALL)  # type: ignore[arg-type]


@register("language reward", "repetition")
class Repetition(LanguageReward):
    """From 0 (no repetition) to almost 1. Weight 0 logs it, a negative weight penalizes it."""

    higher_is_better: ClassVar[bool] = False

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Score]:
        return [Score(repetition(response.text)) for response in responses]


def repetition(text: str) -> float:
    """Mean longest common prefix of neighbours in the suffix array, as in LightRFT's trajectory dumps.

    2 x (sum of the longest common prefixes) / (n (n + 1)), for n characters.
    """
    count = len(text)
    if count < 2:
        return 0.0
    order, rank = _suffixes(text)
    shared = total = 0
    for start in range(count):  # Kasai: the shared prefix shrinks by at most one per start
        if rank[start] == 0:
            shared = 0
            continue
        other = order[rank[start] - 1]
        while start + shared < count and other + shared < count and text[start + shared] == text[other + shared]:
            shared += 1
        total += shared
        shared = max(shared - 1, 0)
    return 2 * total / (count * (count + 1))


def _suffixes(text: str) -> tuple[list[int], list[int]]:
    """Starts of all suffixes in alphabetical order, and the rank of each, by prefix doubling."""
    import numpy as np

    count, width = len(text), 1
    rank = np.unique(np.array([ord(letter) for letter in text]), return_inverse=True)[1].astype(np.int64)
    while True:
        behind = np.full(count, -1, dtype=np.int64)
        behind[: max(count - width, 0)] = rank[width:]
        order = np.lexsort((behind, rank))
        changed = (np.diff(rank[order]) != 0) | (np.diff(behind[order]) != 0)
        rank[order] = np.concatenate([[0], np.cumsum(changed)])
        if rank[order[-1]] == count - 1:
            return order.tolist(), rank.tolist()
        width *= 2
