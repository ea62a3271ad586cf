"""Recorded denoising steps with their credit."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from burnish.types.batch import Batch, shared, to_device
from burnish.types.rollout import Denoising, Scored, Steps
from burnish.utils import random


@dataclass(frozen=True)
class AnnotatedSteps:
    """Rollouts with what needed a forward pass."""

    scored: Scored
    old: Tensor  # [B, K] log-probs that ratios refer to
    learner: Tensor  # [B, K] log-probs under the policy that learns, before its first step; [B, 0] if unread
    old_mean: Tensor  # [B, K, ...] mean of each step under the policy that old belongs to; [B, K, 0, ...] if unread
    reference_mean: Tensor  # [B, K, ...] mean of each step under the reference; [B, K, 0, ...] if unread
    recomputed: bool  # old is the policy that learns, before its first step
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class StepBatch(Batch):
    """Samples to learn from, with the credit of each of their steps."""

    trace: Denoising
    advantage: Tensor  # [B, K]
    weight: Tensor  # [B, K] of a term in the loss; it is not in the count that the loss is divided by
    trained: Tensor  # [B, K] bool: the others are no terms at all
    old: Tensor  # [B, K]
    old_mean: Tensor  # [B, K, ...]
    reference_mean: Tensor  # [B, K, ...]
    recomputed: bool = shared(default=False)  # old is the policy that learns, before its first step

    def terms(self) -> StepTerms:
        """One term per trained step of a sample: [M], the steps of a sample next to each other."""
        schedule = to_device(self.trace.schedule[:-1], self.trace.time.device)
        whole = StepTerms(
            steps=self.trace.steps(),
            index=(self.trace.time[..., None] - schedule).abs().argmin(-1).flatten().tolist(),
            advantage=self.advantage.flatten(),
            weight=self.weight.flatten(),
            old=self.old.flatten(),
            old_mean=self.old_mean.flatten(0, 1),
            reference_mean=self.reference_mean.flatten(0, 1),
            recomputed=self.recomputed,
        )
        return whole if self.trained.all() else whole.select(self.trained.flatten().nonzero().flatten())

    def slots(self) -> Tensor:
        """Which of its sample's recorded steps each term is: [M] long."""
        return torch.arange(self.trained.shape[1]).expand_as(self.trained)[self.trained.cpu()]


@dataclass(kw_only=True)
class StepTerms(Batch):
    """Terms of the loss: one row of a forward each."""

    steps: Steps
    index: list[int]  # [M] which denoising step of the schedule
    advantage: Tensor  # [M]
    weight: Tensor  # [M]
    old: Tensor  # [M]
    old_mean: Tensor  # [M, ...]
    reference_mean: Tensor  # [M, ...]
    recomputed: bool = shared(default=False)


def taken_once(trace: Denoising, group: Tensor, present: Tensor) -> Tensor:
    """Of the samples of a prompt that took a step as one, only the first present one stands for it: [B, K] bool."""
    keep = torch.zeros_like(trace.node, dtype=torch.bool)
    rows, groups = present.nonzero().flatten().tolist(), group.tolist()
    for slot, nodes in enumerate(trace.node.T.tolist()):
        seen: set[tuple[int, int]] = set()
        for row in rows:
            key = (groups[row], nodes[row])
            keep[row, slot] = key not in seen
            seen.add(key)
    return keep


def subset(scored: Scored, fraction: float) -> Tensor:
    """A random part of each sample's recorded steps, drawn for that sample alone: [B, K] bool."""
    shape = scored.trace.time.shape
    kept = max(int(shape[1] * fraction + 1e-9), 1)
    chosen = torch.zeros(shape, dtype=torch.bool)
    for row, (prompt, sample) in enumerate(zip(scored.prompts, scored.sample.tolist(), strict=True)):
        order = random.permutation(shape[1], scored.seed, "timesteps", scored.update, prompt.uid, sample)
        chosen[row, order[:kept]] = True
    return chosen
