"""Prompts that something can be learned from: groups of samples whose rewards differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from burnish.rl.advantages import group_statistics
from burnish.types.execution import Execution, joined
from burnish.types.rollout import Failure, Rollouts

R = TypeVar("R", bound=Rollouts)


def varied(rollouts: Rollouts) -> Tensor:
    """Rows of the groups that have different rewards: [M], rising. Equality is exact; missing ones don't count."""
    scores = rollouts.scores
    groups = group_statistics(scores.reward.cpu(), rollouts.group.cpu(), scores.missing.cpu())
    return (~groups.constant)[groups.label].nonzero().flatten()


def fill(draw: Callable[[], R], wanted: int, most: int) -> R:
    """Draw batches until ``wanted`` groups with different rewards are together, but no more than ``most`` batches.

    Args:
        draw: the next batch, with at least one group; its group ids start from 0.
        wanted: groups; more than these are left out, the last ones first.
        most: batches.

    Returns:
        The groups in the order of drawing, with new ids; fewer, or none, where the batches did not give them. Its
        metrics tell how many batches were drawn, what was dropped, and the mean reward of all that was sampled.
    """
    parts: list[R] = []
    drawn, groups, dropped, spare, rewards = 0, 0, 0, 0, []
    failures: list[Failure] = []
    ran: list[Mapping[str, Execution]] = []
    while drawn < most and groups < wanted:
        batch = draw()
        drawn += 1
        rewards.append(batch.scores.reward[~batch.scores.missing])
        failures += batch.failures
        ran.append(batch.execution)
        kept = batch.select(varied(batch))
        ids, label = torch.unique(kept.group, return_inverse=True)
        dropped += len(torch.unique(batch.group)) - len(ids)
        spare = max(groups + len(ids) - wanted, 0)
        rows = (label < len(ids) - spare).nonzero().flatten()
        if len(rows):
            parts.append(replace(kept.select(rows), group=label[rows] + groups))
        groups += len(ids) - spare
    everything = torch.cat(rewards)
    metrics = {
        "train/num_gen_batches": float(drawn),
        "train/kept_groups": float(groups),
        "train/dropped_groups": float(dropped),
        "train/spare_groups": float(spare),
    }
    if len(everything):
        metrics["train/sampled_reward/mean"] = float(everything.mean())
    whole = type(batch).cat(parts) if parts else batch.select([])
    return replace(whole, metrics=batch.metrics | metrics, failures=failures, execution=joined(ran))
