"""AWM: advantage-weighted matching (Xue et al. 2025, arXiv:2509.25050)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from burnish.algorithms.base import Metrics, Needs, Roles
from burnish.algorithms.flow.forward_process import WithOldPolicy, summed
from burnish.options import NonNegative, Positive
from burnish.registry import options, register

if TYPE_CHECKING:
    from burnish.batches import ForwardTerms, JudgedSamples
    from burnish.types.rollout import Loss, Scored


@register("flow algorithm", "awm")
@options
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
    """Weight of the squared distance to the old policy's velocity."""

    @model_validator(mode="after")
    def _weighting_is_read(self) -> Self:
        if self.weighting != "ghuber" and self.ghuber_power != 0.25:
            raise ValueError(f"ghuber_power is never read when weighting is {self.weighting}; leave it out")
        if self.clip > 1:
            raise ValueError(f"clip is {self.clip}; ratios below 1 - clip can't exist then, so it must be <= 1")
        return self

    def needs(self) -> Needs:
        return Needs(
            sampler="old", old=True, reference=self.kl_coef > 0,
            schedule_times=self.schedule_times, schedule_range=self.time_range,
        )  # fmt: skip

    def credit(self, annotated: Scored) -> tuple[JudgedSamples, Metrics]:
        from burnish.batches import judge

        advantage, metrics = self.clipped_advantages(annotated)
        return judge(annotated, advantage, self.levels()), metrics

    def loss(self, part: ForwardTerms, roles: Roles) -> Loss:
        from burnish.losses import advantage_weighted_matching, matching_error, squared_distance

        velocity, old = self.velocities(part, roles)
        loss, values = advantage_weighted_matching(
            velocity, old, part.target, part.time, part.value,
            clip_low=self.clip, clip_high=self.clip_high or self.clip,
            weighting=self.weighting, power=self.ghuber_power,
        )  # fmt: skip
        ratio = values.pop("ratio")
        values |= {"actor/ratio_mean": ratio, "actor/ratio_square": ratio.square(), "actor/policy_loss": loss}
        values["actor/matching_error"] = matching_error(velocity.detach(), part.target)
        distance = squared_distance(velocity, old)
        values["actor/old_deviate"] = distance
        if self.old_kl_coef > 0:
            loss = loss + self.old_kl_coef * distance
        if self.kl_coef > 0:
            distance = squared_distance(velocity, self.reference_velocity(part, roles))
            loss = loss + self.kl_coef * distance
            values["actor/ref_kl_loss"] = distance
        return summed(loss, values | {"actor/total_loss": loss})
