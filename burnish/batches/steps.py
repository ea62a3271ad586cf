"""Recorded denoising steps with their advantages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from burnish.advantages.selection import select_best_worst
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
    """Samples to learn from, with the advantage of each of their steps."""

    trace: Denoising
    advantage: Tensor  # [B, K]
    weight: Tensor  # [B, K] of a term in the loss; it is not in the count that the loss is divided by
    trained: Tensor  # [B, K] bool: the others are no terms at all
    old: Tensor  # [B, K]
    old_mean: Tensor  # [B, K, ...]
    reference_mean: Tensor  # [B, K, ...]
    recomputed: bool = shared(default=False)  # old is the policy that learns, before its first step

    def costs(self) -> list[int]:
        """Steps that are trained of each sample."""
        return [int(steps) for steps in self.trained.sum(1).tolist()]

    def micro_batches(self, size: int, *, by_step: bool, whole_samples: bool) -> Iterator[StepTerms]:
        """Its trained steps in forward passes of ``size`` at most.

        Args:
            size: rows of the network.
            by_step: all of one are the same recorded step.
            whole_samples: all trained steps of a sample are in the same one, however many they are.
        """
        if whole_samples:
            yield from self._of_whole_samples(size)
            return
        terms = self.terms()
        if not by_step:
            yield from terms.split(size)
            return
        for slot in range(self.old.shape[1]):
            yield from terms.select([term for term, own in enumerate(terms.slot) if own == slot]).split(size)

    def _of_whole_samples(self, size: int) -> Iterator[StepTerms]:
        rows: list[int] = []
        taken = 0
        for row, count in enumerate(self.trained.sum(1).tolist()):
            if not count:
                continue
            if rows and taken + count > size:
                yield replace(self.select(rows).terms(), whole_samples=True)
                rows, taken = [], 0
            rows.append(row)
            taken += count
        if rows:
            yield replace(self.select(rows).terms(), whole_samples=True)

    def terms(self) -> StepTerms:
        """One term per trained step of a sample: [M], the steps of a sample next to each other."""
        schedule = to_device(self.trace.schedule[:-1], self.trace.time.device)
        count, slots = self.old.shape
        every = StepTerms(
            steps=self.trace.steps(),
            index=(self.trace.time[..., None] - schedule).abs().argmin(-1).flatten().tolist(),
            row=[row for row in range(count) for _ in range(slots)],
            slot=list(range(slots)) * count,
            advantage=self.advantage.flatten(),
            weight=self.weight.flatten(),
            old=self.old.flatten(),
            old_mean=self.old_mean.flatten(0, 1),
            reference_mean=self.reference_mean.flatten(0, 1),
            recomputed=self.recomputed,
        )
        return every if self.trained.all() else every.select(self.trained.flatten().nonzero().flatten())


@dataclass(kw_only=True)
class StepTerms(Batch):
    """Terms of the loss: one row of a forward each."""

    steps: Steps
    index: list[int]  # [M] which denoising step of the schedule
    row: list[int]  # [M] which sample of its batch
    slot: list[int]  # [M] which of the sample's recorded steps
    advantage: Tensor  # [M]
    weight: Tensor  # [M]
    old: Tensor  # [M]
    old_mean: Tensor  # [M, ...]
    reference_mean: Tensor  # [M, ...]
    recomputed: bool = shared(default=False)  # old is the policy that learns, before its first step
    whole_samples: bool = shared(default=False)  # all trained steps of every sample are here

    def by_sample(self, value: Tensor) -> Tensor:
        """Values of terms [M] as [B, K], 0 where there is no term; a term is a sample unless samples are complete."""
        if not self.whole_samples:
            return value[:, None]
        row, slot = self._place(value.device)
        return value.new_zeros(self._shape).index_put((row, slot), value)

    def by_term(self, value: Tensor) -> Tensor:
        """The reverse: [B, K] to [M]."""
        return value[self._place(value.device)] if self.whole_samples else value[:, 0]

    def mask(self, device: torch.device) -> Tensor:
        """Where terms are in ``by_sample``: [B, K] bool."""
        return self.by_sample(torch.ones(len(self), dtype=torch.bool, device=device))

    @property
    def _shape(self) -> tuple[int, int]:
        return max(self.row, default=-1) + 1, max(self.slot, default=-1) + 1

    def _place(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return to_device(torch.tensor(self.row), device), to_device(torch.tensor(self.slot), device)

    def metrics_by_step(self, values: dict[str, Tensor]) -> dict[str, Any]:
        """Ratio and KL by denoising step, as (sum, count) under ``NAME/step_K``, of values per term [M]."""
        metrics: dict[str, Any] = {}
        names = ("actor/ratio_mean", "actor/ratio_square", "actor/ppo_kl", "actor/kl_loss")
        chosen = {name: values[name].detach() for name in names if name in values}
        for number in sorted(set(self.index)):
            rows = torch.tensor([row for row, step in enumerate(self.index) if step == number])
            for name, value in chosen.items():
                here = to_device(rows, value.device)
                metrics[f"{name}/step_{number}"] = (value.index_select(0, here).sum(), len(rows))
        return metrics


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


def best_worst(scored: Scored, keep: int) -> Tensor:
    """The best and the worst samples of each prompt, ``keep`` of them: [B, 1] bool."""
    scores = scored.scores
    rows = select_best_worst(scores.reward, scored.group, scores.missing, keep)
    return torch.zeros(len(scored), 1, dtype=torch.bool).index_fill(0, rows, True)
