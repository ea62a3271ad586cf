"""DiffusionNFT: online reinforcement learning on the forward process (Zheng et al. 2025, arXiv:2509.16117)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from burnish.algorithms.base import GroupRelative, Metrics, Needs, Roles, advantage_metrics
from burnish.options import BelowOne, Count, NonNegative, Positive
from burnish.registry import options, register

if TYPE_CHECKING:
    from burnish.experience import ForwardTerms, JudgedSamples
    from burnish.types import Loss, Scored

DECAYS = {
    "copy": lambda update: 0.0,
    "linear_to_0_5": lambda update: min(0.001 * update, 0.5),
    "delayed_linear_to_0_999": lambda update: min(max(0.0075 * (update - 75), 0.0), 0.999),
}


@register("algorithm", "diffusion_nft")
@options
class DiffusionNFT(GroupRelative):
    """Contrast good and bad samples in the flow-matching loss; no log-probs, no stochastic sampling."""

    beta: Positive = 1.0
    """Distance of the implicit positive and negative policies from the old one; smaller pushes harder."""
    old_decay: Literal["copy", "ema", "linear_to_0_5", "delayed_linear_to_0_999"] = "copy"
    """How the sampling policy follows: copied after every update, averaged, or by the paper's two schedules."""
    old_ema: BelowOne | None = None
    """ema: weight of the past in the sampling policy."""
    advantage_std: Literal["group", "global", "none"] = "global"
    """Divide advantages by the std of the group, of the whole batch, or not at all."""
    advantage_clip: Positive = 5.0
    """Advantages of this size are worth probability 0 and 1; smaller ones map linearly between."""
    advantage_mode: Literal["continuous", "positive_only", "negative_only", "binary", "one_only"] = "continuous"
    """Which part of the advantage counts."""
    train_timesteps: Count = 4
    """Noise levels that each sample is trained at, drawn anew at every update."""
    times: Literal["schedule", "uniform"] = "schedule"
    """Draw them from the sampling schedule without repetition, or uniformly from (0, 1)."""
    kl_coef: NonNegative = 1e-4
    """Weight of the squared distance to the reference's velocity; 0 needs no reference."""

    @model_validator(mode="after")
    def _consistent(self) -> DiffusionNFT:
        if (self.old_decay == "ema") != (self.old_ema is not None):
            raise ValueError(
                f"old_ema is {self.old_ema} and old_decay is {self.old_decay}: "
                "ema needs old_ema, and the others never read it"
            )
        return self

    def needs(self) -> Needs:
        levels = self.train_timesteps if self.times == "schedule" else 0
        return Needs(sampler="old", old=True, reference=self.kl_coef > 0, schedule_times=levels)

    def credit(self, annotated: Scored) -> tuple[JudgedSamples, Metrics]:
        from burnish.credit import optimality
        from burnish.experience import judge

        scores = annotated.scores
        advantage = self.advantages(annotated)
        good = optimality(advantage, self.advantage_clip, self.advantage_mode)
        judged = judge(annotated, good, times=self.train_timesteps, kind=self.times)
        present = (~scores.missing).nonzero().flatten()
        metrics = advantage_metrics(scores.reward[present], advantage[present])
        return judged.select(present), metrics

    def micro_batches(self, batch: JudgedSamples, size: int) -> Iterator[ForwardTerms]:
        return batch.terms(size)

    def loss(self, part: ForwardTerms, roles: Roles) -> Loss:
        import torch

        from burnish.losses import negative_aware
        from burnish.types import Loss

        def predict(role: Any) -> torch.Tensor:
            return role(part.noisy, part.time, part.conditioning, part.unconditional)

        count = len(part)
        with torch.no_grad():
            reference = predict(roles.reference) if self.kl_coef > 0 else None
            old = None if roles.old_is_policy else predict(roles.old)
        velocity = predict(roles.policy)
        if old is None:
            old = velocity.detach()
        loss, positive, negative = negative_aware(
            velocity, old, part.clean, part.noisy, part.time, part.optimality, beta=self.beta
        )
        loss = loss * self.advantage_clip
        deviation = (velocity.detach() - old).square().flatten(1).mean(1)
        values = {
            "actor/policy_loss": loss,
            "actor/positive_loss": positive,
            "actor/negative_loss": negative,
            "actor/old_deviate": deviation,
            "actor/reward_prob_mean": part.optimality,
        }
        if reference is not None:
            distance = (velocity - reference).square().flatten(1).mean(1)
            loss = loss + self.kl_coef * distance
            values["actor/ref_kl_loss"] = distance
        values["actor/total_loss"] = loss
        return Loss(loss.sum(), {name: (value.detach().sum(), count) for name, value in values.items()})

    def size(self, batch: JudgedSamples) -> int:
        return batch.time.numel()

    def after_update(self, roles: Roles, update: int) -> Metrics:
        decay = self.old_ema if self.old_ema is not None else DECAYS[self.old_decay](update)
        roles.blend_old(decay)
        return {
            "old_policy/update_applied": 1.0,
            "old_policy/copy_update": float(decay == 0),
            "old_policy/ema_update": float(decay > 0),
            "old_policy/decay": decay,
        }
