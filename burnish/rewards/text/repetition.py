"""How much a response repeats itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.text.base import LanguageReward, Response

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


@register("language reward", "repetition")
class Repetition(LanguageReward):
    """From 0 (no repetition) to almost 1. Weight 0 logs it, a negative weight penalizes it."""

    higher_is_better: ClassVar[bool] = False

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [Verdict(repetition(response.text)) for response in responses]


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
