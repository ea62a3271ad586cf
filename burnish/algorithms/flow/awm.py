"""AWM: advantage-weighted matching (Xue et al. 2025, arXiv:2509.25050)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from burnish.algorithms.base import Metrics, weighted
from burnish.algorithms.flow.base import Needs, Roles
from burnish.algorithms.flow.forward_process import WithOldPolicy, bounded_advantages, summed
from burnish.options import NonNegative, Positive
from burnish.registry import register

if TYPE_CHECKING:
    from burnish.batches.samples import ForwardTerms, JudgedSamples
    from burnish.types.rollout import Loss, Scored


@register("flow algorithm", "awm")
class AWM(WithOldPolicy):
    """Policy gradient with the matching error of a finished sample in place of its log-prob."""

    weighting: Literal["uniform", "t", "t2", "huber", "ghuber"] = "uniform"
    """How the matching error counts at noise level t: as it is, times t, times t squared, its root times t, or a power
    of it times t."""
    ghuber_power: Positive = 0.25
    """ghuber: that power."""
    clip: Positive = 1e-3
    """Clip range of the ratio exp(old error - error); read from the second optimizer step of an update on."""
    clip_high: Positive | None = None
    """Upper clip range if it is to differ from the lower one; null takes clip."""
    old_kl_coef: NonNegative = 0.0
    """Weight of the squared distance to the velocity of the old policy, or of the one that anchor names."""
    anchor: str = "old"
    """Who that distance is to: old, which the ratio refers to, or one of lagged."""

    advantage_max: Positive | None = None
    """Advantages are scaled so that those at advantage_clip have this size; null leaves them as they are."""

    @model_validator(mode="after")
    def _weighting_is_read(self) -> Self:
        if self.weighting != "ghuber" and self.ghuber_power != 0.25:
            raise ValueError(f"ghuber_power is never read when weighting is {self.weighting}; leave it out")
        if self.clip > 1:
            raise ValueError(f"clip is {self.clip}; ratios below 1 - clip can't exist then, so it must be <= 1")
        if self.old_kl_coef == 0 and self.anchor != "old":
            raise ValueError(f"anchor is {self.anchor}, but never read when old_kl_coef is 0; set it, or leave it out")
        return self

    @property
    def policies_read(self) -> dict[str, str]:
        return super().policies_read | {"anchor": self.anchor}

    def needs(self) -> Needs:
        return self.needs_of(reference=self.kl_coef > 0)

    def credit(self, annotated: Scored) -> tuple[JudgedSamples, Metrics]:
        from burnish.batches.samples import judge

        advantage, metrics = bounded_advantages(self, annotated)
        if self.advantage_max is not None:
            advantage = advantage * (self.advantage_max / self.advantage_clip)
        return judge(annotated, advantage, self.levels()), metrics

    def loss(self, part: ForwardTerms, roles: Roles) -> Loss:
        import torch

        from burnish.losses.kl import squared_distance
        from burnish.losses.matching import advantage_weighted_matching, matching_error

        velocity, old = self.velocities(part, roles)
        found = advantage_weighted_matching(
            velocity, old, part.target, part.time, part.value, share=part.share,
            clip=self.clip, clip_high=self.clip_high,
            weighting=self.weighting, power=self.ghuber_power,
        )  # fmt: skip
        loss, values = weighted(found, torch.ones_like(found.loss))
        values["actor/policy_loss"] = loss
        values["actor/matching_error"] = matching_error(velocity.detach(), part.target, share=part.share)
        distance = squared_distance(velocity, old, part.share)
        values["actor/old_deviate"] = distance
        if self.old_kl_coef > 0:
            if self.anchor != "old":
                anchor = self.lagged_velocity(self.anchor, part, roles, velocity)
                distance = squared_distance(velocity, anchor, part.share)
                values["actor/anchor_deviate"] = distance
            loss = loss + self.old_kl_coef * distance
        if self.kl_coef > 0:
            distance = squared_distance(velocity, self.reference_velocity(part, roles), part.share)
            loss = loss + self.kl_coef * distance
            values["actor/ref_kl_loss"] = distance
        return summed(loss, values | {"actor/total_loss": loss})
