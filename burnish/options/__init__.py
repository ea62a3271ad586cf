"""The sections of a run's configuration, apart from the algorithm and the rewards, which bring their own options."""

from burnish.options.flow import (
    DataOptions,
    FilterOptions,
    LoraOptions,
    ModelOptions,
    RolloutOptions,
    SupervisedOptions,
    TrainerOptions,
    ValidationOptions,
)
from burnish.options.language import (
    CriticOptions,
    LanguageLoraOptions,
    LanguageModelOptions,
    LanguageRolloutOptions,
    LanguageTrainerOptions,
    LanguageValidationOptions,
    PtxOptions,
    SamplingOptions,
)
from burnish.options.pipeline import PipelineOptions
from burnish.options.profiler import ProfilerOptions
from burnish.options.ray import PoolsOptions, RayOptions
from burnish.options.sharding import ShardingOptions
from burnish.options.shared import (
    BelowOne,
    CheckpointOptions,
    Count,
    EmaOptions,
    Finite,
    Fraction,
    NonNegative,
    OptimizerOptions,
    Positive,
    ScoringOptions,
    StepOptions,
    Whole,
    unix_seconds,
)

__all__ = [
    "BelowOne",
    "CheckpointOptions",
    "Count",
    "CriticOptions",
    "DataOptions",
    "EmaOptions",
    "FilterOptions",
    "Finite",
    "Fraction",
    "LanguageLoraOptions",
    "LanguageModelOptions",
    "LanguageRolloutOptions",
    "LanguageTrainerOptions",
    "LanguageValidationOptions",
    "LoraOptions",
    "ModelOptions",
    "NonNegative",
    "OptimizerOptions",
    "PipelineOptions",
    "PoolsOptions",
    "Positive",
    "ProfilerOptions",
    "PtxOptions",
    "RayOptions",
    "RolloutOptions",
    "SamplingOptions",
    "ScoringOptions",
    "ShardingOptions",
    "StepOptions",
    "SupervisedOptions",
    "TrainerOptions",
    "ValidationOptions",
    "Whole",
    "unix_seconds",
]
