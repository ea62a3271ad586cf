"""Sections of a configuration that every task has, and the kinds of numbers that options are."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from burnish.registry import options

MOST = 10**9  # of anything that is counted
LARGEST = 1e12  # of anything that is measured: products of a few such numbers are finite in float32
SMALLEST = 1e-30  # above zero: in float32 anything smaller is zero as soon as it is multiplied
LONGEST = 2e6  # seconds, 23 days: waits are counted in milliseconds, with 32 bits
COLDEST = 1e-3  # temperature: logits that are divided by less overflow


def _not_vanishing(value: float) -> float:
    if 0 < abs(value) < SMALLEST:
        raise ValueError(
            f"{value:g} is too small: in float32 it is zero; it must be >= {SMALLEST:g}, or 0 if it may be"
        )
    return value


def _not_too_cold(value: float) -> float:
    if 0 < value < COLDEST:
        raise ValueError(f"{value:g} is too small: logits would overflow; it must be >= {COLDEST:g}")
    return value


Count = Annotated[int, Field(ge=1, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False), AfterValidator(_not_vanishing)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False), AfterValidator(_not_vanishing)]
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False), AfterValidator(_not_vanishing)]
Seconds = Annotated[float, Field(gt=0, le=LONGEST, allow_inf_nan=False)]
Temperature = Annotated[float, Field(gt=0, le=1000), AfterValidator(_not_too_cold)]
TemperatureOrGreedy = Annotated[float, Field(ge=0, le=1000), AfterValidator(_not_too_cold)]
LearningRate = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False), AfterValidator(_not_vanishing)]
Several = Annotated[int, Field(ge=2, le=MOST)]
Guidance = Annotated[float, Field(ge=1, le=1000)]  # classifier-free; 1 is none
SomeGuidance = Annotated[float, Field(gt=1, le=1000)]
DenoisingSteps = Annotated[int, Field(ge=1, le=1000)]  # as many levels of noise as networks are trained on
Pixels = Annotated[int, Field(ge=1, le=2**15)]
Tokens = Annotated[int, Field(ge=1, le=2**22)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]


def unix_seconds(moment: float | str) -> float:
    """Seconds since 1970 of a moment that is given as such, or in ISO 8601.

    Raises:
        ValueError: it is neither, or leaves open which time zone it means.
    """
    try:
        seconds = float(moment)
    except ValueError:
        try:
            given = datetime.fromisoformat(str(moment))
        except ValueError:
            raise ValueError("it must be a time such as 2026-01-31T18:00:00+01:00, or Unix seconds") from None
        if given.tzinfo is None:
            raise ValueError("its time zone is missing: add Z for UTC, or an offset such as +01:00") from None
        seconds = given.timestamp()
    if not math.isfinite(seconds):
        raise ValueError("it must be a moment that comes")
    return seconds


@options
class OptimizerOptions:
    """AdamW and its learning rate."""

    lr: LearningRate = 3e-4
    """Peak learning rate."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Decay of the running mean and of the running square of the gradient."""
    eps: Positive = 1e-8
    """Added to the root of the running square."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to zero at the last update."""
    schedule_updates: Count | None = None
    """linear, cosine: policy updates after which the learning rate is zero; null takes steps. A run whose learning rate
    falls is made longer by giving steps and this: it goes on with the learning rate of a run of that length."""
    warmup_steps: Whole = 0
    """Optimizer steps in which the learning rate rises linearly from zero."""
    max_grad_norm: Positive | None = 1.0
    """Longer gradients are scaled down to this norm; null never clips."""

    @model_validator(mode="after")
    def _steps_make_sense(self) -> Self:
        if self.lr * self.weight_decay >= 1:
            raise ValueError(
                f"lr x weight_decay is {self.lr * self.weight_decay:g}: every step takes that share off the weights, "
                "so it must be below 1; lower weight_decay"
            )
        if self.schedule == "constant" and self.schedule_updates is not None:
            raise ValueError("schedule_updates is never read when schedule is constant; leave it out")
        return self


@options
class StepOptions:
    """How a batch becomes optimizer steps, whatever its samples are."""

    mini_batch_size: Count | None = None
    """Samples per optimizer step; null takes all samples of the update (one step, strictly on-policy)."""
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Passes over the samples of one update."""
    max_skipped_updates: Whole = 3
    """Optimizer steps in a row that a non-finite loss or gradient may skip before the run stops."""
    max_empty_updates: Whole = 3
    """Policy updates in a row that may learn nothing because rewards are missing, before the run stops; ten times as
    many where all rewards are there but leave nothing to learn."""
    expires_at: float | str | None = None
    """When the machine is taken away, if that is announced: ISO 8601 with a time zone, 2026-01-31T18:00:00+01:00, or
    Unix seconds. The run saves and stops while there is time. null asks the variables that clouds announce it in."""
    expiry_margin: NonNegative = 0.0
    """Seconds that the run means to be gone before expires_at, beside those that it takes to save."""

    @field_validator("expires_at")
    @classmethod
    def _expires_at_a_moment(cls, value: float | str | None) -> float | str | None:
        if value is not None:
            unix_seconds(value)
        return value


@options
class EmaOptions:
    """A running average of the trained weights, for validation and export."""

    decay: BelowOne = 0.9
    """Weight of the past per optimizer step, once the average has grown up."""
    kind: Literal["power", "constant", "linear", "piecewise_linear", "cosine", "warmup_cosine"] = "power"
    """How it gets there by optimizer step n: power: (1 + n) / (warm_up + n), as in flow_grpo; constant: at once;
    linear: from initial in warm_up steps; cosine: from initial along half a cosine in steps; warmup_cosine: to initial
    in warm_up steps, then along half a cosine until steps; piecewise_linear: 0 for flat steps, then by ramp a step."""
    initial: BelowOne = 0.0
    """linear, cosine, warmup_cosine: see kind."""
    warm_up: Count = 10
    """power, linear, warmup_cosine: see kind."""
    steps: Count = 1000
    """cosine, warmup_cosine: see kind."""
    flat: Whole = 0
    """piecewise_linear: see kind."""
    ramp: Positive = 0.001
    """piecewise_linear: see kind."""

    @model_validator(mode="after")
    def _growth_is_read(self) -> Self:
        read = {
            "power": {"warm_up"},
            "constant": set(),
            "linear": {"initial", "warm_up"},
            "piecewise_linear": {"flat", "ramp"},
            "cosine": {"initial", "steps"},
            "warmup_cosine": {"initial", "warm_up", "steps"},
        }[self.kind]
        for name, default in (("initial", 0.0), ("warm_up", 10), ("steps", 1000), ("flat", 0), ("ramp", 0.001)):
            if getattr(self, name) != default and name not in read:
                raise ValueError(f"{name} is never read when kind is {self.kind}; leave it out")
        if self.kind == "warmup_cosine" and self.steps <= self.warm_up:
            raise ValueError(f"steps is {self.steps}, but warm_up alone takes {self.warm_up}; raise steps")
        return self


@options
class CheckpointOptions:
    """What a killed run can go on from."""

    every: Count = 10
    """Policy updates between checkpoints; one is always written at the end and when a signal asks to stop."""
    keep_last: Count = 2
    """Newest checkpoints that are kept."""
    keep_best: bool = True
    """Also keep the one with the best validation reward."""
    asynchronous: bool = False
    """Write while training goes on, from a copy of the state in the memory of the CPU; a checkpoint still becomes
    visible when it is whole. What goes wrong is told at the next one, or at the end of the run."""


@options
class ScoringOptions:
    """Where rewards are computed."""

    processes: Annotated[int, Field(ge=0, le=1024)] = 1
    """Processes of their own that score pictures while others are sampled; 0 scores in the run's own process."""
    timeout: Seconds = 300.0
    """Seconds that one reward may take for one batch of pictures; what takes longer counts as missing."""
    probe: bool = True
    """Have every reward judge made-up samples of the first prompts before the run begins, and refuse one that fails."""


def clip_range(name: str, low: float | None, high: float | None) -> tuple[float, float]:
    """The range of an option ``name`` and its ``name_low``: symmetric if low is None, open where nothing bounds it.

    Raises:
        ValueError: it is empty.
    """
    if low is None:
        low = -math.inf if high is None else -high
    elif high is not None and low >= high:
        raise ValueError(f"{name}_low is {low:g} and {name} is {high:g}: nothing lies between; lower {name}_low")
    return low, math.inf if high is None else high
