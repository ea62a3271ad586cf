"""What credit makes of scored rollouts: steps to learn from, or finished samples with a judgement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from burnish import random
from burnish.batch import Batch, Gathered, shared
from burnish.types import Conditioning, Denoising, Scored, Steps


@dataclass(frozen=True)
class AnnotatedSteps:
    """Rollouts with what needed a forward pass."""

    scored: Scored
    old: Tensor  # [B, K] log-probs that ratios refer to
    reference_mean: Tensor  # [B, K, ...] mean of each step under the reference; [B, K, 0, ...] where no KL is asked for
    metrics: dict[str, float]


@dataclass(kw_only=True)
class LearnedSteps(Batch):
    """Samples to learn from, with their credit."""

    trace: Denoising
    advantage: Tensor  # [B]
    old: Tensor  # [B, K]
    reference_mean: Tensor  # [B, K, ...]

    def terms(self) -> StepTerms:
        """One term per sample and step: [B * K], the steps of a sample next to each other."""
        return StepTerms(
            steps=self.trace.steps(),
            advantage=self.advantage.repeat_interleave(self.old.shape[1]),
            old=self.old.flatten(),
            reference_mean=self.reference_mean.flatten(0, 1),
        )


@dataclass(kw_only=True)
class StepTerms(Batch):
    """Terms of the loss: one row of a forward each."""

    steps: Steps
    advantage: Tensor  # [M]
    old: Tensor  # [M]
    reference_mean: Tensor  # [M, ...]


@dataclass(kw_only=True)
class JudgedSamples(Batch):
    """Finished samples, how good each is, and the noise levels it will be trained at (DiffusionNFT and its kin)."""

    conditioning: Gathered[Conditioning]
    unconditional: Gathered[Conditioning]
    clean: Tensor  # [B, ...]
    optimality: Tensor  # [B] in [0, 1]
    time: Tensor  # [B, J]
    uid: list[str]  # [B]
    sample: Tensor  # [B]
    seed: int = shared()
    update: int = shared()

    def terms(self, size: int) -> Iterator[ForwardTerms]:
        """One term per sample and noise level, at most ``size`` at once; the noise depends on the sample alone."""
        count, levels = self.time.shape
        for start in range(0, count * levels, size):
            flat = torch.arange(start, min(start + size, count * levels))
            row, level = flat // levels, flat % levels
            keys = [
                (self.seed, "forward", self.update, self.uid[r], int(self.sample[r]), k)
                for r, k in zip(row.tolist(), level.tolist(), strict=True)
            ]
            noise = random.normal(self.clean.shape[1:], keys).to(self.clean.device)
            clean = self.clean[row.to(self.clean.device)]
            time = self.time[row, level].to(self.clean.device)
            t = time.view(-1, *[1] * (clean.ndim - 1))
            yield ForwardTerms(
                conditioning=self.conditioning.select(row),
                unconditional=self.unconditional.select(row),
                clean=clean,
                noisy=(1 - t) * clean + t * noise,
                time=time,
                optimality=self.optimality[row.to(self.optimality.device)],
            )


@dataclass(kw_only=True)
class ForwardTerms(Batch):
    """Terms of the loss: one row of a forward each."""

    conditioning: Gathered[Conditioning]
    unconditional: Gathered[Conditioning]
    clean: Tensor  # [M, ...]
    noisy: Tensor  # [M, ...] x_t
    time: Tensor  # [M]
    optimality: Tensor  # [M]


def judge(scored: Scored, optimality: Tensor, *, times: int, kind: Literal["schedule", "uniform"]) -> JudgedSamples:
    """Join samples with their credit and draw the noise levels to train at.

    Args:
        scored: [B] rollouts.
        optimality: [B] in [0, 1].
        times: noise levels per sample, J; under ``schedule`` at most as many as there are denoising steps.
        kind: where the levels come from.
    """
    uid = [prompt.uid for prompt in scored.prompts]
    keys: list[tuple[random.Part, ...]] = [
        (scored.seed, "time", scored.update, u, s) for u, s in zip(uid, scored.sample.tolist(), strict=True)
    ]
    if kind == "schedule":
        levels = scored.trace.schedule[:-1]
        time = torch.stack([levels[random.permutation(len(levels), *row)[:times]] for row in keys])
    else:
        time = random.uniform(times, keys).clamp_min(1e-3)
    return JudgedSamples(
        conditioning=scored.trace.conditioning,
        unconditional=scored.trace.unconditional,
        clean=scored.trace.latents,
        optimality=optimality,
        time=time,
        uid=uid,
        sample=scored.sample,
        seed=scored.seed,
        update=scored.update,
    )
