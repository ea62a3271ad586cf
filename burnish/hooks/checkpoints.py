"""Writes what a killed run can go on from."""

from __future__ import annotations

from collections.abc import Callable

from burnish.algorithms.base import Metrics
from burnish.hooks.base import Hook
from burnish.session import Session
from burnish.workers.checkpoint import CheckpointStore


class Checkpoints(Hook):
    """Every so many updates, at the end, and when the run is asked to stop."""

    def __init__(self, session: Session, store: CheckpointStore, *, stop: Callable[[], bool]) -> None:
        self.session, self.store, self.stop = session, store, stop
        self.every, self.last = session.config.checkpoint.every, session.config.steps

    def __call__(self, update: int, metrics: Metrics) -> None:
        if update == 0:  # nothing is trained yet: a run that is killed here begins again
            return
        if update % self.every == 0 or update == self.last or self.stop():
            self.store.save(
                update, self.session.state_dict(), identity=self.session.identity, score=validation_reward(metrics)
            )


def validation_reward(metrics: Metrics) -> float | None:
    """The mean validation reward over all data sources, if this update was judged."""
    found = [v for k, v in metrics.items() if k.startswith("val-core/") and "/reward/mean@" in k]
    return sum(found) / len(found) if found else None
