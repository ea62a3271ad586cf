"""Options of alarms."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from burnish.options import Count, NonNegative, Positive
from burnish.registry import options

Level = Literal[
    "missing_rewards", "constant_reward", "saturation", "group_collapse", "ratio", "mismatch", "clip_fraction", "kl",
    "stale_samples", "velocity", "entropy_collapse", "entropy_growth", "variety_collapse", "gradient",
    "unfamiliar_form",
]  # fmt: skip


@options
class AlarmOptions:
    """When a run says that something has moved that it should not."""

    shift: Positive = 2.0
    """How far the mean of a watched statistic has to move, in standard deviations of the first samples. Where the
    reward pays for it, less is enough: (1 - correlation with the reward among samples of a prompt) times as far."""
    false_alarms: Annotated[float, Field(gt=0, le=0.5)] = 0.001
    """Largest probability that a statistic whose distribution doesn't change raises an alarm at any time of a run."""
    updates: Count = 3
    """Policy updates in a row for which a metric has to be beyond its limit."""
    limits: dict[Level, NonNegative] = Field(default_factory=dict)
    """Other limits of single metrics, by the alarm's name: {clip_fraction: 0.9}."""
    off: list[str] = Field(default_factory=list)
    """Names of alarms that are never raised, of watched statistics or of metrics: [latent_norm, gradient]."""
