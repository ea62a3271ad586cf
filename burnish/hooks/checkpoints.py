"""Writes what a killed run can go on from."""

from __future__ import annotations

from typing import Any, Protocol

from burnish.algorithms.base import Metrics
from burnish.config import RunConfig
from burnish.hooks.base import Hook


class Saver(Protocol):
    """Who can save everything that a run goes on from."""

    def save(self, update: int, score: float | None, unvalidated: Metrics | None) -> Any:
        """Write it, after so many policy updates.

        Args:
            update: how many.
            score: the validation reward, if they were judged.
            unvalidated: the metrics of the last one, if its validation is due and not done: a run that goes on from
                here begins with it.
        """
        ...

    def validated(self, update: int, score: float | None) -> None:
        """Write down that the validation is done that was not when it was saved."""
        ...

    def settle(self) -> None:
        """Wait until it is written."""
        ...


class Judging(Protocol):
    """What the validation tells of itself."""

    given_up: bool  # the last one that was due is still to be done

    def due(self, update: int) -> bool:
        """Whether there is one after so many updates."""
        ...


class Checkpoints(Hook):
    """Every so many updates, and when the run ends or is stopped.

    What was learned is safe before it is judged: where both are due, ``ahead`` saves first, and what is saved knows
    that its validation is missing. The reward is written down when it is there.
    """

    def __init__(
        self, config: RunConfig, saver: Saver, judging: Judging, *, early: bool = False, unvalidated: int | None = None
    ) -> None:
        """Know when to save.

        Args:
            config: of the run.
            saver: who does it.
            judging: the validation.
            early: also write one after the first update, to know how long that takes.
            unvalidated: the update that is saved already but for its validation.
        """
        self.saver, self.judging, self.early = saver, judging, early
        self.every, self.steps = config.checkpoint.every, config.steps
        self.last = 0  # update of this process
        self._ahead = unvalidated
        self._unsaved: tuple[int, float | None, Metrics | None] | None = None  # as ``save`` takes it

    def ahead(self, update: int, metrics: Metrics) -> None:
        """Before the validation of an update."""
        if update > 0 and self._ahead != update and self.judging.due(update) and self._due(update):
            self._save(update, None, dict(metrics))
            self._ahead = update

    def __call__(self, update: int, metrics: Metrics) -> None:
        if update == 0:  # nothing is trained yet: a run that is killed here begins again
            return
        self.last = update
        given_up, score = self.judging.given_up, validation_reward(metrics)
        if self._ahead == update:
            if not given_up:
                self.saver.validated(update, score)
            return
        self._unsaved = (update, score, dict(metrics) if given_up else None)
        if self._due(update):
            self._save(*self._unsaved)

    def finish(self) -> None:
        if self._unsaved is not None:
            self._save(*self._unsaved)
        self.saver.settle()

    @property
    def saved(self) -> bool:
        """Whether everything is saved that this process has learned."""
        return self._unsaved is None

    def _due(self, update: int) -> bool:
        return update % self.every == 0 or update == self.steps or self.early

    def _save(self, update: int, score: float | None, unvalidated: Metrics | None) -> None:
        self.saver.save(update, score, unvalidated)
        self._unsaved, self.early = None, False


class Ahead(Hook):
    """The place before the validation at which checkpoints are written that would be due after it."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        self.checkpoints.ahead(update, metrics)


def validation_reward(metrics: Metrics) -> float | None:
    """The mean validation reward over all data sources, if this update was judged."""
    found = [v for k, v in metrics.items() if k.startswith("val-core/") and "/reward/mean@" in k]
    return sum(found) / len(found) if found else None
