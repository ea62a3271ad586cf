"""Writes what a killed run can go on from."""

from __future__ import annotations

from burnish.algorithms.base import Metrics
from burnish.hooks.base import Hook
from burnish.session import Session
from burnish.workers.checkpoint import CheckpointStore


class Checkpoints(Hook):
    """Every so many updates, and when the run ends or is stopped."""

    def __init__(self, session: Session, store: CheckpointStore, *, early: bool = False) -> None:
        """Args: ``early`` also writes one after the first update, to know how long that takes."""
        self.session, self.store, self.early = session, store, early
        self.every, self.last = session.config.checkpoint.every, session.config.steps
        self._unsaved: tuple[int, float | None] | None = None  # the last update, and its validation reward

    def __call__(self, update: int, metrics: Metrics) -> None:
        if update == 0:  # nothing is trained yet: a run that is killed here begins again
            return
        self._unsaved = (update, validation_reward(metrics))
        if update % self.every == 0 or update == self.last or self.early:
            self._save(*self._unsaved)

    def finish(self) -> None:
        if self._unsaved is not None:
            self._save(*self._unsaved)
        self.store.wait()

    def _save(self, update: int, score: float | None) -> None:
        self.store.save(update, self.session.state_dict(), identity=self.session.identity, score=score)
        self._unsaved, self.early = None, False


def validation_reward(metrics: Metrics) -> float | None:
    """The mean validation reward over all data sources, if this update was judged."""
    found = [v for k, v in metrics.items() if k.startswith("val-core/") and "/reward/mean@" in k]
    return sum(found) / len(found) if found else None
