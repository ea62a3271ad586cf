"""CPGD: clipped policy gradient with a penalty for drifting (Liu et al. 2025, arXiv:2505.12504)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from burnish.algorithms.language.grouped import Grouped
from burnish.algorithms.language.ratio import ClipRange
from burnish.options import NonNegative, Positive
from burnish.registry import options, register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import TokenRewards


@register("language algorithm", "cpgd")
@options
class CPGD(Grouped, ClipRange):
    """Policy gradient in log-probs, which no ratio multiplies, so that ratios far from 1 can't blow it up."""

    weighting: Literal["std", "clip_filter", "equal"] = "std"
    """How prompts weigh against each other: over the std of their rewards; by the share of prompts whose rewards
    differ, so that the others don't thin them out; or alike."""
    weighting_clip: Positive = 3.0
    """Largest weight of clip_filter."""
    drift_coef: NonNegative = 0.0
    """Weight of the penalty for leaving the old policy."""
    drift_clip: Positive = 0.2
    """Bound of ratio - 1 in the gradient of that penalty."""

    @model_validator(mode="after")
    def _options_are_read(self) -> Self:
        if self.clip == 1:
            raise ValueError("clip is 1; log-ratios are clipped at log(1 - clip), so it must be < 1")
        if self.weighting != "clip_filter" and self.weighting_clip != 3.0:
            raise ValueError(
                f"weighting_clip is read by clip_filter alone, and weighting is {self.weighting}; leave it out"
            )
        if self.drift_coef == 0 and self.drift_clip != 0.2:
            raise ValueError("drift_clip is never read when drift_coef is 0; set drift_coef, or leave drift_clip out")
        return self

    def response_advantages(self, rewards: TokenRewards) -> Tensor:
        from burnish.advantages import cpgd_advantages

        return cpgd_advantages(
            rewards.outcome, rewards.group, rewards.missing, self.weighting, clip=self.weighting_clip
        )

    def surrogate(
        self, logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.losses.tokens import cpgd

        return cpgd(logprob, old, advantage, mask, drift=self.drift_coef, drift_clip=self.drift_clip, **self._range)
