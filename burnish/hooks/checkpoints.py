"""Writes what a killed run can go on from."""

from __future__ import annotations

from collections.abc import Callable

from burnish.algorithms.base import Metrics
from burnish.config import RunConfig
from burnish.hooks.base import Hook

Save = Callable[[int, float | None], object]  # by policy updates, and by the validation reward if they were judged


class Checkpoints(Hook):
    """Every so many updates, at the end, and when the run is asked to stop."""

    def __init__(self, config: RunConfig, save: Save, *, stop: Callable[[], bool]) -> None:
        self.save, self.stop = save, stop
        self.every, self.last = config.checkpoint.every, config.steps

    def __call__(self, update: int, metrics: Metrics) -> None:
        if update == 0:  # nothing is trained yet: a run that is killed here begins again
            return
        if update % self.every == 0 or update == self.last or self.stop():
            self.save(update, validation_reward(metrics))


def validation_reward(metrics: Metrics) -> float | None:
    """The mean validation reward over all data sources, if this update was judged."""
    found = [v for k, v in metrics.items() if k.startswith("val-core/") and "/reward/mean@" in k]
    return sum(found) / len(found) if found else None
