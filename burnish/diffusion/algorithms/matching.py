"""Algorithms on the forward process: samples are noised again, and velocities matched by what they earned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from burnish.diffusion.algorithms.base import Lag
from burnish.diffusion.algorithms.forward_process import WithOldPolicy
from burnish.diffusion.algorithms.policy_gradient import summed
from burnish.options import SAMPLED, NonNegative, Positive, Rules, SomeGuidance
from burnish.registry import ReadIf, register
from burnish.rl.algorithm import weighted
from burnish.rl.objectives import Clip

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.diffusion.batches import ForwardTerms, JudgedSamples
    from burnish.diffusion.config import FlowConfig
    from burnish.diffusion.roles import FlowRoles
    from burnish.types.rollout import Loss


@register("flow algorithm", "awm")
class AWM(WithOldPolicy):
    """Policy gradient with the matching error of a finished sample in place of its log-prob."""

    weighting: Literal["uniform", "t", "t2", "huber", "ghuber"] = "uniform"
    """How the matching error counts at noise level t: as it is, times t, times t squared, its root times t, or a power
    of it times t."""
    ghuber_power: Annotated[Positive, ReadIf("weighting", "ghuber")] = 0.25
    """ghuber: that power."""
    clip: Clip = 1e-3
    """Clip range of the ratio exp(old error - error); read from the second optimizer step of an update on."""
    clip_high: Positive | None = None
    """Upper clip range if it is to differ from the lower one; null takes clip."""
    old_kl_coef: NonNegative = 0.0
    """Weight of the squared distance to the velocity of the old policy, or of the one that anchor names."""
    anchor: Annotated[str, ReadIf("old_kl_coef")] = "old"
    """Who that distance is to: old, which the ratio refers to, or one of lagged."""

    advantage_max: Positive | None = None
    """Advantages are scaled so that those at advantage_clip have this size; null leaves them as they are."""

    @property
    def policies_read(self) -> dict[str, str]:
        return super().policies_read | {"anchor": self.anchor}

    def value(self, advantage: Tensor) -> Tensor:
        return advantage if self.advantage_max is None else advantage * (self.advantage_max / self.advantage_clip)

    def stream_loss(self, part: ForwardTerms, roles: FlowRoles) -> Loss:
        import torch

        from burnish.diffusion.losses import advantage_weighted_matching, matching_error
        from burnish.rl.surrogates import squared_distance

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
                same = roles.is_policy(self.anchor)
                anchor = velocity.detach() if same else self.frozen(self.anchor, part, roles)
                distance = squared_distance(velocity, anchor, part.share)
                values["actor/anchor_deviate"] = distance
            loss = loss + self.old_kl_coef * distance
        return self.held(loss, values, velocity, part, roles, coef=self.kl_coef)


KL_FLOOR = 1e-4  # coefficient that kl_adaptive leaves to the worst samples


@register("flow algorithm", "crd")
class CRD(WithOldPolicy):
    """The policy's implicit reward is matched to the given one, both relative to their average within the group."""

    beta: Positive = 1.0
    """Factor of the implicit reward; the loss is divided by it."""
    matching: Literal["bce", "mse"] = "bce"
    """Cross-entropy of the two centred rewards, or their squared difference."""
    temperature: Positive | None = None
    """Centre twice, at the good and at the bad samples of a group, weighted by softmax(+-reward / temperature); null
    centres once, at the plain average."""
    baseline: Literal["old", "reference"] = "old"
    """Whose matching error the policy's is compared with: the old policy's, which moves, or the reference's."""
    sample_with: Annotated[str, SAMPLED] = "policy"
    """Who samples: policy, which is the one that learns, and keeps sampling apart from a slow baseline, whose ratio
    would collapse to 1; old; or one of lagged."""
    adaptive_weighting: bool = False
    """Divide each squared error by its own mean absolute error, which evens out the noise levels."""
    shared_noise: bool = True
    """The samples of a group get the same noise, so that only they differ."""
    kl_guidance: Annotated[SomeGuidance | None, ReadIf("kl_coef")] = None
    """Guidance scale of the reference in the KL, so that the policy stays near to what is sampled with guidance; null
    takes that of the policy."""
    kl_adaptive: Annotated[bool, ReadIf("kl_coef")] = False
    """Hold good samples to the reference by kl_coef and bad ones hardly: fast at first, careful later."""

    atom = "group"

    def contradictions(self, run: FlowConfig) -> Rules:
        return [
            *super().contradictions(run),
            (
                self.old != Lag() and not self.keeps_old,
                f"old is given, but baseline is reference and sample_with is {self.sample_with}: nothing reads an old "
                "policy; remove it",
            ),
        ]

    @property
    def keeps_old(self) -> bool:
        return self.baseline == "old" or self.sample_with == "old"

    def value(self, advantage: Tensor) -> Tensor:
        from burnish.rl.advantages import optimality

        return optimality(advantage, self.advantage_clip, "continuous")

    def stream_loss(self, part: ForwardTerms, roles: FlowRoles) -> Loss:
        from burnish.diffusion.losses import matching_error
        from burnish.rl.preference import centred_distillation
        from burnish.rl.surrogates import squared_distance

        def error(velocity: Tensor) -> Tensor:
            return matching_error(velocity, part.target, share=part.share, adaptive=self.adaptive_weighting)

        velocity, base = self.velocities(part, roles, self.baseline)
        implicit = error(base) - error(velocity)
        loss = centred_distillation(
            implicit, part.value, part.atom, beta=self.beta, temperature=self.temperature, kind=self.matching
        )
        loss = loss * (self.advantage_clip / self.beta)
        values = {
            "actor/policy_loss": loss,
            "actor/implicit_reward": implicit,
            "actor/reward_prob_mean": part.value,
            "actor/old_deviate": squared_distance(velocity, base, part.share),
        }
        coef: Tensor | float = self.kl_coef
        if self.kl_adaptive:
            floor = min(KL_FLOOR, self.kl_coef)
            coef = floor + part.value * (self.kl_coef - floor)
        return self.held(loss, values, velocity, part, roles, coef=coef, guidance=self.kl_guidance)


@register("flow algorithm", "dgpo")
class DGPO(WithOldPolicy):
    """The good samples of a group are preferred to the bad ones, each by the size of its advantage."""

    beta: Positive = 100.0
    """Strength of the pull to the baseline in the implicit reward."""
    baseline: Literal["old", "reference"] = "reference"
    """Whose matching error the policy's is compared with: the reference's, or the old policy's, which moves and wants a
    larger beta."""
    reference_guidance: Annotated[
        SomeGuidance | None,
        ReadIf("reads_reference", why="nothing reads the reference when baseline is old and kl_coef is 0"),
    ] = None
    """Guidance scale of the reference, as baseline and in the KL, so that a policy that samples without guidance learns
    from what is sampled with it; null takes that of the policy."""
    clip: Positive | None = 0.01
    """A sample whose ratio exp(old error - error) has moved this far to where it should go gets no more gradient;
    read from the second optimizer step of an update on, or with an averaged old policy. null never clips."""
    clip_kl: Annotated[bool, ReadIf("kl_coef"), ReadIf("clip")] = False
    """A sample that clip holds gets no gradient of the KL, either."""
    shared_noise: bool = True
    """The samples of a group get the same noise, so that only they differ."""

    atom = "group"

    def stream_loss(self, part: ForwardTerms, roles: FlowRoles) -> Loss:
        import torch

        from burnish.diffusion.losses import matching_error
        from burnish.rl.kl import gated_kl
        from burnish.rl.preference import group_preference, hold_clipped
        from burnish.rl.surrogates import squared_distance
        from burnish.types.batch import to_device

        reference = part.target  # where neither the preference nor the KL reads it
        if self.reads_reference:
            reference = self.frozen("reference", part, roles, self.reference_guidance)
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
            distance = gated_kl(distance, part.kl_factor)
            size = to_device((part.atom[:, None] == part.atom).sum(1), distance.device)
            total = total + self.kl_coef * (distance / size).sum()  # a group is one term: its average counts
        return summed(total, values)

    def size(self, batch: JudgedSamples) -> int:
        return batch.time.numel()


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
    adaptive_min: Annotated[Positive, ReadIf("adaptive_weighting")] = 1e-5
    """Smallest mean absolute error that is divided by (verl-omni's adaptive_weight_min)."""
    kl_coef: NonNegative = 1e-4
    """Weight of the squared distance to the reference's velocity; 0 needs no reference."""

    def value(self, advantage: Tensor) -> Tensor:
        from burnish.rl.advantages import optimality

        return optimality(advantage, self.advantage_clip, self.advantage_mode)

    def stream_loss(self, part: ForwardTerms, roles: FlowRoles) -> Loss:
        from burnish.diffusion.losses import negative_aware
        from burnish.rl.surrogates import squared_distance

        velocity, old = self.velocities(part, roles)
        loss, positive, negative = negative_aware(
            velocity, old, part.clean, part.state, part.time, part.value,
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
        return self.held(loss, values, velocity, part, roles, coef=self.kl_coef)
