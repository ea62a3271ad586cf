"""What algorithms on the forward process have in common: finished pictures are noised again, at drawn noise levels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from burnish.diffusion.algorithms.base import Counts, Decay, Lag, Needs, Ramp, Role, check_lag
from burnish.options import BelowOne, Count, Finite, Fraction, NonNegative, Positive, clip_range
from burnish.registry import Choice, ReadIf, options
from burnish.rl.algorithm import Algorithm, Metrics, advantage_metrics, advantages_of, chosen, refuse_of_responses

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.diffusion.batches import ForwardTerms, JudgedSamples, NoiseLevels
    from burnish.diffusion.roles import FlowRoles
    from burnish.types.rollout import Loss, Scored


@options
class ForwardProcess(Algorithm):
    """Base of algorithms that learn from finished pictures at noise levels of their own choice."""

    train_timesteps: Count = 4
    """Noise levels that each sample is trained at, drawn anew at every update."""
    timestep_fraction: Annotated[Annotated[float, Field(gt=0, le=1)] | None, ReadIf("times", "schedule")] = None
    """schedule: this share of its steps in place of train_timesteps; null takes train_timesteps."""
    times: Literal["schedule", "uniform", "logit_normal"] = "schedule"
    """Draw noise levels from the sampling schedule without repetition, uniformly from (0, 1), or mostly from the
    middle (Stable Diffusion 3)."""
    time_range: tuple[Fraction, Fraction] = (0.0, 1.0)
    """Part of the way from clean (0) to noise (1) that levels are drawn from: of the steps, or of the draws."""
    time_shift: Annotated[Positive, ReadIf("times", "uniform", "logit_normal")] = 1.0
    """uniform and logit_normal: shift of the levels towards noise; 1 does not shift."""
    time_mean: Annotated[Finite, ReadIf("times", "logit_normal")] = 0.0
    """logit_normal: mean of the logit of the level; above 0 prefers noise."""
    time_std: Annotated[Positive, ReadIf("times", "logit_normal")] = 1.0
    """logit_normal: its standard deviation."""
    time_stratified: Annotated[bool, ReadIf("times", "uniform", "logit_normal")] = False
    """uniform and logit_normal: one level from each of train_timesteps equal parts."""
    train_guidance: Literal["rollout", "none"] = "none"
    """Train the plain velocity, as all papers of the forward process do, or the one with the guidance of the rollout;
    none after guided rollouts teaches the network to do without guidance."""

    @model_validator(mode="after")
    def _levels_are_drawn_as_they_say(self) -> Self:
        low, high = self.time_range
        if low >= high:
            raise ValueError(f"time_range is [{low}, {high}]; its end must be above its beginning")
        return self

    @property
    def schedule_times(self) -> int:
        """Noise levels that have to be in the part of the sampling schedule; 0 where any schedule does."""
        return self.train_timesteps if self.times == "schedule" and self.timestep_fraction is None else 0

    def levels(self) -> NoiseLevels:
        """Where noise levels come from, by these options."""
        from burnish.diffusion.batches import NoiseLevels

        return NoiseLevels(
            count=self.train_timesteps, kind=self.times, fraction=self.timestep_fraction,
            low=self.time_range[0], high=self.time_range[1], shift=self.time_shift,
            mean=self.time_mean, std=self.time_std, stratified=self.time_stratified,
        )  # fmt: skip

    def predict(self, role: Role, part: ForwardTerms, guidance: float | None = None) -> Tensor:
        """The velocity of a role at every term, [M, ...]; a guidance that is given goes before the options'."""
        if guidance is None and self.train_guidance == "none":
            guidance = 1.0
        return role(part.noisy, part.time, part.conditioning, guidance=guidance)

    def micro_batches(self, batch: JudgedSamples, size: int) -> Iterator[ForwardTerms]:
        return batch.terms(size)

    def size(self, batch: JudgedSamples) -> int:
        return int(batch.present.sum()) * batch.time.shape[1]


RESERVED = ("policy", "reference", "old", "critic", "base", "old_is_policy", "lagged_is_policy")  # names of others
NAME = re.compile(r"[a-z][a-z0-9_]*")


@options
class WithOldPolicy(ForwardProcess, advantage="flow_group"):
    """Base of those that learn from rewards and keep an old policy beside the one that learns."""

    online: bool = True
    """Learn from own samples; false learns from the pictures with rewards in data.train_files."""
    advantage: Annotated[Any, Choice("advantage")] = None
    """How rewards become advantages, in place of this algorithm's own way: the name of a registered advantage, or
    {name: NAME} with its options; null takes its own."""
    old_decay: Decay = "copy"
    """How the old policy follows: copied after every update, averaged, or averaged with a weight of the past that
    rises: as old_linear says, or by the two schedules of DiffusionNFT."""
    old_ema: BelowOne | None = None
    """ema: weight of the past in the old policy."""
    old_linear: Ramp | None = None
    """linear: [delay, start, slope, end]: at step n that weight is 0 before delay, then start + slope (n - delay), and
    end at most."""
    old_decay_counts: Counts = "gradient_steps"
    """What n counts where the weight rises: optimizer steps, as DiffusionNFT does, or policy updates."""
    old_policy_update_interval: Count = 1
    """Policy updates after which the old policy follows; in between it stays as it is."""
    lagged: dict[str, Lag] = Field(default_factory=dict)
    """Further policies that lag behind, by names of yours, each with decay, ema, linear, counts and update_interval;
    options that name a policy choose among them."""
    sample_with: Annotated[str, ReadIf("online")] = "old"
    """Who samples: old, policy, which is the one that learns, or one of lagged."""
    advantage_clip: Positive = 5.0
    """Largest size of an advantage."""
    advantage_clip_low: Finite | None = None
    """Smallest advantage if negative ones are to be bounded otherwise; null takes -advantage_clip."""
    kl_coef: NonNegative = 0.0
    """Weight of the squared distance to the reference's velocity; 0 needs no reference."""

    @model_validator(mode="after")
    def _policies_are_read(self) -> Self:
        check_lag("old_", self.old_decay, self.old_ema, self.old_linear, self.old_decay_counts)
        for name in self.lagged:
            if not NAME.fullmatch(name) or name in RESERVED:
                raise ValueError(
                    f"lagged has {name!r:.40}; a name has small letters, digits and _, and is none of "
                    f"{', '.join(RESERVED)}"
                )
            if name not in self.policies_read.values():
                raise ValueError(
                    f"lagged has {name}, but nothing reads it: name it in {' or '.join(self.policies_read)}, "
                    "or leave it out"
                )
        for option, name in self.policies_read.items():
            known = [*(["policy"] if option == "sample_with" else []), "old", *self.lagged]
            if name not in known:
                raise ValueError(
                    f"{option} is {name!r:.40}; it must be one of {', '.join(known)}, or a policy that lagged names"
                )
        clip_range("advantage_clip", self.advantage_clip_low, self.advantage_clip)
        refuse_of_responses(chosen(self, "advantage"))
        return self

    @property
    def policies_read(self) -> dict[str, str]:
        """Policies that are sampled with or compared with, besides old, by the option that names them."""
        return {"sample_with": self.sample_with}

    @property
    def keeps_old(self) -> bool:
        """Whether anything reads the old policy."""
        return True

    @property
    def lags(self) -> dict[str, Lag]:
        """How each policy follows, by its name."""
        if not self.keeps_old:
            return self.lagged
        old = Lag(
            decay=self.old_decay, ema=self.old_ema, linear=self.old_linear, counts=self.old_decay_counts,
            update_interval=self.old_policy_update_interval,
        )  # fmt: skip
        return {"old": old} | self.lagged

    def needs_of(self, **needs: Any) -> Needs:
        """What these options need, and whatever a subclass needs beside it."""
        advantage = chosen(self, "advantage")
        return Needs(
            data="prompts" if self.online else "scored", sampler=self.sample_with, lagged=tuple(self.lags),
            schedule_times=self.schedule_times, schedule_range=self.time_range,
            groups=advantage.groups, samples=advantage.samples,
            each_reward=self.online and advantage.advantage_aggregation == "each", **needs,
        )  # fmt: skip

    def velocities(self, part: ForwardTerms, roles: FlowRoles) -> tuple[Tensor, Tensor]:
        """Of the policy, and without gradient of the old one, which needs no forward where it is the same."""
        import torch

        with torch.no_grad():
            old = None if roles.is_policy("old") else self.predict(roles.lagged("old"), part)
        velocity = self.predict(roles.policy, part)
        return velocity, velocity.detach() if old is None else old

    def lagged_velocity(self, name: str, part: ForwardTerms, roles: FlowRoles, velocity: Tensor) -> Tensor:
        """Of a lagged policy, without gradient: the policy's own ``velocity`` where they are the same."""
        import torch

        if roles.is_policy(name):
            return velocity.detach()
        with torch.no_grad():
            return self.predict(roles.lagged(name), part)

    def reference_velocity(self, part: ForwardTerms, roles: FlowRoles, guidance: float | None = None) -> Tensor:
        """Of the reference, without gradient."""
        import torch

        with torch.no_grad():
            return self.predict(roles.reference, part, guidance)

    def after_update(self, roles: FlowRoles, update: int) -> Metrics:
        metrics: Metrics = {}
        for name, lag in self.lags.items():
            metrics |= lag.follow(name, roles, update)
        return metrics


def bounded_advantages(algorithm: Any, scored: Scored) -> tuple[Tensor, Metrics]:
    """Advantages of samples by an algorithm's rule, within its bounds, [B], and their metrics."""
    from burnish.rl.rewards import Rewards

    scores = scored.scores
    advantage = advantages_of(algorithm, Rewards.of(scores, scored.group, 1)).advantage[:, 0]
    present = (~scores.missing).nonzero().flatten()
    metrics = advantage_metrics(scores.reward[present], advantage[present])
    low, high = clip_range("advantage_clip", algorithm.advantage_clip_low, algorithm.advantage_clip)
    return advantage.clamp(low, high), metrics


def summed(loss: Tensor, values: dict[str, Any]) -> Loss:
    """A loss per term [M], with metrics that are averages over terms."""
    from burnish.types.rollout import Loss

    return Loss(loss.sum(), {name: (value.detach().sum(), len(value)) for name, value in values.items()})
