"""What algorithms on the forward process have in common: finished pictures are noised again, at drawn noise levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from burnish.advantages.metrics import advantage_metrics
from burnish.algorithms.base import Algorithm, Metrics, advantages_of
from burnish.algorithms.flow.base import Needs, Role, Roles
from burnish.algorithms.parts import chosen, refuse_of_responses
from burnish.options import BelowOne, Count, Finite, Fraction, NonNegative, Positive, clip_range
from burnish.registry import Choice, options

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.levels import NoiseLevels
    from burnish.batches.samples import ForwardTerms, JudgedSamples
    from burnish.types.rollout import Loss, Scored


@options
class ForwardProcess(Algorithm):
    """Base of algorithms that learn from finished pictures at noise levels of their own choice."""

    train_timesteps: Count = 4
    """Noise levels that each sample is trained at, drawn anew at every update."""
    timestep_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    """schedule: this share of its steps in place of train_timesteps; null takes train_timesteps."""
    times: Literal["schedule", "uniform", "logit_normal"] = "schedule"
    """Draw noise levels from the sampling schedule without repetition, uniformly from (0, 1), or mostly from the
    middle (Stable Diffusion 3)."""
    time_range: tuple[Fraction, Fraction] = (0.0, 1.0)
    """Part of the way from clean (0) to noise (1) that levels are drawn from: of the steps, or of the draws."""
    time_shift: Positive = 1.0
    """uniform and logit_normal: shift of the levels towards noise; 1 does not shift."""
    time_mean: Finite = 0.0
    """logit_normal: mean of the logit of the level; above 0 prefers noise."""
    time_std: Positive = 1.0
    """logit_normal: its standard deviation."""
    time_stratified: bool = False
    """uniform and logit_normal: one level from each of train_timesteps equal parts."""
    train_guidance: Literal["rollout", "none"] = "none"
    """Train the plain velocity, as all papers of the forward process do, or the one with the guidance of the rollout;
    none after guided rollouts teaches the network to do without guidance."""

    @model_validator(mode="after")
    def _levels_are_drawn_as_they_say(self) -> Self:
        low, high = self.time_range
        if low >= high:
            raise ValueError(f"time_range is [{low}, {high}]; its end must be above its beginning")
        shifted = self.time_shift != 1 or self.time_stratified
        if self.times == "schedule" and shifted:
            raise ValueError("time_shift and time_stratified are never read when times is schedule; leave them out")
        if self.times != "logit_normal" and (self.time_mean != 0 or self.time_std != 1):
            raise ValueError(f"time_mean and time_std are never read when times is {self.times}; leave them out")
        if self.times != "schedule" and self.timestep_fraction is not None:
            raise ValueError(f"timestep_fraction is of the schedule's steps, but times is {self.times}")
        return self

    @property
    def schedule_times(self) -> int:
        """Noise levels that have to be in the part of the sampling schedule; 0 where any schedule does."""
        return self.train_timesteps if self.times == "schedule" and self.timestep_fraction is None else 0

    def levels(self) -> NoiseLevels:
        """Where noise levels come from, by these options."""
        from burnish.batches.levels import NoiseLevels

        return NoiseLevels(
            count=self.train_timesteps, kind=self.times, fraction=self.timestep_fraction,
            low=self.time_range[0], high=self.time_range[1], shift=self.time_shift,
            mean=self.time_mean, std=self.time_std, stratified=self.time_stratified,
        )  # fmt: skip

    def predict(self, role: Role, part: ForwardTerms, guidance: float | None = None) -> Tensor:
        """The velocity of a role at every term, [M, ...]; a guidance that is given goes before the options'."""
        if guidance is None and self.train_guidance == "none":
            guidance = 1.0
        return role(part.noisy, part.time, part.conditioning, part.unconditional, guidance=guidance)

    def micro_batches(self, batch: JudgedSamples, size: int) -> Iterator[ForwardTerms]:
        return batch.terms(size)

    def size(self, batch: JudgedSamples) -> int:
        return int(batch.present.sum()) * batch.time.shape[1]


Ramp = tuple[NonNegative, Fraction, NonNegative, Fraction]  # delay, start, slope, end


def ramp(delay: float, start: float, slope: float, end: float) -> Callable[[int], float]:
    """A weight of the past that is 0 before ``delay`` steps, and rises from ``start`` to ``end`` in a line then."""
    return lambda n: 0.0 if n < delay else min(start + slope * (n - delay), end)


DECAYS = {
    "copy": lambda n: 0.0,
    "linear_to_0_5": ramp(0, 0.0, 0.001, 0.5),
    "delayed_linear_to_0_999": ramp(75, 0.0, 0.0075, 0.999),
}


@options
class WithOldPolicy(ForwardProcess, advantage="flow_group"):
    """Base of those that sample online and keep an old policy beside the one that learns."""

    advantage: Annotated[Any, Choice("advantage")] = None
    """How rewards become advantages, in place of this algorithm's own way: the name of a registered advantage, or
    {name: NAME} with its options; null takes its own."""
    old_decay: Literal["copy", "ema", "linear", "linear_to_0_5", "delayed_linear_to_0_999"] = "copy"
    """How the old policy follows: copied after every update, averaged, or averaged with a weight of the past that
    rises: as old_linear says, or by the two schedules of DiffusionNFT."""
    old_ema: BelowOne | None = None
    """ema: weight of the past in the old policy."""
    old_linear: Ramp | None = None
    """linear: [delay, start, slope, end]: at step n that weight is 0 before delay, then start + slope (n - delay), and
    end at most."""
    old_decay_counts: Literal["gradient_steps", "updates"] = "gradient_steps"
    """What n counts where the weight rises: optimizer steps, as DiffusionNFT does, or policy updates."""
    advantage_clip: Positive = 5.0
    """Largest size of an advantage."""
    advantage_clip_low: Finite | None = None
    """Smallest advantage if negative ones are to be bounded otherwise; null takes -advantage_clip."""
    kl_coef: NonNegative = 0.0
    """Weight of the squared distance to the reference's velocity; 0 needs no reference."""

    @model_validator(mode="after")
    def _old_ema_is_read(self) -> Self:
        if (self.old_decay == "ema") != (self.old_ema is not None):
            raise ValueError(
                f"old_ema is {self.old_ema} and old_decay is {self.old_decay}: "
                "ema needs old_ema, and the others never read it"
            )
        if (self.old_decay == "linear") != (self.old_linear is not None):
            raise ValueError(
                f"old_linear is {self.old_linear} and old_decay is {self.old_decay}: "
                "linear needs old_linear, and the others never read it"
            )
        if self.old_decay in ("copy", "ema") and self.old_decay_counts != "gradient_steps":
            raise ValueError(f"old_decay_counts is never read when old_decay is {self.old_decay}; leave it out")
        clip_range("advantage_clip", self.advantage_clip_low, self.advantage_clip)
        refuse_of_responses(chosen(self, "advantage"))
        return self

    def needs_of(self, **needs: Any) -> Needs:
        """What these options need, and whatever a subclass needs beside it."""
        advantage = chosen(self, "advantage")
        return Needs(
            schedule_times=self.schedule_times, schedule_range=self.time_range, groups=advantage.groups,
            each_reward=advantage.advantage_aggregation == "each", **needs,
        )  # fmt: skip

    def clipped_advantages(self, scored: Scored) -> tuple[Tensor, Metrics]:
        """Advantages within their bounds, [B], and their metrics."""
        from burnish.advantages.rewards import Rewards

        scores = scored.scores
        advantage = advantages_of(self, Rewards.of(scores, scored.group, 1)).advantage[:, 0]
        present = (~scores.missing).nonzero().flatten()
        metrics = advantage_metrics(scores.reward[present], advantage[present])
        low, high = clip_range("advantage_clip", self.advantage_clip_low, self.advantage_clip)
        return advantage.clamp(low, high), metrics

    def velocities(self, part: ForwardTerms, roles: Roles) -> tuple[Tensor, Tensor]:
        """Of the policy, and without gradient of the old one, which needs no forward where it is the same."""
        import torch

        with torch.no_grad():
            old = None if roles.old_is_policy else self.predict(roles.old, part)
        velocity = self.predict(roles.policy, part)
        return velocity, velocity.detach() if old is None else old

    def reference_velocity(self, part: ForwardTerms, roles: Roles, guidance: float | None = None) -> Tensor:
        """Of the reference, without gradient."""
        import torch

        with torch.no_grad():
            return self.predict(roles.reference, part, guidance)

    def after_update(self, roles: Roles, update: int) -> Metrics:
        decay = self._decay(roles.optimizer_steps if self.old_decay_counts == "gradient_steps" else update)
        roles.blend_old(decay)
        return {
            "old_policy/update_applied": 1.0,
            "old_policy/copy_update": float(decay == 0),
            "old_policy/ema_update": float(decay > 0),
            "old_policy/decay": decay,
        }

    def _decay(self, n: int) -> float:
        """Weight of the past in the old policy at step or update ``n``."""
        if self.old_ema is not None:
            return self.old_ema
        return (ramp(*self.old_linear) if self.old_linear is not None else DECAYS[self.old_decay])(n)


def summed(loss: Tensor, values: dict[str, Any], extra: dict[str, Any] | None = None) -> Loss:
    """A loss per term [M], with metrics that are averages over terms, and others as (sum, count)."""
    from burnish.types.rollout import Loss

    metrics = {name: (value.detach().sum(), len(value)) for name, value in values.items()}
    return Loss(loss.sum(), metrics | (extra or {}))
