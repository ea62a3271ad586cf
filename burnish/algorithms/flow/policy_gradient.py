"""What policy gradients over denoising steps have in common: a step is an action, worth its sample's reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from burnish.algorithms.base import (
    GroupRelative,
    Metrics,
    Needs,
    Recording,
    Role,
    Roles,
    advantage_metrics,
    clip_range,
    in_parts,
)
from burnish.algorithms.correction import RolloutCorrection
from burnish.flow.windows import Window
from burnish.options import Finite, NonNegative, Positive, Several
from burnish.registry import options

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches import AnnotatedSteps, StepBatch, StepTerms
    from burnish.flow.transitions import Density, Transition
    from burnish.types.rollout import Denoising, Loss, Scored, Steps


Share = Annotated[float, Field(gt=0, le=1)]


@options
class PolicyGradient(GroupRelative):
    """Surrogate over recorded steps. A subclass says what it is, or changes what a step is worth."""

    transition: Literal["sde", "cps", "dance"] = "sde"
    """What a stochastic step is: Flow-GRPO's SDE, Flow-CPS (cleaner pictures), or DanceGRPO's SDE."""
    noise_level: Positive = 0.7
    """Strength of the noise of a stochastic step, in the units of its transition."""
    logprob: Literal["published", "gaussian", "squared_error"] = "published"
    """Log-density of a step: exact, or -(x - mean)^2 without scale; published is that for cps, else exact. With cps
    the exact one is ruled by the last steps, whose noise is tiny."""
    window: Window = Field(default_factory=Window)
    """Which steps are stochastic and trained; a prompt's samples always share them."""
    timestep_fraction: Share = 1.0
    """Share of its stochastic steps that each sample is trained at, drawn anew for every sample and update."""
    best_of: Several | None = None
    """Train on so many samples of each prompt, the best and the worst half; null trains on all. Advantages stay
    relative to all of them."""
    shared_noise: bool = False
    """Start all samples of a prompt from the same noise (DanceGRPO); their common steps are computed once."""
    advantage_clip: Positive | None = 5.0
    """Largest size of an advantage; null never clips."""
    advantage_clip_low: Finite | None = None
    """Smallest advantage if negative ones are to be bounded otherwise; null takes -advantage_clip."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference; 0 needs no reference."""
    kl_form: Literal["published", "exact", "means"] = "published"
    """published leaves the step length out of the SDE's variance, as Flow-GRPO's code does; exact keeps it; means is
    the squared distance of the means, without any variance (Flow-Factory's x-based KL)."""
    old_logprob: Literal["auto", "sampler", "recompute"] = "auto"
    """Log-probs that ratios refer to: the sampler's, recomputed, or auto: the policy's own until it is stepped, then
    the sampler's if a check shows that they are the trainer's, else recomputed."""
    rollout_correction: RolloutCorrection | None = None
    """Correct what sampler and trainer disagree about, by importance weights and rejection; null trusts the sampler.
    Where pipeline.depth is above 0 it is on unless it is set to null."""
    fold_timesteps: bool = True
    """Put several denoising steps into one forward; false trains one step at a time. Changes only speed."""

    @field_validator("transition", mode="before")
    @classmethod
    def _has_noise(cls, value: Any) -> Any:
        if value == "ode":
            raise ValueError(
                "transition is ode: a step without noise has no probability, so there is no gradient of it; "
                "choose sde, cps or dance, or an algorithm that needs no log-probs"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kl_coef == 0 and self.kl_form != "published":
            raise ValueError("kl_form is never read when kl_coef is 0; set kl_coef, or leave kl_form out")
        clip_range("advantage_clip", self.advantage_clip_low, self.advantage_clip)
        mode = self.rollout_correction.mode if self.rollout_correction else None
        if (mode, self.old_logprob) in (("decoupled", "sampler"), ("bypass", "recompute")):
            raise ValueError(
                f"old_logprob is {self.old_logprob} and rollout_correction.mode is {mode}: decoupled refers to "
                "recomputed log-probs and bypass to the sampler's; leave old_logprob out"
            )
        if self._reads_old_mean and (mode == "bypass" or self.old_logprob == "sampler"):
            raise ValueError(
                f"{self.name} compares the means of steps, and those of the sampler are not recorded; "
                "leave out old_logprob=sampler and rollout_correction.mode=bypass"
            )
        return self

    def needs(self) -> Needs:
        return Needs(recording=self.recording(), reference=self.kl_coef > 0, best_of=self.best_of or 0)

    def recording(self) -> Recording:
        """Which steps are recorded, and how they are sampled."""
        return Recording(self.transition, self.noise_level, self.window, self._density, self.shared_noise)

    @property
    def _density(self) -> Density:
        if self.logprob == "published":
            return "squared_error" if self.transition == "cps" else "gaussian"
        return self.logprob

    @property
    def _reads_old_mean(self) -> bool:
        """Whether the surrogate compares means of steps, not log-probs alone."""
        return False

    @property
    def _tolerance(self) -> float:
        """A difference of log-probs that can't be seen in the loss."""
        raise NotImplementedError

    def annotate(self, scored: Scored, roles: Roles) -> AnnotatedSteps:
        from burnish.batches import AnnotatedSteps

        shape, size = scored.trace.logprob.shape, roles.micro_batch_size
        steps, metrics = scored.trace.steps(), {}

        def logprob(part: Steps) -> Tensor:
            return self._step(part, roles.policy).logprob(part.next_state, self._density)

        def mean(role: Role) -> Tensor:
            return in_parts(lambda part: self._step(part, role).mean, steps, roles)

        correction = self.rollout_correction
        recompute = self.old_logprob == "recompute" or correction is not None
        same = roles.on_policy and not roles.moved
        if self.old_logprob == "auto" and not recompute and not same and len(steps):
            probe = steps.select(slice(0, size))
            difference = float((in_parts(logprob, probe, roles) - probe.logprob).abs().max())
            recompute = difference > self._tolerance
            metrics["old_policy/logprob_check"] = difference
        learner = in_parts(logprob, steps, roles) if recompute and len(steps) else steps.logprob
        old = steps.logprob if self._bypasses else learner
        metrics["old_policy/recomputed"] = float(recompute and not self._bypasses)
        unread = steps.state[:, :0]
        # a policy that takes a single step on its own samples has these means itself when it learns
        needed = self._reads_old_mean and not (roles.on_policy and self._is_old(roles))
        old_mean = mean(roles.policy) if needed else unread
        reference = mean(roles.reference) if self.kl_coef > 0 else unread
        return AnnotatedSteps(
            scored=scored,
            old=old.view(shape),
            learner=learner.view(shape) if correction else learner.new_empty(shape[0], 0),
            old_mean=old_mean.view(*shape, *old_mean.shape[1:]),
            reference_mean=reference.view(*shape, *reference.shape[1:]),
            recomputed=recompute and not self._bypasses,
            metrics=metrics,
        )

    def credit(self, annotated: AnnotatedSteps) -> tuple[StepBatch, Metrics]:
        from burnish.batches import StepBatch

        scored, scores = annotated.scored, annotated.scored.scores
        low, high = clip_range("advantage_clip", self.advantage_clip_low, self.advantage_clip)
        advantage = self.step_advantages(scored).clamp(low, high)
        trained = self.trained_steps(scored)
        # rewards and masks are on the CPU, the trace may be on a GPU: credit is given where the former are
        weight, metrics = self.step_weights(scored).to(trained.device), dict(annotated.metrics)
        if self.rollout_correction is not None:
            trace = scored.trace
            learner, sampled, time, nats = (
                value.to(trained.device) for value in (annotated.learner, trace.logprob, trace.time, self._nats(trace))
            )
            factor, trained, corrected = self.rollout_correction.apply(learner, sampled, trained, time, nats)
            weight, metrics = weight * factor, metrics | corrected
        learned = StepBatch(
            trace=scored.trace,
            advantage=advantage,
            weight=weight,
            trained=trained,
            old=annotated.old,
            old_mean=annotated.old_mean,
            reference_mean=annotated.reference_mean,
            recomputed=annotated.recomputed,
        )
        present = (~scores.missing).nonzero().flatten()
        metrics |= advantage_metrics(scores.reward[present], advantage[present])
        return learned.select(trained.any(1).nonzero().flatten()), metrics

    def step_advantages(self, scored: Scored) -> Tensor:
        """Credit of each recorded step, [B, K]; that of its sample, however many steps there are."""
        return self.advantages(scored)[:, None].expand_as(scored.trace.logprob)

    def step_weights(self, scored: Scored) -> Tensor:
        """Weight of each recorded step in the loss, [B, K]."""
        return scored.trace.logprob.new_ones(scored.trace.logprob.shape)

    def trained_steps(self, scored: Scored) -> Tensor:
        """Which recorded steps are learned from, [B, K] bool; none of a sample without a reward."""
        from burnish.advantages import select_best_worst
        from burnish.batches.steps import subset, taken_once

        trained = taken_once(scored.trace, scored.group, ~scored.scores.missing)
        if self.timestep_fraction < 1:
            trained &= subset(scored, self.timestep_fraction)
        if self.best_of is not None:
            scores = scored.scores
            rows = select_best_worst(scores.reward, scored.group, scores.missing, self.best_of)
            trained &= trained.new_zeros(len(trained), 1).index_fill(0, rows, True)
        return trained

    def micro_batches(self, batch: StepBatch, size: int) -> Iterator[StepTerms]:
        terms = batch.terms()
        if self.fold_timesteps:
            return terms.split(size)
        slots = batch.slots()
        by_step = (terms.select((slots == k).nonzero().flatten()) for k in range(batch.old.shape[1]))
        return (part for step in by_step for part in step.split(size))

    def loss(self, part: StepTerms, roles: Roles) -> Loss:
        from burnish.losses import variance_proxies
        from burnish.types.rollout import Loss

        count = len(part)
        step = self._step(part.steps, roles.policy)
        logprob = step.logprob(part.steps.next_state, self._density)
        # then its own log-probs are exactly the old ones; another micro-batch may have rounded them otherwise
        itself = self._is_old(roles) or (part.recomputed and roles.fresh)
        old = logprob.detach() if itself else part.old
        old_mean = step.mean.detach() if itself else part.old_mean
        loss, values = self.surrogate(part, step, logprob, old, old_mean)
        ratio = values.pop("ratio")
        loss = loss * part.weight
        values |= {"actor/pg_loss": loss, "actor/ratio_mean": ratio, "actor/ratio_square": ratio.square()}
        values["actor/ppo_kl"] = old - logprob
        values |= variance_proxies(part.advantage, step.score_power(part.steps.next_state, self._density))
        if not roles.moved:
            values["rollout_corr/logprob_abs_diff"] = (logprob - part.steps.logprob).abs()
        if self.kl_coef > 0:
            values["actor/kl_loss"] = kl = self._kl(step, part.reference_mean)
            loss = loss + self.kl_coef * kl
        metrics: dict[str, Any] = {name: (value.detach().sum(), count) for name, value in values.items()}
        return Loss(loss.sum(), metrics | per_step(values, part.index))

    def _kl(self, step: Transition, reference_mean: Tensor) -> Tensor:
        """Of a step and the reference's, in the form that is asked for: [M]."""
        from burnish.losses import gaussian_kl, squared_distance

        if self.kl_form == "means":
            return squared_distance(step.mean, reference_mean)
        published = self.kl_form == "published" and self.transition == "sde"
        return gaussian_kl(step.mean, reference_mean, step.std / step.step.sqrt() if published else step.std)

    def surrogate(
        self, part: StepTerms, step: Transition, logprob: Tensor, old: Tensor, old_mean: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each term before its weight, [M], and its metrics, [M] each, with the ``ratio`` among them.

        ``old_mean`` is that of the old policy's step, and empty unless ``_reads_old_mean``.
        """
        raise NotImplementedError

    def size(self, batch: StepBatch) -> int:
        return int(batch.trained.sum())

    def _is_old(self, roles: Roles) -> bool:
        """Whether the policy is the one that sampled, until it is stepped: its own log-probs are exactly the old."""
        return self.old_logprob == "auto" and not roles.moved and not self._bypasses

    @property
    def _bypasses(self) -> bool:
        """Whether ratios refer to the sampler, whatever the policy makes of its steps."""
        return self.rollout_correction is not None and self.rollout_correction.mode == "bypass"

    def _nats(self, trace: Denoising) -> Tensor:
        """What a recorded step's log-prob, a mean over elements, is to be multiplied by to be that of the step: [B, K].

        A squared error is in nats once it is divided by twice the variance.
        """
        elements = trace.state[0, 0].numel() if trace.time.numel() else 0
        if self._density == "gaussian":
            return trace.time.new_full(trace.time.shape, elements)
        std = self.step_std(trace.time.flatten(), trace.time_next.flatten(), trace.schedule)
        return elements / (2 * std.square().view_as(trace.time))

    def step_std(self, time: Tensor, time_next: Tensor, schedule: Tensor) -> Tensor:
        """Standard deviation of steps [M]; it depends on nothing but their times."""
        from burnish.flow.transitions import transition

        nothing = time.new_zeros(len(time), 1)
        t_max = float(schedule[1])
        return transition(self.transition, nothing, nothing, time, time_next, noise=self.noise_level, t_max=t_max).std

    def _step(self, steps: Steps, role: Role) -> Transition:
        from burnish.flow.transitions import transition

        velocity = role(steps.state, steps.time, steps.conditioning, steps.unconditional)
        return transition(
            self.transition, velocity, steps.state, steps.time, steps.time_next,
            noise=self.noise_level, t_max=steps.time_max,
        )  # fmt: skip


@options
class Clipped(PolicyGradient):
    """PPO's surrogate: a ratio counts within a range around 1."""

    clip: Positive = 1e-4
    """Clip range of the probability ratio; log-probs are means over latents, so ratios stay near 1."""
    clip_high: Positive | None = None
    """Upper clip range if it is to differ from the lower one; null takes clip."""

    @model_validator(mode="after")
    def _range_exists(self) -> Self:
        if self.clip >= 1:
            raise ValueError(f"clip is {self.clip}; ratios below 1 - clip can't exist then, so it must be < 1")
        return self

    @property
    def _tolerance(self) -> float:
        return self.clip / 100

    def surrogate(
        self, part: StepTerms, step: Transition, logprob: Tensor, old: Tensor, old_mean: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.losses import surrogate_of

        return surrogate_of(logprob - old, part.advantage, self.clip, self.clip_high or self.clip)


def per_step(values: dict[str, Tensor], index: list[int]) -> dict[str, Any]:
    """Ratio and KL by denoising step, as (sum, count) under ``NAME/step_K``.

    Args:
        values: per term [M] each.
        index: [M] the denoising step of each term.
    """
    import torch

    from burnish.types.batch import to_device

    metrics: dict[str, Any] = {}
    names = ("actor/ratio_mean", "actor/ratio_square", "actor/ppo_kl", "actor/kl_loss")
    chosen = {name: values[name].detach() for name in names if name in values}
    for number in sorted(set(index)):
        rows = torch.tensor([row for row, step in enumerate(index) if step == number])
        for name, value in chosen.items():
            here = to_device(rows, value.device)
            metrics[f"{name}/step_{number}"] = (value.index_select(0, here).sum(), len(rows))
    return metrics
