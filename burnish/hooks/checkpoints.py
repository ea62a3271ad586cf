"""Writes what a killed run can go on from."""

from __future__ import annotations

from typing import Any, Protocol

from burnish.algorithms.base import Metrics
from burnish.config import RunConfig
from burnish.hooks.base import Hook


class Saver(Protocol):
    """Who can save everything that a run goes on from."""

    def save(self, update: int, score: float | None) -> Any:
        """Write it, after so many policy updates, with the validation reward if they were judged."""
        ...

    def settle(self) -> None:
        """Wait until it is written."""
        ...


class Checkpoints(Hook):
    """Every so many updates, and when the run ends or is stopped."""

    def __init__(self, config: RunConfig, saver: Saver, *, early: bool = False) -> None:
        """Args: ``early`` also writes one after the first update, to know how long that takes."""
        self.saver, self.early = saver, early
        self.every, self.steps = config.checkpoint.every, config.steps
        self.last = 0  # update of this process
        self._unsaved: tuple[int, float | None] | None = None  # that update, and its validation reward

    def __call__(self, update: int, metrics: Metrics) -> None:
        if update == 0:  # nothing is trained yet: a run that is killed here begins again
            return
        self.last = update
        self._unsaved = (update, validation_reward(metrics))
        if update % self.every == 0 or update == self.steps or self.early:
            self._save(*self._unsaved)

    def finish(self) -> None:
        if self._unsaved is not None:
            self._save(*self._unsaved)
        self.saver.settle()

    def _save(self, update: int, score: float | None) -> None:
        self.saver.save(update, score)
        self._unsaved, self.early = None, False


def validation_reward(metrics: Metrics) -> float | None:
    """The mean validation reward over all data sources, if this update was judged."""
    found = [v for k, v in metrics.items() if k.startswith("val-core/") and "/reward/mean@" in k]
    return sum(found) / len(found) if found else None
