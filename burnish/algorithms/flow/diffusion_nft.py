"""DiffusionNFT: online reinforcement learning on the forward process (Zheng et al. 2025, arXiv:2509.16117)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from burnish.algorithms.base import Metrics
from burnish.algorithms.flow.base import Needs, Roles
from burnish.algorithms.flow.forward_process import WithOldPolicy, bounded_advantages, summed
from burnish.options import NonNegative, Positive
from burnish.registry import register

if TYPE_CHECKING:
    from burnish.batches.samples import ForwardTerms, JudgedSamples
    from burnish.types.rollout import Loss, Scored


@register("flow algorithm", "diffusion_nft")
class DiffusionNFT(WithOldPolicy):
    """Contrast good and bad samples in the flow-matching loss; no log-probs, no stochastic sampling."""

    beta: Positive = 1.0
    """Distance of the implicit positive and negative policies from the old one; smaller pushes harder."""
    advantage_std: Literal["group", "global", "none"] = "global"
    """Divide advantages by the std of the group, of the whole batch, or not at all."""
    advantage_clip: Positive = 5.0
    """Advantages of this size are worth probability 0 and 1; smaller ones map linearly between."""
    advantage_mode: Literal["continuous", "positive_only", "negative_only", "binary", "one_only"] = "continuous"
    """Which part of the advantage counts."""
    adaptive_weighting: bool = True
    """Divide each squared error by its own mean absolute error, which evens out the noise levels."""
    adaptive_min: Positive = 1e-5
    """Smallest mean absolute error that is divided by (verl-omni's adaptive_weight_min)."""
    kl_coef: NonNegative = 1e-4
    """Weight of the squared distance to the reference's velocity; 0 needs no reference."""

    @model_validator(mode="after")
    def _adaptive_min_is_read(self) -> Self:
        if not self.adaptive_weighting and self.adaptive_min != 1e-5:
            raise ValueError("adaptive_min is never read when adaptive_weighting is false; leave it out")
        return self

    def needs(self) -> Needs:
        return self.needs_of(reference=self.kl_coef > 0)

    def credit(self, annotated: Scored) -> tuple[JudgedSamples, Metrics]:
        from burnish.advantages.groups import optimality
        from burnish.batches.samples import judge

        advantage, metrics = bounded_advantages(self, annotated)
        good = optimality(advantage, self.advantage_clip, self.advantage_mode)
        return judge(annotated, good, self.levels()), metrics

    def loss(self, part: ForwardTerms, roles: Roles) -> Loss:
        from burnish.losses.kl import squared_distance
        from burnish.losses.matching import negative_aware

        velocity, old = self.velocities(part, roles)
        loss, positive, negative = negative_aware(
            velocity, old, part.clean, part.noisy, part.time, part.value,
            beta=self.beta, share=part.share, adaptive=self.adaptive_weighting, floor=self.adaptive_min,
        )  # fmt: skip
        loss = loss * self.advantage_clip
        values = {
            "actor/policy_loss": loss,
            "actor/positive_loss": positive,
            "actor/negative_loss": negative,
            "actor/old_deviate": squared_distance(velocity.detach(), old, part.share),
            "actor/reward_prob_mean": part.value,
        }
        if self.kl_coef > 0:
            distance = squared_distance(velocity, self.reference_velocity(part, roles), part.share)
            loss = loss + self.kl_coef * distance
            values["actor/ref_kl_loss"] = distance
        return summed(loss, values | {"actor/total_loss": loss})
