"""Algorithms on the forward process: finished images are noised again, at drawn noise levels.

What they have in common, and SFT: flow matching on images of the user (Lipman et al. 2022, arXiv:2210.02747), or on the
best of the own ones.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from burnish.diffusion.algorithms.base import Lag, LagWithin, Needs, Role
from burnish.diffusion.algorithms.policy_gradient import EXACT, stream_advantages, summed
from burnish.options import SAMPLED, BelowOne, Count, Fraction, NonNegative, Positive, Rules
from burnish.registry import ReadIf, options, register
from burnish.rl.algorithm import (
    AdvantageAlgorithm,
    Algorithm,
    KlGate,
    Metrics,
    advantage_metrics,
    range_metrics,
    rewards_read,
)
from burnish.rl.imitation import BestOfOwn

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.diffusion.batches import ForwardTerms, JudgedSamples
    from burnish.diffusion.config import FlowConfig
    from burnish.diffusion.roles import FlowRoles
    from burnish.types.rollout import Loss, OfflineSamples, Scored
    from burnish.utils.random import Part


@options
class ForwardProcess(Algorithm):
    """Base of algorithms that learn from finished images at noise levels of their own choice."""

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
    time_stratified: Annotated[bool, ReadIf("times", "uniform", "logit_normal")] = False
    """uniform and logit_normal: one level from each of train_timesteps equal parts."""
    train_guidance: Annotated[
        Literal["rollout", "none"],
        ReadIf(
            lambda section, run: section.train_guidance == "none" or run.rollout.guidance_scale > 1,
            why="rollout.guidance_scale is 1, which is none",
        ),
    ] = "none"
    """Train the plain velocity, as all papers of the forward process do, or the one with the guidance of the rollout;
    none after guided rollouts teaches the network to do without guidance."""

    def contradictions(self, run: FlowConfig) -> Rules:
        low, high = self.time_range
        return [(low >= high, f"time_range is [{low}, {high}]; its end must be above its beginning")]

    @property
    def schedule_times(self) -> int:
        """Noise levels that have to be in the part of the sampling schedule; 0 where any schedule does."""
        return self.train_timesteps if self.times == "schedule" and self.timestep_fraction is None else 0

    def levels(self, keys: Sequence[tuple[Part, ...]], schedule: Tensor) -> Tensor:
        """Noise levels [R, J] to train at, one row for each key, which alone decides on it.

        Args:
            keys: one per row.
            schedule: [N + 1] times of the denoising steps; ``times=schedule`` takes them from there, without
                repetition.
        """
        import torch

        from burnish.diffusion.steps import static_shift, stratify, to_normal
        from burnish.utils import random

        low, high = self.time_range
        if self.times == "schedule":
            steps, fraction = steps_between(low, high, len(schedule) - 1), self.timestep_fraction
            # rounded down, at least one
            count = self.train_timesteps if fraction is None else max(1, int(len(steps) * fraction + EXACT))
            levels = schedule[steps.start : steps.stop]
            return torch.stack([levels[random.permutation(len(levels), *key)[:count]] for key in keys])
        draws = random.uniform(self.train_timesteps, keys)
        if self.time_stratified:
            draws = stratify(draws)
        drawn = low + (high - low) * draws
        if self.times == "logit_normal":  # the sigmoid of normal draws: Stable Diffusion 3, eq. 19
            drawn = to_normal(drawn).sigmoid()
        # networks that predict noise know no level above the schedule's first; a flow's is 1
        return static_shift(drawn, self.time_shift).mul(float(schedule[0])).clamp_min(T_MIN)

    def predict(self, role: Role, part: ForwardTerms, guidance: float | None = None) -> Tensor:
        """The velocity of a role at every term, [M, ...]; a guidance that is given goes before the options'."""
        if guidance is None and self.train_guidance == "none":
            guidance = 1.0
        return role(part.state, part.time, part.conditioning, guidance=guidance)

    def micro_batches(self, batch: JudgedSamples, size: int) -> Iterator[ForwardTerms]:
        return batch.terms(size)

    def size(self, batch: JudgedSamples) -> int:
        return int(batch.present.sum()) * batch.time.shape[1]


T_MIN = 1e-3  # at t = 0 there is nothing to predict
RESERVED = ("policy", "old", "critic", "base", "is_policy", "memory")  # names of others
NAME = re.compile(r"[a-z][a-z0-9_]*")


@options
class WithOldPolicy(AdvantageAlgorithm, ForwardProcess, advantage="flow_group"):
    """Base of those that learn from rewards and keep an old policy beside the one that learns."""

    gates_kl, by_stream = True, True
    old: Lag = Field(default_factory=Lag)
    """How the old policy follows the one that learns: by decay, ema, linear, counts and update_interval."""
    lagged: dict[str, LagWithin] = Field(default_factory=dict)
    """Further policies that lag behind, by names of yours, each with the options of old; options that name a policy
    choose among them. The name reference moves the reference, which is else the network before training."""
    sample_with: Annotated[str, SAMPLED] = "old"
    """Who samples: old, policy, which is the one that learns, or one of lagged."""
    advantage_clip: Positive = 5.0
    """Largest size of an advantage."""
    kl_coef: NonNegative = 0.0
    """Weight of the squared distance to the reference's velocity; 0 needs no reference."""
    kl_gate: KlGate = None
    """Which samples the KL to the reference holds, and how strongly: the name of a registered gate, or {name: NAME}
    with its options; null holds all alike."""

    def contradictions(self, run: FlowConfig) -> Rules:
        read = self.policies_read
        rules = super().contradictions(run)
        for name, lag in self.lagged.items():
            rules += [
                (
                    not NAME.fullmatch(name) or name in RESERVED,
                    f"lagged has {name!r:.40}; a name has small letters, digits and _, and is none of "
                    f"{', '.join(RESERVED)}",
                ),
                (
                    name == "reference" and not self.reads_reference,
                    f"lagged has reference, but {self.name} reads none: set kl_coef, or remove it",
                ),
                (
                    name not in ("reference", *read.values()),
                    f"lagged has {name:.40}, but nothing reads it: name it in {' or '.join(read)}, or remove it",
                ),
                (
                    lag.kl_limit is not None and name != "reference",
                    f"lagged.{name:.40}.kl_limit is given, but no KL to this policy is measured; remove it",
                ),
            ]
        for option, name in read.items():
            known = [*(["policy"] if option == "sample_with" else []), "old", *self.lagged]
            message = f"{option} is {name!r:.40}; it must be one of {', '.join(known)}, or a policy that lagged names"
            rules.append((name not in known or name == "reference", message))
        return rules

    @property
    def policies_read(self) -> dict[str, str]:
        """Policies that are sampled with or compared with, besides old, by the option that names them."""
        return {"sample_with": self.sample_with}

    atom: ClassVar[Literal["sample", "group"]] = "sample"  # what the loss compares
    baseline = "old"  # whose matching error is compared with
    shared_noise = False  # by the samples of a group

    @property
    def keeps_old(self) -> bool:
        """Whether anything reads the old policy."""
        return True

    @property
    def reads_reference(self) -> bool:
        """Whether anything reads the network before training."""
        return self.baseline == "reference" or self.kl_coef > 0

    @property
    def lags(self) -> dict[str, Lag]:
        """How each policy follows, by its name."""
        return ({"old": self.old} if self.keeps_old else {}) | self.lagged

    def needs(self) -> Needs:
        advantage = self.part("advantage")
        return Needs(
            sampler=self.sample_with, lagged=tuple(self.lags),
            schedule_times=self.schedule_times, schedule_range=self.time_range, atom=self.atom,
            groups=advantage.groups, samples=advantage.samples, reference=self.reads_reference,
            each_reward=advantage.advantage_aggregation == "each", reads=rewards_read(self),
            unguided=self.train_guidance == "none",
        )  # fmt: skip

    def compute_advantages(self, annotated: Scored) -> tuple[JudgedSamples, Metrics]:
        from burnish.diffusion.batches import groups_of, judge

        advantage, metrics = bounded_advantages(self, annotated)
        members = groups_of(annotated) if self.atom == "group" else None
        value = self.value(advantage)
        return judge(annotated, value, self.levels, members=members, shared_noise=self.shared_noise), metrics

    def value(self, advantage: Tensor) -> Tensor:
        """What samples of these advantages are worth, of any shape."""
        return advantage

    def loss(self, part: ForwardTerms, roles: FlowRoles) -> Loss:
        from burnish.diffusion.batches import by_stream

        return by_stream(self.stream_loss, part, roles)

    @abstractmethod
    def stream_loss(self, part: ForwardTerms, roles: FlowRoles) -> Loss:
        """The sum of the loss over terms, of all of their elements or of one stream."""

    def velocities(self, part: ForwardTerms, roles: FlowRoles, name: str = "old") -> tuple[Tensor, Tensor]:
        """Of the policy, and without gradient of another one, which needs no forward where it is the same."""
        other = None if roles.is_policy(name) else self.frozen(name, part, roles)
        velocity = self.predict(roles.policy, part)
        return velocity, velocity.detach() if other is None else other

    def frozen(self, name: str, part: ForwardTerms, roles: FlowRoles, guidance: float | None = None) -> Tensor:
        """The velocity of a network beside the policy, without gradient."""
        import torch

        with torch.no_grad():
            return self.predict(roles.lagged(name), part, guidance)

    def held(
        self, loss: Tensor, values: dict[str, Tensor], velocity: Tensor, part: ForwardTerms, roles: FlowRoles,
        *, coef: Tensor | float, guidance: float | None = None,
    ) -> Loss:  # fmt: skip
        """A loss per term [M] with the squared distance to the reference, if that is asked for."""
        from burnish.rl.kl import gated_kl
        from burnish.rl.surrogates import squared_distance

        if self.kl_coef > 0:
            distance = squared_distance(velocity, self.frozen("reference", part, roles, guidance), part.share)
            values["actor/ref_kl_loss"] = distance
            loss = loss + coef * gated_kl(distance, part.kl_factor)
        return summed(loss, values | {"actor/total_loss": loss})

    def after_update(self, roles: FlowRoles, update: int) -> Metrics:
        metrics: Metrics = {}
        for name, lag in self.lags.items():
            metrics |= lag.follow(name, roles, update)
        return metrics


def steps_between(low: float, high: float, steps: int) -> range:
    """The steps of a schedule whose fraction of the way from clean (0) to noise (1) lies in [low, high].

    Args:
        low, high: 0 <= low < high <= 1.
        steps: denoising steps of the schedule; step 0 starts from noise.
    """
    return range(int((1 - high) * steps + EXACT), math.ceil((1 - low) * steps - EXACT))


def bounded_advantages(algorithm: AdvantageAlgorithm, scored: Scored) -> tuple[Tensor, Metrics]:
    """Advantages of samples by an algorithm's rule, within its bounds, [B], or of each stream [B, S], and the metrics
    of those without bounds."""
    advantage, mask = stream_advantages(algorithm, scored, 1)
    return algorithm.clipped(advantage, mask)[0][:, 0], advantage_metrics(scored.scores, advantage[:, 0])


@register("flow algorithm", "sft")
class SFT(BestOfOwn, ForwardProcess):
    """Imitate images."""

    prompt_dropout: BelowOne = 0.0
    """Share of the images that are learned without their prompt, so that guidance keeps something to steer away
    from."""
    train_timesteps: Count = 1
    """Noise levels that each image is trained at, drawn anew at every update."""
    times: Literal["schedule", "uniform", "logit_normal"] = "logit_normal"
    """Draw noise levels from the sampling schedule without repetition, uniformly from (0, 1), or mostly from the
    middle (Stable Diffusion 3)."""

    def needs(self) -> Needs:
        return Needs(
            data="prompts" if self.online else "images", groups=self.online,
            schedule_times=self.schedule_times, schedule_range=self.time_range,
            unguided=self.train_guidance == "none",
        )  # fmt: skip

    def compute_advantages(self, annotated: Any) -> tuple[JudgedSamples, Metrics]:
        import torch

        from burnish.diffusion.batches import take, without_prompts

        metrics: Metrics = {}
        if self.online:
            judged, metrics = self._best(annotated)
        else:
            given: OfflineSamples = annotated
            judged = take(given, self.levels, torch.ones(1))
        return without_prompts(judged, self.prompt_dropout) if self.prompt_dropout > 0 else judged, metrics

    def _best(self, scored: Scored) -> tuple[JudgedSamples, Metrics]:
        """The samples that are imitated."""
        import torch

        from burnish.diffusion.batches import judge

        scores, (rows, chosen) = scored.scores, self.imitated(scored)
        metrics = range_metrics(rewards=scores.reward[~scores.missing]) | {"train/imitated": float(len(rows))}
        if len(rows):
            metrics["train/imitated_reward"] = float(scores.reward[rows].mean())
        weight = torch.ones_like(scores.reward)
        weight[rows] = chosen
        return judge(scored, weight, self.levels, members=rows.cpu()[:, None]), metrics

    def loss(self, part: ForwardTerms, roles: FlowRoles) -> Loss:
        from burnish.diffusion.losses import matching_error

        loss = part.value * matching_error(self.predict(roles.policy, part), part.target, share=part.share)
        return summed(loss, {"actor/sft_loss": loss})
