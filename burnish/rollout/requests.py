"""What is asked of whoever makes samples, whole or in parts, and how the parts become one batch again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from burnish.types.batch import Batch, shared
from burnish.types.rollout import Prompt, Rollouts

R = TypeVar("R", bound=Rollouts)


@dataclass(kw_only=True)
class RolloutRequest(Batch):
    """Which samples to make, with which weights. The rows of a group stand next to each other."""

    prompts: list[Prompt]  # [B]
    group: Tensor  # [B] long: its number in the whole batch, counted from 0
    sample: Tensor  # [B] long: number of the sample among those of its prompt
    groups: int = shared()  # in the whole batch, of which this may be a part
    update: int = shared()  # the policy update that it is for, part of every seed
    version: int = shared()  # policy updates behind the weights that are to sample


class RolloutWorker(Protocol):
    """Samples what is asked for and has it judged. What it gives for a group does not depend on other groups."""

    def make(self, asked: RolloutRequest) -> Any:
        """The finished rollouts, in the order of asking."""
        ...


def group_starts(group: Tensor) -> list[int]:
    """The row at which each group of [B] numbers begins, in order, and at last B: rows of a group are neighbours."""
    return [0, *torch.unique_consecutive(group, return_counts=True)[1].cumsum(0).tolist()]


def split(asked: RolloutRequest, parts: int) -> list[RolloutRequest]:
    """Parts of whole groups, in order and as even as they get; fewer of them where there are fewer groups."""
    assert parts > 0, f"nothing can be split into {parts} parts"
    starts = group_starts(asked.group)
    groups = len(starts) - 1
    count = min(parts, groups)
    bounds = [starts[groups * part // count] for part in range(count + 1)]
    return [asked.select(slice(start, end)) for start, end in pairwise(bounds)]


def join(parts: Sequence[R]) -> R:
    """Rollouts of parts, in the order of asking, as those of the whole, with its metrics up to rounding."""
    if len(parts) == 1:
        return parts[0]
    # what has lost all of its rows may have been sampled in other steps than the rest
    there = [part for part in parts if len(part)] or list(parts[:1])
    metrics, counts = _joined(parts)
    failures = [failure for part in parts for failure in part.failures]
    return replace(type(parts[0]).cat(there), metrics=metrics, counts=counts, failures=failures)


def _joined(parts: Sequence[Rollouts]) -> tuple[dict[str, float], dict[str, float]]:
    """Means by what they were taken over; of every other metric the largest."""
    metrics: dict[str, float] = {}
    counts: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part.metrics):
        having = [part for part in parts if name in part.metrics]
        if any(name not in part.counts for part in having):
            metrics[name] = max(part.metrics[name] for part in having)
            continue
        taken = [part for part in having if part.counts[name]]
        counts[name] = sum(part.counts[name] for part in taken)
        total = sum(part.metrics[name] * part.counts[name] for part in taken)
        metrics[name] = total / counts[name] if taken else math.nan
    return metrics, counts
