"""What algorithms of generators need, and how networks follow the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from burnish.options import BelowOne, Count, Fraction, Guidance, NonNegative, OptimizerOptions, Positive, Rules
from burnish.registry import ReadIf, options
from burnish.rl.algorithm import Metrics, RewardsRead

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.diffusion.algorithms.policy_gradient import Window
    from burnish.diffusion.config import FlowConfig
    from burnish.diffusion.roles import FlowRoles
    from burnish.diffusion.steps import Density, Kind


@dataclass(frozen=True)
class Recording:
    """Which denoising steps are recorded to learn from, and how they are sampled."""

    kind: Kind
    noise: float
    window: Window
    density: Density = "gaussian"
    shared_noise: bool = False  # all samples of a prompt start from the same noise
    splits: tuple[int, ...] = ()  # steps at which every path of a prompt's tree of samples parts; needs shared noise
    branching: int = 2  # into how many
    steps_after: float = 1.0  # share of the steps after the window that are taken; below 1 a job has one window

    def check(self, steps: int) -> None:
        """Refuse what does not fit into ``steps`` denoising steps.

        Raises:
            ValueError: the window or a split lies outside.
        """
        within = self.window.within(steps, stochastic=self.kind != "ode")
        for split in self.splits:
            if split not in within:
                raise ValueError(
                    f"splits has step {split}, but stochastic are only {within.start} to {within.stop - 1}, "
                    "and samples part by noise alone"
                )


@options
class Teacher:
    """A frozen network. It reads the embeddings of the run's own text encoders, so its own must be the same."""

    path: str | None = None
    """Directory of its pipeline, or org/name or org/name@REVISION on the Hugging Face hub, of the family of model.path;
    null is the run's own untrained model."""
    lora: str | None = None
    """Directory of an adapter for it, as diffusers' load_lora_weights reads one; null adds none."""
    guidance_scale: Guidance | None = None
    """Classifier-free guidance that it predicts with; null takes rollout.guidance_scale."""
    weight: Positive = 1.0
    """Share of its loss in the sum."""

    @property
    def is_start(self) -> bool:
        """Whether it is the run's own untrained model."""
        return self.path is None and self.lora is None


@dataclass(frozen=True)
class Needs:
    """What the rest of the system provides for an algorithm, and nothing else."""

    data: Literal["prompts", "images", "pairs"] = "prompts"  # what the training files hold
    sampler: str = "policy"  # or one of lagged
    recording: Recording | None = None  # None: deterministic sampling, only final latents are kept
    euler_steps: int = 0  # last steps that the loss makes again, by Euler's method
    reference: bool = False
    lagged: tuple[str, ...] = ()  # policies that follow the one that learns, each in its own way, by ``blend``
    # further networks, which begin as the untrained model, each with the optimizer that it learns by; None only blends
    networks: Mapping[str, OptimizerOptions | None] = field(default_factory=dict)
    unguided: bool = False  # learns what is predicted without guidance, whatever samples are drawn with
    few_steps: bool = False  # a model that was distilled to few steps stays one
    schedule_times: int = 0  # noise levels per sample drawn from the sampling schedule, without repetition
    schedule_range: tuple[float, float] = (0.0, 1.0)  # the part of it that they come from: clean is 0, noise 1
    atom: Literal["sample", "pair", "group"] = "sample"  # what a loss compares, which nothing may cut
    groups: bool = True  # compares samples of one prompt, so a prompt needs two at least
    samples: int = 1  # of a prompt that are compared at least
    tree: int = 0  # leaves of the tree that the samples of a prompt form: exactly N; 0 is no tree
    best_of: int = 0  # samples of a prompt that are learned from, fewer than there are; 0 is all
    teachers: tuple[Teacher, ...] = ()  # frozen networks to learn from
    tokens: bool = False  # also learns what is written before images are drawn
    each_reward: bool = False  # rewards are compared one by one, so several have to count
    reads: RewardsRead = field(default_factory=dict)
    reward_gradients: bool = False  # rewards are followed uphill, so each that counts must be differentiable

    def to_sample(self) -> Needs:
        """What of it sampling needs: of the networks, those that sample."""
        return replace(
            self, reference=False, teachers=(), lagged=tuple(name for name in self.lagged if name == self.sampler),
            networks={name: None for name in self.networks if name == self.sampler},
        )  # fmt: skip


Role: TypeAlias = "Callable[..., Tensor]"
"""A network with a job: latents [M, ...], times [M] and conditioning to velocities [M, ...]; ``guidance`` None takes
its own."""


def ramp(delay: float, start: float, slope: float, end: float) -> Callable[[int], float]:
    """A weight of the past that is 0 before ``delay`` steps, and rises from ``start`` to ``end`` in a line then."""
    return lambda n: 0.0 if n < delay else min(start + slope * (n - delay), end)


DECAYS = {
    "copy": lambda n: 0.0,
    "linear_to_0_5": ramp(0, 0.0, 0.001, 0.5),
    "delayed_linear_to_0_999": ramp(75, 0.0, 0.0075, 0.999),
}


@options
class Lag:
    """How a policy follows the one that learns."""

    kl_limit = None
    decay: Literal["copy", "ema", "linear", "linear_to_0_5", "delayed_linear_to_0_999"] = "copy"
    """How it follows: copied, averaged, or averaged with a weight of the past that rises: as linear says, or by the two
    schedules of DiffusionNFT."""
    ema: BelowOne | None = None
    """ema: weight of the past."""
    linear: tuple[NonNegative, Fraction, NonNegative, Fraction] | None = None
    """linear: [delay, start, slope, end]: at step n that weight is 0 before delay, then start + slope (n - delay), and
    end at most."""
    counts: Annotated[
        Literal["gradient_steps", "updates"], ReadIf("decay", "linear", "linear_to_0_5", "delayed_linear_to_0_999")
    ] = "gradient_steps"
    """What n counts where the weight rises: optimizer steps, or policy updates."""
    update_interval: Count = 1
    """Policy updates after which it follows; in between it stays as it is."""

    def contradictions(self, run: FlowConfig) -> Rules:
        return [
            (
                (self.decay == name) != (value is not None),
                f"{name} is {'null' if value is None else value} and decay is {self.decay}: "
                + (f"give {name}, as in {usual}" if value is None else f"only decay={name} reads it; remove it"),
            )
            for name, value, usual in (("ema", self.ema, "0.99"), ("linear", self.linear, "[0,0,0.001,0.5]"))
        ]

    def weight(self, n: int) -> float:
        """Weight of the past at step or update ``n``."""
        if self.ema is not None:
            return self.ema
        return (ramp(*self.linear) if self.linear is not None else DECAYS[self.decay])(n)

    def follow(self, name: str, roles: FlowRoles, update: int, source: str = "policy") -> Metrics:
        """Move the network ``name`` as far towards ``source`` as it moves after this update, counted from 1."""
        prefix = "old_policy" if name == "old" else f"lagged/{name}"
        far = self.kl_limit is not None and any(
            roles.learned.get(name, 0.0) > self.kl_limit for name in ("actor/kl_loss", "actor/ref_kl_loss")
        )
        applied = update % self.update_interval == 0 or far
        weight = self.weight(roles.optimizer_steps if self.counts == "gradient_steps" else update) if applied else 0.0
        if applied:
            roles.blend(name, weight, source)
        return {
            f"{prefix}/update_applied": float(applied),
            f"{prefix}/copy_update": float(applied and weight == 0),
            f"{prefix}/ema_update": float(weight > 0),
            f"{prefix}/decay": weight,
        }


@options
class LagWithin(Lag):
    """How a policy follows that may be the reference."""

    kl_limit: Positive | None = None  # type: ignore[assignment]
    """Of the reference: it follows as well after an update whose mean KL to it was above this (GARDO); null follows by
    update_interval alone."""
