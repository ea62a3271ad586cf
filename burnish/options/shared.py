"""Sections of a configuration that every task has, and the kinds of numbers that options are."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from burnish.registry import options

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
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

    lr: Positive = 3e-4
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
    def _schedule_is_read(self) -> Self:
        if self.schedule == "constant" and self.schedule_updates is not None:
            raise ValueError("schedule_updates is never read when schedule is constant; leave it out")
        return self


@options
class StepOptions:
    """How a batch becomes optimizer steps, whatever its samples are."""

    mini_batch_size: Count | None = None
    """Samples per optimizer step; null takes all samples of the update (one step, strictly on-policy)."""
    epochs: Count = 1
    """Passes over the samples of one update."""
    max_skipped_updates: Whole = 3
    """Optimizer steps in a row that a non-finite loss or gradient may skip before the run stops."""
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

    processes: Whole = 1
    """Processes of their own that score pictures while others are sampled; 0 scores in the run's own process."""
    timeout: Positive = 300.0
    """Seconds that one reward may take for one batch of pictures; what takes longer counts as missing."""
