"""DGPO: direct group preference optimisation (Luo et al. 2025, arXiv:2510.08425)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from burnish.algorithms.base import Metrics
from burnish.algorithms.flow.base import Needs, Roles
from burnish.algorithms.flow.forward_process import WithOldPolicy, bounded_advantages, summed
from burnish.options import Positive, SomeGuidance
from burnish.registry import register

if TYPE_CHECKING:
    from burnish.batches.samples import ForwardTerms, JudgedSamples
    from burnish.types.rollout import Loss, Scored


@register("flow algorithm", "dgpo")
class DGPO(WithOldPolicy):
    """The good samples of a group are preferred to the bad ones, each by the size of its advantage."""

    beta: Positive = 100.0
    """Strength of the pull to the baseline in the implicit reward."""
    baseline: Literal["old", "reference"] = "reference"
    """Whose matching error the policy's is compared with: the reference's, or the old policy's, which moves and wants a
    larger beta."""
    reference_guidance: SomeGuidance | None = None
    """Guidance scale of the reference, as baseline and in the KL, so that a policy that samples without guidance learns
    from what is sampled with it; null takes that of the policy."""
    clip: Positive | None = 0.01
    """A sample whose ratio exp(old error - error) has moved this far to where it should go gets no more gradient;
    read from the second optimizer step of an update on, or with an averaged old policy. null never clips."""
    clip_kl: bool = False
    """A sample that clip holds gets no gradient of the KL, either."""
    shared_noise: bool = True
    """The samples of a group get the same noise, so that only they differ."""

    @model_validator(mode="after")
    def _reference_options_are_read(self) -> Self:
        if self.reference_guidance is not None and not self.reads_reference:
            raise ValueError("reference_guidance is never read when baseline is old and kl_coef is 0; leave it out")
        if self.clip_kl and (self.clip is None or self.kl_coef == 0):
            raise ValueError("clip_kl is never read when clip is null or kl_coef is 0; leave it out")
        return self

    @property
    def reads_reference(self) -> bool:
        return self.baseline == "reference" or self.kl_coef > 0

    def needs(self) -> Needs:
        return self.needs_of(reference=self.reads_reference, atom="group")

    def credit(self, annotated: Scored) -> tuple[JudgedSamples, Metrics]:
        from burnish.batches.samples import groups_of, judge

        advantage, metrics = bounded_advantages(self, annotated)
        members, noise = groups_of(annotated), self.shared_noise
        return judge(annotated, advantage, self.levels(), members=members, shared_noise=noise), metrics

    def loss(self, part: ForwardTerms, roles: Roles) -> Loss:
        import torch

        from burnish.losses.kl import squared_distance
        from burnish.losses.matching import matching_error
        from burnish.losses.preference import group_preference, hold_clipped

        reference = part.target  # where neither the preference nor the KL reads it
        if self.reads_reference:
            reference = self.reference_velocity(part, roles, self.reference_guidance)
        velocity, old = self.velocities(part, roles)
        base = reference if self.baseline == "reference" else old
        error, before, given = (matching_error(one, part.target, share=part.share) for one in (velocity, old, base))
        values = {"actor/matching_error": error, "actor/old_deviate": squared_distance(velocity, old, part.share)}
        held = torch.zeros_like(error, dtype=torch.bool)
        if self.clip is not None:
            error, held = hold_clipped(error, before, part.value, clip=self.clip)
            values["actor/pg_clipfrac"] = held.float()
        loss, by_group = group_preference(error, given, part.value, part.atom, beta=self.beta)
        values |= by_group | {"actor/policy_loss": loss}
        total = loss.sum()
        if self.kl_coef > 0:
            distance = squared_distance(velocity, reference, part.share)
            values["actor/ref_kl_loss"] = distance
            if self.clip_kl:
                distance = torch.where(held, distance.detach(), distance)
            _, label, count = part.atom.unique(return_inverse=True, return_counts=True)
            total = total + self.kl_coef * (distance / count[label]).sum()  # a group is one term: its average counts
        return summed(total, values)

    def size(self, batch: JudgedSamples) -> int:
        return batch.time.numel()
