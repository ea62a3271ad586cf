"""Sections that both tasks share, and types of numeric options with their ranges."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from burnish.registry import options

MOST = 10**9  # upper bound of counts
LARGEST = 1e12  # upper bound of floats: products of a few such numbers are finite in float32
SMALLEST = 1e-30  # smallest non-zero float: products of smaller ones underflow in float32
LONGEST = 2e6  # seconds, 23 days: timeouts are 32-bit milliseconds
COLDEST = 1e-3  # lowest temperature: logits divided by less overflow


def _not_vanishing(value: float) -> float:
    if 0 < abs(value) < SMALLEST:
        raise ValueError(
            f"{value:g} is too small: it underflows in float32; it must be >= {SMALLEST:g}, or 0 where 0 is allowed"
        )
    return value


def _not_too_cold(value: float) -> float:
    if 0 < value < COLDEST:
        raise ValueError(f"{value:g} is too small: logits would overflow; it must be >= {COLDEST:g}")
    return value


Count = Annotated[int, Field(ge=1, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]
if TYPE_CHECKING:
    Batch = Any  # of configurations that are assembled, a number
else:
    Batch = Literal["auto"] | Count
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
Solver = Literal["euler", "heun", "dpm2m"]  # of denoising steps without noise
DenoisingSteps = Annotated[int, Field(ge=1, le=1000)]  # as many levels of noise as networks are trained on
Pixels = Annotated[int, Field(ge=1, le=2**15)]
Tokens = Annotated[int, Field(ge=1, le=2**22)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]


def unix_seconds(moment: float | str) -> float:
    """Seconds since 1970 of a time given as such or in ISO 8601.

    Raises:
        ValueError: it is neither, or its time zone is missing.
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
        raise ValueError("it must be a finite time")
    return seconds


# what a rejection looks at: an estimate of the KL of each action, or their sum, mean or largest along a sample
Rule = Literal[
    "token_k1", "token_k2", "token_k3",
    "seq_sum_k1", "seq_sum_k2", "seq_sum_k3",
    "seq_mean_k1", "seq_mean_k2", "seq_mean_k3",
    "seq_max_k2", "seq_max_k3",
]  # fmt: skip


@options
class OptimizerOptions:
    """The optimizer and its learning rate schedule."""

    name: Literal["adamw", "adamw_8bit", "muon"] = "adamw"
    """adamw; adamw_8bit keeps its moments in 8 bits, a quarter of their memory (bitsandbytes); muon steps along
    orthogonalised momentum for matrices, at AdamW's scale, and takes AdamW for embeddings, heads and the rest."""
    lr: LearningRate = 3e-4
    """Peak learning rate."""
    min_lr: NonNegative = 0.0
    """linear, cosine: learning rate that the decay ends at."""
    momentum: BelowOne = 0.95
    """muon: decay rate of its momentum (Nesterov)."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Decay rates of the first and second moment."""
    eps: Positive = 1e-8
    """Added to the denominator."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or a decay to min_lr at the last update."""
    schedule_updates: Count | None = None
    """linear, cosine, warmup_ratio: policy updates after which the decay is over; null uses steps. To extend a run with
    a decaying learning rate, set steps and this; it continues with the learning rate of a run of that length."""
    warmup_steps: Whole = 0
    """Optimizer steps of linear warm-up."""
    warmup_ratio: BelowOne = 0.0
    """The same as a fraction of the optimizer steps of the run, or of schedule_updates."""
    max_grad_norm: Positive | None = 1.0
    """Clip the gradient norm to this; null never clips."""

    offload: bool = False
    """Keep the optimizer's states in CPU memory and step there: a third to a half of the memory of trained weights, for
    a slower step. sharding.offload keeps them there with the weights."""

    @model_validator(mode="after")
    def _steps_make_sense(self) -> Self:
        if self.offload and self.name == "adamw_8bit":
            raise ValueError("offload is true and name is adamw_8bit, whose kernels need a GPU; leave one of them out")
        if self.lr * self.weight_decay >= 1:
            raise ValueError(
                f"lr x weight_decay is {self.lr * self.weight_decay:g}; it must be below 1, since every step shrinks "
                "the weights by that fraction; lower weight_decay"
            )
        if not self.has_length and self.schedule_updates is not None:
            raise ValueError("schedule_updates is never read when schedule is constant; leave it out")
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError("warmup_steps and warmup_ratio are both given; leave one of them out")
        if self.schedule == "constant" and self.min_lr != 0:
            raise ValueError("min_lr is never read when schedule is constant; leave it out, or set schedule to cosine")
        if self.min_lr >= self.lr:
            raise ValueError(f"min_lr is {self.min_lr:g} and lr is {self.lr:g}: there is no decay; lower min_lr")
        if self.name != "muon" and self.momentum != 0.95:
            raise ValueError(f"momentum is read by muon alone, and name is {self.name}; leave it out")
        return self

    @property
    def has_length(self) -> bool:
        """Whether the learning rate of a step depends on how many there are."""
        return self.schedule != "constant" or self.warmup_ratio > 0

    def warm_up(self, total_steps: int) -> int:
        """Optimizer steps of the warm-up, of N in all."""
        return self.warmup_steps or int(self.warmup_ratio * total_steps)


@options
class StepOptions:
    """Optimizer steps of an update, for both tasks."""

    mini_batch_size: Count | None = None
    """Samples per optimizer step; null uses all samples of the update (one step, strictly on-policy)."""
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Passes over the samples of one update."""
    shuffle: bool = True
    """Draw anew for every pass which samples make a mini-batch; false takes them in order, prompt by prompt."""
    max_skipped_updates: Whole = 3
    """Consecutive optimizer steps with a non-finite loss or gradient that are skipped before the run stops."""
    max_empty_updates: Whole = 3
    """Consecutive policy updates without training signal because rewards are missing, before the run stops; ten times
    as many where all rewards are present but equal."""
    expires_at: float | str | None = None
    """Time at which this (spot) machine will be reclaimed: ISO 8601 with a time zone, 2026-01-31T18:00:00+01:00, or
    Unix seconds. The run saves and stops before. null reads the environment variables that clouds set."""
    expiry_margin: NonNegative = 0.0
    """Seconds before expires_at at which the run has stopped, in addition to the time of a checkpoint."""
    peak_tflops: Positive | None = None
    """What a device could compute in the run's precision, in 10^12 operations per second: perf/mfu is the share of it
    that is used. null knows many GPUs by their names; where it doesn't, there is no perf/mfu."""

    @field_validator("expires_at")
    @classmethod
    def _expires_at_a_time(cls, value: float | str | None) -> float | str | None:
        if value is not None:
            unix_seconds(value)
        return value


@options
class EmaOptions:
    """Exponential moving average (EMA) of the trained weights, for validation and export."""

    decay: BelowOne = 0.9
    """EMA decay per optimizer step after warm-up."""
    kind: Literal["power", "constant", "linear", "piecewise_linear", "cosine", "warmup_cosine"] = "power"
    """Decay at optimizer step n: power: (1 + n) / (warm_up + n), as in flow_grpo; constant: decay at once; linear: from
    initial over warm_up steps; cosine: from initial along half a cosine over steps; warmup_cosine: up to initial over
    warm_up steps, then half a cosine until steps; piecewise_linear: 0 for flat steps, then up by ramp per step."""
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
    offload: bool = False
    """Keep the average in CPU memory, 4 bytes per trained weight, which is updated there after every optimizer step."""

    @model_validator(mode="after")
    def _options_are_read(self) -> Self:
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
class ScoringOptions:
    """How rewards are computed."""

    processes: Annotated[int, Field(ge=0, le=1024)] = 1
    """Processes that score while others sample, and share the samples; rewards with weights have one more per device.
    0 scores in the process that samples: a reward that ends it (os._exit, a crash) ends the run with its exit code."""
    timeout: Seconds = 300.0
    """Seconds that a reward may take per request, all tries included; after that its values are missing."""
    max_failures: Count | None = 1000
    """Samples in a row that a reward may fail for before the run saves a checkpoint and ends; null never ends it."""
    probe: bool = True
    """Score synthetic samples of the first prompts before training starts, and refuse a reward that fails."""


@options
class SuiteOptions:
    """Suites that a validation runs beside its own prompts."""

    suites: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Suites that every validation runs, too: names (burnish eval --list), or paths of .yaml files."""
    suite_prompts: Count | None = 32
    """Prompts of each suite that are used, always the same ones; null takes all."""

    @model_validator(mode="after")
    def _suites_are_there(self) -> Self:
        if not self.suites and self.suite_prompts != 32:
            raise ValueError("suite_prompts is never read without suites; leave it out, or name a suite")
        if len(set(self.suites)) < len(self.suites):
            raise ValueError("suites names one twice; leave one out")
        return self


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
