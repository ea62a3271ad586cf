"""Requests to rollout workers: how they are numbered and split, and how their results are joined."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from burnish.types.batch import Batch, shared
from burnish.types.rollout import Prompt, Rollouts
from burnish.types.statistics import joined

R = TypeVar("R", bound=Rollouts)


@dataclass(kw_only=True)
class RolloutRequest(Batch):
    """Which samples to generate, with which weights. The rows of a group stand next to each other."""

    prompts: list[Prompt]  # [B]
    group: Tensor  # [B] long: its number in the batch, from 0
    sample: Tensor  # [B] long: number of the sample among those of its prompt
    groups: int = shared()  # in the batch, of which this may be a chunk
    update: int = shared()  # the policy update that it is for; every seed depends on it
    version: int = shared()  # policy updates behind the weights that are to sample
    ahead: list[Prompt] = shared(default_factory=list)  # prompts of the request after it, which may be read by then


class RolloutWorker(Protocol):
    """Samples and scores. What it gives for a group does not depend on other groups."""

    def generate(self, request: RolloutRequest) -> Any:
        """The scored rollouts, in the order of the request's rows."""
        ...


def numbered(
    prompts: Sequence[Prompt], n: int, seen: Counter[str] | None = None
) -> tuple[list[Prompt], Tensor, Tensor]:
    """``n`` rows for each prompt: their prompts, groups and sample numbers.

    A prompt that occurs again gets further samples, not the same ones.

    Args:
        prompts: each makes a group.
        n: samples of each.
        seen: samples that a prompt has already, by its uid; those made here are added.

    Returns:
        Prompts [B], group [B] long, sample [B] long.
    """
    seen = Counter() if seen is None else seen
    rows: list[Prompt] = []
    group: list[int] = []
    sample: list[int] = []
    for g, prompt in enumerate(prompts):
        first = seen[prompt.uid]
        seen[prompt.uid] += n
        rows += [prompt] * n
        group += [g] * n
        sample += range(first, first + n)
    return rows, torch.tensor(group), torch.tensor(sample)


def group_starts(group: Tensor) -> list[int]:
    """The row at which each group of [B] numbers begins, in order, and at last B: rows of a group are neighbours."""
    return [0, *torch.unique_consecutive(group, return_counts=True)[1].cumsum(0).tolist()]


def split(request: RolloutRequest, parts: int) -> list[RolloutRequest]:
    """Chunks of full groups, in order and as even as they get; fewer of them where there are fewer groups."""
    assert parts > 0, f"nothing can be split into {parts} parts"
    starts = group_starts(request.group)
    groups = len(starts) - 1
    count = min(parts, groups)
    bounds = [starts[groups * part // count] for part in range(count + 1)]
    after = [len(request.ahead) * part // count for part in range(count + 1)]  # whoever has a chunk gets the next one
    return [
        replace(request.select(slice(*rows)), ahead=request.ahead[slice(*next_ones)])
        for rows, next_ones in zip(pairwise(bounds), pairwise(after), strict=True)
    ]


def join(parts: Sequence[R]) -> R:
    """Rollouts of chunks, in order, as those of the request that was split, with its metrics up to rounding."""
    if len(parts) == 1:
        return parts[0]
    # what has lost all of its rows may have been sampled in other steps than the rest
    there = [part for part in parts if len(part)] or list(parts[:1])
    metrics, counts = _joined(parts)
    failures = [failure for part in parts for failure in part.failures]
    ran = joined(part.execution for part in parts)
    glimpses = [glimpse for part in parts for glimpse in part.glimpses]
    quotes = [quote for part in parts for quote in part.quotes]
    return replace(
        type(parts[0]).cat(there), metrics=metrics, counts=counts, failures=failures, execution=ran, glimpses=glimpses,
        quotes=quotes,
    )  # fmt: skip


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
