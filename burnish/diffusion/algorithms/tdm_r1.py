"""TDM-R1: reinforcement of few-step models by rewards without gradients (Luo et al. 2026, arXiv:2603.07700)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from burnish.diffusion.algorithms.base import Lag, Needs, Recording, Role
from burnish.diffusion.algorithms.forward_process import bounded_advantages
from burnish.diffusion.algorithms.policy_gradient import Window, sums
from burnish.options import (
    AdamWOptions,
    Count,
    Fraction,
    NonNegative,
    OptimizerOptions,
    Positive,
    Rules,
    SomeGuidance,
)
from burnish.registry import register
from burnish.rl.algorithm import AdvantageAlgorithm, Metrics, rewards_read

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.diffusion.config import FlowConfig
    from burnish.diffusion.paths import GroupPaths, PathTerms
    from burnish.diffusion.roles import FlowRoles
    from burnish.types.rollout import Loss, Scored

Sums = dict[str, tuple[Any, Any]]
SLOW = Lag(decay="linear", linear=(1, 0.001, 0.001, 0.3))  # how the slow surrogate follows the surrogate
FAKE_KL = 0.02  # weight of the fake score's squared distance to the untrained model's velocity


@register("flow algorithm", "tdm_r1")
class TDMR1(AdvantageAlgorithm, advantage="flow_group"):
    """A policy of few steps is pulled to where the untrained model and a learned reward would have its samples: the
    untrained model and the reward are asked at any noise level, the policy only ever takes its own steps."""

    advantage_std: Literal["group", "global", "none"] = "global"
    """Divide advantages by the std of the group, of the whole batch, or not at all."""
    advantage_clip: Positive = 5.0
    """Largest size of an advantage."""
    train_timesteps: Count = 2
    """Denoising steps that the samples of a prompt are trained at, drawn anew at every update."""
    beta: Positive = 1.0
    """Strength of the pull to the untrained model in the surrogate's preferences."""
    clip: Positive = 1e-3
    """A sample whose ratio exp(slow surrogate's error - surrogate's error) has moved this far to where it should go
    teaches the surrogate no more."""
    stray: NonNegative = 0.05
    """Where the surrogate is further from the untrained model than this, mean squared, samples that would lead it on
    teach it no more."""
    kl_coef: NonNegative = 1e-3
    """Weight of the surrogate's squared distance to the untrained model's velocity."""
    reward_guidance: SomeGuidance = 4.5
    """Guidance scale of the surrogate where it pulls the policy."""
    real_guidance: SomeGuidance = 4.5
    """Guidance scale of the untrained model, whose guidance is a reward too."""
    real_weight: Fraction = 0.3
    """Weight of the pull by its guidance; the surrogate's has 1 - this."""
    reward_steps: Count | None = None
    """How many of the first denoising steps the surrogate pulls; later ones learn from the untrained model alone. null
    pulls all."""
    fake_optimizer: AdamWOptions = Field(default_factory=lambda: AdamWOptions(betas=(0.0, 0.999)))
    """Optimizer of the fake score, which knows what the policy draws."""
    surrogate_optimizer: AdamWOptions = Field(default_factory=AdamWOptions)
    """Optimizer of the surrogate, which knows what is rewarded."""

    def contradictions(self, run: FlowConfig) -> Rules:
        unread = self.real_weight == 1 and self.reward_steps is not None
        return [(unread, "reward_steps is never read when real_weight is 1: nothing pulls to the reward")]

    def needs(self) -> Needs:
        advantage = self.part("advantage")
        optimizers = {"fake": self.fake_optimizer, "surrogate": self.surrogate_optimizer}
        return Needs(
            recording=Recording("ode", 0.0, Window()), schedule_times=self.train_timesteps, atom="group",
            reference=True, groups=advantage.groups, each_reward=advantage.advantage_aggregation == "each",
            reads=rewards_read(self),
            networks={name: OptimizerOptions(**vars(one)) for name, one in optimizers.items()} | {"slow": None},
            few_steps=True, unguided=True,
        )  # fmt: skip

    def compute_advantages(self, annotated: Scored) -> tuple[GroupPaths, Metrics]:
        from burnish.diffusion.paths import GroupPaths

        advantage, metrics = bounded_advantages(self, annotated)
        return GroupPaths.of(annotated, advantage, self.train_timesteps), metrics

    def micro_batches(self, batch: GroupPaths, size: int) -> Iterator[PathTerms]:
        return batch.terms(size)

    def size(self, batch: GroupPaths) -> int:
        return int(batch.present.sum()) * batch.step.shape[1]

    def loss(self, part: PathTerms, roles: FlowRoles) -> Loss:
        from burnish.diffusion.steps import column
        from burnish.types.rollout import Loss

        time, time_next = (column(value, part.state) for value in (part.time, part.time_next))
        velocity = roles.policy(part.state, part.time, part.conditioning)
        clean = part.state - time * velocity
        reached = (part.state - (time - time_next) * velocity).detach()
        fake, by_fake = self._fake(part, roles, clean.detach(), reached)
        surrogate, by_surrogate = self._surrogate(part, roles)
        policy, by_policy = self._policy(part, roles, clean, reached)
        return Loss((fake + surrogate + policy).sum(), by_policy | by_fake | by_surrogate)

    def after_update(self, roles: FlowRoles, update: int) -> Metrics:
        return SLOW.follow("slow", roles, update, source="surrogate")

    def _fake(self, part: PathTerms, roles: FlowRoles, clean: Tensor, reached: Tensor) -> tuple[Tensor, Sums]:
        """Flow matching of what the policy draws, [M]: its fake score learns."""
        import torch

        from burnish.diffusion.losses import matching_error
        from burnish.diffusion.steps import column, diffuse_further
        from burnish.rl.surrogates import squared_distance

        x, _, _ = diffuse_further(reached, part.fake_noise, part.time_next, part.level, part.noised)
        target = (x - clean) / column(part.level, x)
        with torch.no_grad():
            real = plain(roles.reference, x, part.level, part)
        velocity = plain(roles.lagged("fake"), x, part.level, part)
        error = matching_error(velocity, target, share=part.share)
        distance = squared_distance(velocity, real, part.share)
        return error + FAKE_KL * distance, sums({"fake/loss": error, "fake/kl_loss": distance})

    def _surrogate(self, part: PathTerms, roles: FlowRoles) -> tuple[Tensor, Sums]:
        """DGPO's loss of the ends of steps, [M]: the surrogate learns to prefer what is rewarded."""
        import torch

        from burnish.diffusion.losses import matching_error
        from burnish.diffusion.paths import hold_astray, preference_target
        from burnish.diffusion.steps import diffuse_further
        from burnish.rl.preference import group_preference, hold_clipped
        from burnish.rl.surrogates import squared_distance
        from burnish.types.batch import to_device

        begun = (part.surrogate_state, part.surrogate_noise, part.surrogate_time, part.surrogate_level)
        x, a, b = diffuse_further(*begun, part.noised)
        target = torch.where(part.noised, preference_target(*begun, a, b), 0.0)
        with torch.no_grad():
            real = plain(roles.reference, x, part.surrogate_level, part)
            slow = plain(roles.lagged("slow"), x, part.surrogate_level, part)
        velocity = plain(roles.lagged("surrogate"), x, part.surrogate_level, part)
        error, before, given = (matching_error(one, target, share=part.share) for one in (velocity, slow, real))
        distance = squared_distance(velocity, real, part.share)
        error, clipped = hold_clipped(error, before, part.value, clip=self.clip)
        error, astray = hold_astray(error, given, part.value, within_groups(distance, part.atom) > self.stray)
        by_group, reported = group_preference(error, given, part.value, part.atom, beta=self.beta)
        preference = by_group[to_device(part.atom, by_group.device)]  # once for each member: a group counts by its size
        loss = part.surrogate_weight * (preference + self.kl_coef * distance)
        found = {"surrogate/loss": preference, "surrogate/kl_loss": distance, "surrogate/matching_error": error,
                 "surrogate/clipfrac": clipped.float(), "surrogate/astrayfrac": astray.float()}  # fmt: skip
        return loss, sums(found) | sums(reported)

    def _policy(self, part: PathTerms, roles: FlowRoles, clean: Tensor, reached: Tensor) -> tuple[Tensor, Sums]:
        """What pulls the clean samples that the policy predicts, [M]."""
        import torch

        from burnish.diffusion.paths import mean_distance, pulled
        from burnish.diffusion.steps import column, diffuse_further, guide

        x, _, _ = diffuse_further(reached, part.noise, part.time_next, part.level, part.noised)
        y, _, _ = diffuse_further(reached, part.reward_noise, part.time_next, part.reward_level, part.noised)
        level, reward_level = (column(value, x) for value in (part.level, part.reward_level))
        surrogate = roles.lagged("surrogate")
        with torch.no_grad():
            fake = plain(roles.lagged("fake"), x, part.level, part)
            real, unconditional = (plain(roles.reference, x, part.level, part, prompted=yes) for yes in (True, False))
            better, worse = (plain(surrogate, y, part.reward_level, part, prompted=yes) for yes in (True, False))
            unrewarded = plain(roles.reference, y, part.reward_level, part)
            rewarded = guide(better, worse, self.reward_guidance)
            guided = guide(real, unconditional, self.real_guidance)
        far = mean_distance(clean, x - level * guided, part.share)
        reward_far = mean_distance(clean, y - reward_level * rewarded, part.share)
        by_guidance = pulled(clean, (1 - self.real_guidance) * level * (real - unconditional), far, part.share)
        by_real = pulled(clean, level * (fake - real), far, part.share)
        by_reward = pulled(clean, reward_level * (unrewarded - rewarded), reward_far, part.share)
        loss = self.real_weight * by_guidance + (1 - self.real_weight) * by_reward + by_real
        if self.reward_steps is not None:
            loss = torch.where(part.number < self.reward_steps, loss, self.real_weight * (by_guidance + by_real))
        return loss, sums({
            "actor/policy_loss": loss, "actor/guidance_pull": by_guidance, "actor/real_pull": by_real,
            "actor/reward_pull": by_reward,
        })  # fmt: skip


def plain(role: Role, x: Tensor, level: Tensor, part: PathTerms, *, prompted: bool = True) -> Tensor:
    """The velocity of a role without guidance, [M, ...]; of the negative prompts unless ``prompted``."""
    from burnish.types.rollout import unprompted

    asked = part.conditioning if prompted else unprompted(part.conditioning)
    return role(x, level, asked, guidance=1.0)


def within_groups(value: Tensor, group: Tensor) -> Tensor:
    """The mean of each term's group, [M], without gradient."""
    import torch

    from burnish.types.batch import to_device

    value, group = value.detach(), to_device(group, value.device)
    total = torch.zeros_like(value).index_add(0, group, value)
    return total[group] / (group[:, None] == group).sum(1)
