"""Policy gradients that keep a policy undecided, by its few tokens whose log-prob and advantage vary together most.

The entropy of a policy falls by the covariance of log-prob and advantage, and a few tokens make up most of it (Cui et
al. 2025, arXiv:2505.22617): Clip-Cov learns nothing from some of them, KL-Cov holds them where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from burnish.algorithms.language.policy_gradient import Share, TokenPolicyGradient
from burnish.options import Finite, Positive
from burnish.registry import register
from burnish.rl.algorithm import Metrics

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import AnnotatedTokens


@register("language algorithm", "clip_cov")
class ClipCov(TokenPolicyGradient, advantage="group", surrogate="clip"):
    """GRPO that learns nothing from a random few of the tokens of high covariance."""

    cov_fraction: Share = 2e-4
    """Share of the tokens of an update that are left out, one at least."""
    cov_low: Finite = 1.0
    """Tokens may be left out whose covariance is above this,"""
    cov_high: Finite = 5.0
    """and below this."""

    @model_validator(mode="after")
    def _range_exists(self) -> Self:
        if self.cov_low >= self.cov_high:
            raise ValueError(f"cov_low is {self.cov_low:g} and cov_high is {self.cov_high:g}: nothing lies between")
        return self

    def _selected(self, annotated: AnnotatedTokens, trained: Tensor, advantage: Tensor) -> tuple[Tensor, Metrics]:
        import torch

        from burnish.losses.entropy import covariance
        from burnish.utils import random

        weight, metrics = super()._selected(annotated, trained, advantage)
        cov, scored = covariance(annotated.old, advantage, trained), annotated.scored
        candidates = trained & (cov > self.cov_low) & (cov < self.cov_high)
        rows = candidates.any(1).nonzero().flatten()
        left_out = torch.zeros_like(trained)
        if len(rows):
            keys = [(scored.seed, "clip_cov", scored.update, int(scored.group[i]), int(scored.sample[i])) for i in rows]
            draws = torch.full(trained.shape, torch.inf)
            draws[rows] = random.uniform(trained.shape[1], keys)
            draws = draws.masked_fill(~candidates, torch.inf)
            count = min(max(1, int(self.cov_fraction * int(trained.sum()))), int(candidates.sum()))
            left_out.view(-1)[draws.flatten().topk(count, largest=False).indices] = True
        metrics["actor/cov_fraction"] = float(left_out.sum() / trained.sum().clamp_min(1))
        return weight.masked_fill(left_out, 0.0), metrics


@register("language algorithm", "kl_cov")
class KLCov(TokenPolicyGradient, advantage="group", surrogate="ratio"):
    """GRPO without a clip, with a penalty for moving the log-prob of the tokens of highest covariance."""

    cov_fraction: Share = 2e-3
    """Share of the tokens of an update that are held; the paper takes 2e-3 for 7B and 2e-4 for 32B."""
    cov_coef: Positive = 1.0
    """Weight of |log pi - log pi_old| of each of them."""

    def _held(self, annotated: AnnotatedTokens, trained: Tensor, advantage: Tensor) -> Tensor:
        from burnish.losses.entropy import covariance, high_entropy_mask

        cov = covariance(annotated.old, advantage, trained)
        return self.cov_coef * high_entropy_mask(cov, trained, self.cov_fraction).float()
