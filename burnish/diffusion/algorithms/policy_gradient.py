"""The policy gradient over denoising steps: an action is a stochastic step, with the density of its transition."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from burnish.diffusion.algorithms.base import LagWithin, Needs, Recording, Role
from burnish.options import Count, NonNegative, Positive, Rules, Several, Whole
from burnish.registry import ReadIf, options, register
from burnish.rl.algorithm import (
    ADVANTAGES,
    AdvantageAlgorithm,
    Metrics,
    PolicyGradient,
    RolloutCorrection,
    advantages_of,
    rewards_read,
)
from burnish.rl.kl import gated_kl, kl_estimate, one_of

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.diffusion.batches import AnnotatedSteps, StepBatch, StepTerms, TokenTerms
    from burnish.diffusion.config import FlowConfig
    from burnish.diffusion.roles import FlowRoles
    from burnish.diffusion.steps import Density, Transition
    from burnish.types.rollout import Denoising, Loss, Requests, Scored, Steps

EXACT = 1e-9  # tolerance of rounding: floor and ceiling treat a float this close to an integer as that integer
Share = Annotated[float, Field(gt=0, le=1)]
Moving = dict[Literal["reference"], LagWithin]


@options
class Window:
    """The recorded steps of a rollout, the same for all samples of a group. The last step has no noise to score."""

    kind: Literal["all", "fixed", "last", "random", "progressive"] = "all"
    """all: every step of the range; fixed: its first steps; last: its last steps; random: consecutive steps at a random
    position; progressive: a window that moves through the range during training (MixGRPO)."""
    size: Count | None = None
    """Stochastic steps per trajectory; needed for every kind but all."""
    start: Whole = 0
    """First step of the range that the window is chosen from."""
    stop: Count | None = None
    """End of that range, exclusive; null is every step but the last."""
    scattered: Annotated[bool, ReadIf("kind", "random")] = False
    """random: draw steps that need not be consecutive."""
    shared_by: Annotated[Literal["group", "update"], ReadIf("kind", "random")] = "group"
    """random: draw one window per prompt, or one for all prompts of an update."""
    every: Annotated[Count, ReadIf("kind", "progressive")] = 25
    """progressive: policy updates between moves of the window."""
    interval: Annotated[Literal["constant", "linear", "exponential"], ReadIf("kind", "progressive")] = "constant"
    """progressive: whether that number is constant, or falls with the distance d that the window has moved: linear,
    every * (1 - decay * d) rounded down; exponential, every * exp(-decay * d) rounded up; at least 1."""
    decay: Annotated[Positive, ReadIf("kind", "progressive"), ReadIf("interval", "linear", "exponential")] = 0.1
    """linear and exponential: how fast it falls with d."""
    decay_after: Annotated[Whole, ReadIf("kind", "progressive"), ReadIf("interval", "linear", "exponential")] = 0
    """linear and exponential: steps that the window moves before d starts to count."""
    stride: Annotated[Count | None, ReadIf("kind", "progressive")] = None
    """progressive: steps per move; null is the window's size."""
    wrap: Annotated[bool, ReadIf("kind", "progressive")] = False
    """progressive: restart at the beginning of the range after its end; false stays at the end."""

    @model_validator(mode="after")
    def _consistent(self) -> Window:
        if (self.size is None) != (self.kind == "all"):
            size = "null" if self.kind == "all" else "a number of steps"
            raise ValueError(
                f"window.size is {self.size} with window.kind={self.kind}; set algorithm.window.size to {size}"
            )
        return self

    def within(self, steps: int, *, stochastic: bool = True) -> range:
        """The range of steps that the window is chosen from.

        Args:
            steps: denoising steps.
            stochastic: whether recorded steps are stochastic; deterministic ones may include the last.

        Raises:
            ValueError: the range or the window doesn't fit into ``steps`` denoising steps.
        """
        most = steps - 1 if stochastic else steps
        stop = most if self.stop is None else self.stop
        if stop > most:
            raise ValueError(
                f"window.stop is {stop}, but of {steps} denoising steps only the first {most} can be "
                + ("stochastic" if stochastic else "recorded")
            )
        size = self.size or 1
        if stop - self.start < size:
            raise ValueError(f"a window of {size} steps does not fit between window.start {self.start} and step {stop}")
        return range(self.start, stop)

    def choose(self, steps: int, *, update: int, key: int, stochastic: bool = True) -> list[int]:
        """Indices of the recorded steps, in increasing order.

        Args:
            steps: denoising steps.
            update: policy update, counted from 0.
            key: seed of the draw; equal for all samples of a group.
            stochastic: whether recorded steps are stochastic.
        """
        allowed = self.within(steps, stochastic=stochastic)
        if self.size is None:
            return list(allowed)
        if self.kind == "fixed":
            return list(allowed[: self.size])
        if self.kind == "last":
            return list(allowed[-self.size :])
        if self.kind == "progressive":
            first = self._progressive_start(allowed, update)
        elif self.scattered:
            return sorted(random.Random(key).sample(allowed, self.size))
        else:
            first = random.Random(key).randint(allowed.start, allowed.stop - self.size)
        return list(range(first, first + self.size))

    def _progressive_start(self, allowed: range, update: int) -> int:
        """First step of a progressive window, at most so far that the window ends with the range."""
        assert self.size is not None
        stride, last = self.stride or self.size, len(allowed) - self.size
        offsets = [min(move * stride, last) for move in range(-(-last // stride) + 1)]
        ends = [*itertools.accumulate(map(self._updates_at, offsets))]
        moves = bisect.bisect_right(ends, update % ends[-1] if self.wrap else update)
        return allowed.start + offsets[min(moves, len(offsets) - 1)]

    def _updates_at(self, offset: int) -> int:
        """Policy updates for which a window stays ``offset`` steps from the start of the range."""
        beyond = max(offset - self.decay_after, 0)
        if self.interval == "linear":
            return max(math.floor(self.every * (1 - self.decay * beyond) + EXACT), 1)
        if self.interval == "exponential":
            return max(math.ceil(self.every * math.exp(-self.decay * beyond) - EXACT), 1)
        return self.every


@options
class StepCorrection(RolloutCorrection):
    """What happens where sampler and trainer disagree about a step: weights that correct it, and rejection."""

    measure: Literal["joint", "mean"] = "joint"
    """joint: the ratio of a step is the probability ratio of the whole image, the product over all elements of the
    latent. mean: the geometric mean over the elements, as verl-omni takes it, which stays near 1 however far apart the
    policies are."""


@options
class StepPolicyGradient(PolicyGradient):
    """Base of policy gradients over recorded steps, each of which is worth its sample's reward."""

    by_stream = True
    reads_old_mean: ClassVar[bool] = False  # compares means of steps, not log-probs alone
    transition: Literal["sde", "cps", "dance", "ddim"] = "sde"
    """What a stochastic step is: Flow-GRPO's SDE, Flow-CPS (cleaner images), DanceGRPO's SDE, or DDIM's (DDPO)."""
    noise_level: Positive = 0.7
    """Strength of the noise of a stochastic step, in the units of its transition; ddim: its eta, 1 at most."""
    logprob: Literal["published", "gaussian", "squared_error"] = "published"
    """Log-density of a step: exact, or -(x - mean)^2 without scale; published is that for cps, else exact. With cps
    the exact one is ruled by the last steps, whose noise is tiny."""
    window: Window = Field(default_factory=Window)
    """Which steps are stochastic and trained; a prompt's samples always share them."""
    timestep_fraction: Share = 1.0
    """Share of its stochastic steps that each sample is trained at, drawn anew for every sample and update."""
    best_of: Several | None = None
    """Train on this many samples of each prompt, the best and the worst half; null trains on all. Advantages stay
    relative to all of them."""
    shared_noise: bool = False
    """Start all samples of a prompt from the same noise (DanceGRPO); their common steps are computed once."""
    advantage_clip: Positive | None = 5.0
    """Largest size of an advantage; null never clips."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference; 0 needs no reference."""
    kl_form: Annotated[str, one_of("published", "exact", "means"), ReadIf("kl_coef")] = "published"
    """published leaves the step length out of the SDE's variance, as Flow-GRPO's code does; exact keeps it; means is
    the squared distance of the means, without any variance (Flow-Factory's x-based KL). Or an estimate from the
    log-probs of the steps: k2, k3 or the name of a registered KL estimator."""
    lagged: Annotated[Moving, ReadIf("kl_coef")] = Field(default_factory=dict)
    """How the reference follows the policy, with the options of old: {reference: {update_interval: 50}}; {} keeps the
    network before training."""
    rollout_correction: StepCorrection | None = None

    def contradictions(self, run: FlowConfig) -> Rules:
        return [
            *super().contradictions(run),
            (
                self.transition == "ddim" and self.noise_level > 1,
                f"noise_level is {self.noise_level:g} and transition is ddim, whose eta is 1 at most: there is no more "
                "noise to redraw; lower it, or choose another transition",
            ),
            (
                self.reads_old_mean and (self.bypasses or self.old_logprob == "sampler"),
                f"{self.name} compares the means of steps, and those of the sampler are not recorded; "
                "leave out old_logprob=sampler and rollout_correction.mode=bypass",
            ),
        ]

    def needs(self) -> Needs:
        advantage, held = self.part("advantage"), self.kl_coef > 0
        return Needs(
            recording=self.recording(), reference=held, lagged=tuple(self.lagged) if held else (),
            best_of=self.best_of or 0, groups=advantage.groups, samples=advantage.samples,
            each_reward=advantage.advantage_aggregation == "each", reads=rewards_read(self), tokens=True,
        )  # fmt: skip

    def recording(self) -> Recording:
        """Which steps are recorded, and how they are sampled."""
        return Recording(self.transition, self.noise_level, self.window, self.density, self.shared_noise)

    @property
    def density(self) -> Density:
        """What the log-prob of a step is."""
        if self.logprob == "published":
            return "squared_error" if self.transition == "cps" else "gaussian"
        return self.logprob

    def compute_logprobs(self, scored: Scored, roles: FlowRoles) -> AnnotatedSteps:
        import torch

        from burnish.diffusion.batches import AnnotatedSteps

        shape, size = scored.trace.logprob.shape, roles.micro_batch_size
        steps, trace = scored.trace.steps(), scored.trace

        def logprobs(step: Transition, part: Steps) -> Tensor:  # of all of a state, and of each stream
            each = step.stream_logprobs(part.next_state, self.density, part.streams, part.stream_share)
            return torch.cat([step.logprob(part.next_state, self.density)[:, None], each], 1)

        def means(role: Role) -> Tensor:
            return self.read(lambda step, _: step.mean, steps, roles, role, kept=True) if len(steps) else unread

        def difference() -> float:
            probe, tokens = steps.select(slice(0, size)), trace.select(slice(0, size))
            apart = [self.read(logprobs, probe, roles)[:, 0] - probe.logprob] if len(probe) else []
            if tokens.token_mask.any():
                apart.append(in_tokens(tokens, roles.policy, roles) - tokens.token_logprob)
            return max((float(one.abs().max()) for one in apart), default=0.0)

        old_logprobs, metrics = self.old_logprobs(roles, difference)
        forward = old_logprobs == "recomputed" or self.rollout_correction is not None
        sampled = torch.cat([steps.logprob[:, None], steps.stream_logprob], 1)
        found = self.read(logprobs, steps, roles) if forward and len(steps) else sampled
        own = found if old_logprobs == "recomputed" else sampled
        learner, old = found[:, 0], own[:, 1:] if steps.streams else own[:, 0]
        unread = steps.time.new_zeros(len(steps), 0)
        # a policy that takes a single step on its own samples has these means itself when it learns
        needed = self.reads_old_mean and (old_logprobs == "sampler" or not roles.on_policy)
        old_mean = means(roles.policy) if needed else unread
        token_learner = in_tokens(trace, roles.policy, roles) if forward else trace.token_logprob
        with roles.clock("ref") if self.kl_coef > 0 else nullcontext():
            reference = means(roles.reference) if self.kl_coef > 0 else unread
            token_reference = in_tokens(trace, roles.reference, roles) if self.kl_coef > 0 else trace.token_logprob
        return AnnotatedSteps(
            scored=scored,
            old=old.reshape(*shape, *old.shape[1:]),
            learner=learner.reshape(shape) if self.rollout_correction else learner.new_empty(shape[0], 0),
            old_mean=old_mean.view(*shape, *old_mean.shape[1:]),
            reference_mean=reference.view(*shape, *reference.shape[1:]),
            old_logprobs=old_logprobs,
            token_old=token_learner if old_logprobs == "recomputed" else trace.token_logprob,
            token_learner=token_learner,
            token_reference=token_reference,
            metrics=metrics,
        )

    def read(
        self, value: Callable[[Transition, Steps], Tensor], steps: Steps, roles: FlowRoles, role: Role | None = None,
        *, kept: bool = False,
    ) -> Tensor:  # fmt: skip
        """A value of each step under a network, the policy by default: by micro-batches, without gradients.

        All ranks get all of it, or each keeps what it made until it is learned: for what is as large as states.
        """
        import torch

        size, home = roles.micro_batch_size, steps.state.device  # that of the networks, or the CPU
        ranges = [range(start, min(start + size, len(steps))) for start in range(0, len(steps), size)]

        def part(rows: range) -> Tensor:  # copied only for the time that it is on the device of the networks
            some = steps.select(rows).to(roles.device)
            return value(self.step(some, role or roles.policy), some).to(home)

        with torch.no_grad():
            return roles.kept(part, ranges) if kept else torch.cat(roles.distribute(part, ranges))

    def compute_advantages(self, annotated: AnnotatedSteps) -> tuple[StepBatch, Metrics]:
        from burnish.diffusion.batches import StepBatch, actions
        from burnish.rl.algorithm import advantage_metrics

        scored, trace = annotated.scored, annotated.scored.trace
        advantage, _ = self.clipped(*self.step_advantages(scored))
        trained = self.trained_steps(scored)
        # rewards and masks are on the CPU, the trace may be on a GPU: advantages are given where the former are
        weight, metrics = self.step_weights(scored).to(trained.device), dict(annotated.metrics)
        if self.rollout_correction is not None:
            given = annotated.learner, trace.logprob, trace.time, trace.nats(self.density, self.step_std)
            learner, sampled, time, nats = (one.to(trained.device) for one in given)
            scale = nats if self.rollout_correction.measure == "joint" else None
            factor, trained, corrected = self.rollout_correction.apply(
                learner, sampled, trained, time, scale, compares=self.part("surrogate").compares
            )
            weight, metrics = weight * factor, metrics | corrected
        credit, tokens, corrected = self.token_credit(annotated, trained)
        metrics |= corrected
        batch = StepBatch(
            **vars(annotated), advantage=advantage, weight=weight, trained=trained, token_advantage=credit,
            token_weight=tokens,
        )  # fmt: skip
        metrics |= advantage_metrics(scored.scores, advantage if advantage.numel() else credit)
        some = actions(trained, tokens) > 0
        return batch if some.all() else batch.select(some.nonzero().flatten()), metrics

    def step_advantages(self, scored: Scored) -> tuple[Tensor, Tensor]:
        """Advantage of each recorded step, [B, K], or of its streams, [B, K, S], and whether its sample has a reward,
        bool."""
        return stream_advantages(self, scored, scored.trace.logprob.shape[1])

    def token_credit(self, annotated: AnnotatedSteps, trained: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        """Advantage of the tokens of each sample [B], and the weight of each token [B, T]: together those of a sample
        weigh as much as its ``trained`` steps [B, K], or as one where no step is learned from. And metrics."""
        from burnish.diffusion.batches import best_worst
        from burnish.rl.advantages import Rewards

        scored, mask = annotated.scored, annotated.scored.trace.token_mask
        if not mask.shape[1]:
            return mask.float().sum(1), mask.float(), {}
        rewards = Rewards.of(scored.scores, scored.group, 1)
        credit, _ = self.clipped(advantages_of(self, rewards).advantage, rewards.mask)
        kept = rewards.mask if self.best_of is None else rewards.mask & best_worst(scored, self.best_of)
        factor, kept, corrected = (mask & kept).float(), mask & kept, dict[str, float]()
        if self.rollout_correction is not None:
            factor, kept, found = self.rollout_correction.apply(
                annotated.token_learner, scored.trace.token_logprob, kept
            )
            corrected = {name.replace("/", "/token_"): value for name, value in found.items()}
        share = trained.sum(1, keepdim=True).clamp_min(1) / mask.sum(1, keepdim=True).clamp_min(1)
        return credit[:, 0], factor * kept * share, corrected

    def step_weights(self, scored: Scored) -> Tensor:
        """Weight of each recorded step in the loss, [B, K]."""
        return scored.trace.logprob.new_ones(scored.trace.logprob.shape)

    def trained_steps(self, scored: Scored) -> Tensor:
        """Which recorded steps are learned from, [B, K] bool; none of a sample without a reward."""
        from burnish.diffusion.batches import best_worst, subset, taken_once

        trained = taken_once(scored.trace, scored.group, ~scored.scores.missing)
        if self.timestep_fraction < 1:
            trained &= subset(scored, self.timestep_fraction)
        if self.best_of is not None:
            trained &= best_worst(scored, self.best_of)
        return trained

    def micro_batches(self, batch: StepBatch, size: int) -> Iterator[StepTerms | TokenTerms]:
        return batch.micro_batches(size, whole_samples=self.part("surrogate").whole_samples)

    def loss(self, part: StepTerms | TokenTerms, roles: FlowRoles) -> Loss:
        from burnish.diffusion.batches import TokenTerms, by_stream

        if isinstance(part, TokenTerms):
            return self.token_loss(part, roles)
        return by_stream(self.stream_loss, part, roles)

    def stream_loss(self, part: StepTerms, roles: FlowRoles) -> Loss:
        """The sum of the loss over terms, of all of their elements or of one stream."""
        from burnish.rl.surrogates import extremes_of, variance_proxies
        from burnish.types.rollout import Loss

        step = self.step(part, roles.policy)
        logprob = step.logprob(part.next_state, self.density)
        # then its own log-probs are exactly the old ones; another micro-batch may have rounded them otherwise
        itself = part.old_logprobs != "sampler" and roles.fresh
        old = logprob.detach() if itself else part.old
        loss, values = self.step_objective(part, step, logprob, old, step.mean.detach() if itself else part.old_mean)
        values |= {"actor/pg_loss": loss, "actor/ppo_kl": old - logprob}
        values |= variance_proxies(part.advantage, step.score_power(part.next_state, self.density))
        if not roles.moved:
            values["rollout_corr/logprob_abs_diff"] = (logprob - part.logprob).abs()
        if self.kl_coef > 0:
            values["actor/kl_loss"] = kl = self.step_kl(step, part, logprob, old)
            loss = loss + self.kl_coef * gated_kl(kl, part.kl_factor)
        extremes = extremes_of(values.get("actor/ratio_mean"), values.get("rollout_corr/logprob_abs_diff"))
        return Loss(loss.sum(), sums(values) | part.metrics_by_step(values), extremes)

    def token_loss(self, part: TokenTerms, roles: FlowRoles) -> Loss:
        """PPO's clipped ratio of every token, and the KL to the reference, with what each reports as ``token_NAME``."""
        from burnish.rl.objectives import ppo_clip
        from burnish.types.rollout import Loss

        logprob, mask = of_tokens(roles.policy, part.conditioning, part.mask.shape[1]), part.mask
        old = logprob.detach() if part.old_logprobs != "sampler" and roles.fresh else part.old
        found = ppo_clip(logprob, old, part.advantage[:, None].expand_as(old), mask)
        loss, values = found.loss, dict[str, Any](found.metrics)
        values |= {"actor/pg_loss": loss, "actor/ratio_mean": found.ratio}
        if not roles.moved:
            values["rollout_corr/logprob_abs_diff"] = (logprob - part.sampled).abs()
        if self.kl_coef > 0:
            values["actor/kl_loss"] = kl = kl_estimate(logprob, part.reference, mask, "k3")
            loss = loss + self.kl_coef * gated_kl(kl, part.kl_factor)
        reported = {name.replace("/", "/token_"): value for name, value in values.items()}
        sums: dict[str, Any] = {name: (value.detach()[mask].sum(), mask.sum()) for name, value in reported.items()}
        return Loss((loss * part.weight).sum(), sums)

    def step_objective(
        self, part: StepTerms, step: Transition, logprob: Tensor, old: Tensor, old_mean: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted loss of each term and its metrics, [M] each; ``old_mean`` is empty unless it is read."""
        logprob, old, advantage, weight = map(part.by_sample, (logprob, old, part.advantage, part.weight))
        loss, values = self.objective(logprob, old, advantage, part.mask(logprob.device), weight)
        return part.by_term(loss), {name: part.by_term(value) for name, value in values.items()}

    def step_kl(self, step: Transition, part: StepTerms, logprob: Tensor, old: Tensor) -> Tensor:
        """KL [M] of the policy's steps and the reference's; ``logprob`` and ``old`` [M] of the policy, and of the one
        that sampled."""
        import torch

        from burnish.rl.surrogates import squared_distance

        if self.kl_form == "means":
            return squared_distance(step.mean, part.reference_mean, step.share)
        if self.kl_form in ("published", "exact"):
            published = self.kl_form == "published" and self.transition == "sde"
            return mean_kl(step, part.reference_mean, published=published)
        reference = replace(step, mean=part.reference_mean).logprob(part.next_state, self.density)
        return kl_estimate(logprob, reference, torch.ones_like(logprob, dtype=torch.bool), self.kl_form, old=old)

    def size(self, batch: StepBatch) -> int:
        return sum(batch.costs())

    def after_update(self, roles: FlowRoles, update: int) -> Metrics:
        lag = self.lagged.get("reference") if self.kl_coef > 0 else None
        return {} if lag is None else lag.follow("reference", roles, update)

    def step_std(self, time: Tensor, time_next: Tensor, schedule: Tensor) -> Tensor:
        """Standard deviation of steps [M]; it depends on nothing but their times."""
        from burnish.diffusion.steps import transition

        nothing = time.new_zeros(len(time), 1)
        t_max = float(schedule[1])
        return transition(self.transition, nothing, nothing, time, time_next, noise=self.noise_level, t_max=t_max).std

    def step(self, steps: Steps, role: Role) -> Transition:
        """The transition of each step under a network."""
        from burnish.diffusion.steps import transition

        velocity = role(steps.state, steps.time, steps.conditioning)
        return transition(
            self.transition, velocity, steps.state, steps.time, steps.time_next,
            noise=self.noise_level, t_max=steps.time_max, share=steps.share,
        )  # fmt: skip


@register("flow algorithm", "flow_grpo")
class FlowGRPO(StepPolicyGradient, advantage="flow_group", surrogate="flow_clip"):
    """Clipped policy gradient over stochastic denoising steps, with advantages relative to the group (Liu et al. 2025,
    arXiv:2505.05470)."""


def stream_advantages(algorithm: AdvantageAlgorithm, scored: Scored, actions: int) -> tuple[Tensor, Tensor]:
    """Advantages of samples with so many actions by an algorithm's rule, [B, K], and whether they have a reward, bool.

    Where streams have advantages of their own, both are [B, K, S]: by the rewards that teach each.
    """
    import torch

    from burnish.rl.advantages import Rewards

    scores, streams = scored.scores, scored.trace.streams
    if not streams:
        rewards = Rewards.of(scores, scored.group, actions)
        return advantages_of(algorithm, rewards).advantage, rewards.mask
    each = [Rewards.of(scores.of_stream(name), scored.group, actions) for name, _ in streams]
    advantage = torch.stack([advantages_of(algorithm, rewards).advantage for rewards in each], -1)
    algorithm.__dict__[ADVANTAGES] = advantage.mean((1, 2)).masked_fill(scores.missing, torch.nan).tolist()
    return advantage, each[0].mask[..., None].expand_as(advantage)


def of_tokens(role: Any, conditioning: Requests, width: int) -> Tensor:
    """Log-probs [M, T] of the tokens of samples under a network, ``width`` of each, with gradients."""
    import torch

    found = role.token_logprobs(conditioning)
    return torch.nn.functional.pad(found, (0, width - found.shape[1]))


def in_tokens(trace: Denoising, role: Any, roles: FlowRoles) -> Tensor:
    """The same [B, T] of all samples, by micro-batches, without gradients."""
    import torch

    if not trace.token_logprob.shape[1]:
        return trace.token_logprob

    def part(some: Denoising) -> Tensor:
        return of_tokens(role, some.conditioning, trace.token_mask.shape[1]).cpu()

    with torch.no_grad():
        return torch.cat(roles.distribute(part, trace.split(roles.micro_batch_size)))


def summed(loss: Tensor, values: dict[str, Any]) -> Loss:
    """A loss per term [M], with metrics that are averages over terms."""
    from burnish.types.rollout import Loss

    return Loss(loss.sum(), sums(values))


def sums(values: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Metrics of terms [M] as (sum, count)."""
    return {name: (value.detach().sum(), len(value)) for name, value in values.items()}


def mean_kl(step: Transition, mean: Tensor, *, published: bool) -> Tensor:
    """KL [M] of Gaussian steps and those of the same std around another mean [M, ...].

    ``published``: by the std before the root of the step length, as Flow-GRPO's code has it for its SDE.
    """
    from burnish.rl.surrogates import gaussian_kl

    return gaussian_kl(step.mean, mean, step.std / step.step.sqrt() if published else step.std, step.share)
