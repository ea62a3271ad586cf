"""The configuration of a run: its sections, and the checks that need more than one of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from burnish.algorithms.base import Algorithm
from burnish.options import (
    CheckpointOptions,
    Count,
    DataOptions,
    EmaOptions,
    ModelOptions,
    OptimizerOptions,
    RolloutOptions,
    ScoringOptions,
    TrainerOptions,
    ValidationOptions,
    Whole,
)
from burnish.registry import options
from burnish.rewards.base import Reward


@options
class RunConfig:
    """Everything that decides what a run does."""

    model: ModelOptions
    data: DataOptions
    algorithm: Algorithm
    rewards: dict[str, Reward]
    rollout: RolloutOptions = Field(default_factory=RolloutOptions)
    optimizer: OptimizerOptions = Field(default_factory=OptimizerOptions)
    trainer: TrainerOptions = Field(default_factory=TrainerOptions)
    ema: EmaOptions | None = None
    """Average the trained weights for validation and export; null uses the trained weights themselves."""
    validation: ValidationOptions = Field(default_factory=ValidationOptions)
    checkpoint: CheckpointOptions = Field(default_factory=CheckpointOptions)
    scoring: ScoringOptions = Field(default_factory=ScoringOptions)
    steps: Count = 100
    """Policy updates."""
    seed: Whole = 0
    """Seed of every random draw."""
    output_dir: str = "runs/latest"
    """Folder of the run: metrics, pictures, checkpoints, report."""
    resume: str = "auto"
    """auto goes on from the newest whole checkpoint in output_dir if there is one; never starts anew and refuses a
    folder that has a run in it; a path goes on from that checkpoint."""
    threads: Count = 1
    """CPU threads of the trainer; part of what makes two runs equal bit by bit."""
    runtime: Literal["local"] = "local"
    """Where the run's workers live: local is this process."""
