"""When checkpoints are saved."""

from __future__ import annotations

from typing import Any, Protocol

from burnish.config import RunConfig
from burnish.hooks import Hook
from burnish.hooks.validation import Validation
from burnish.rl.algorithm import Metrics


class Saver(Protocol):
    """Saves the state of a run; a controller does."""

    def save(self, update: int, score: float | None, unvalidated: Metrics | None) -> Any:
        """Save a checkpoint.

        Args:
            update: number of policy updates.
            score: validation reward, if there is one.
            unvalidated: metrics of the update, if its validation is still to be done; a resumed run begins with it.
        """
        ...

    def validated(self, update: int, score: float | None) -> None:
        """Record the finished validation of a checkpoint that was saved before it."""
        ...

    def raise_failed(self) -> None:
        """Raise the error of a checkpoint that could not be written in the background."""
        ...

    def settle(self) -> None:
        """Wait until the last checkpoint is written."""
        ...


class Checkpoints(Hook):
    """Saves every N updates, and when the run ends or is stopped.

    Where a validation is due, too, ``before_validation`` saves first, with a note that the validation is missing; its
    reward is recorded afterwards.
    """

    def __init__(
        self,
        config: RunConfig,
        saver: Saver,
        validation: Validation,
        *,
        early: bool = False,
        unvalidated: int | None = None,
    ) -> None:
        """Take over the schedule.

        Args:
            config: of the run.
            saver: of the checkpoints.
            validation: of the run.
            early: also save after the first update, to measure how long it takes.
            unvalidated: update whose checkpoint exists but lacks its validation.
        """
        self.saver, self.validation, self.early = saver, validation, early
        self.every, self.steps = config.checkpoint.every, config.steps
        self.last = 0  # update of this process
        self._unvalidated = unvalidated
        self._unsaved: tuple[int, float | None, Metrics | None] | None = None  # arguments of ``save``

    def before_validation(self, update: int, metrics: Metrics) -> None:
        """Save before the validation of an update, if both are due."""
        if update > 0 and self._unvalidated != update and self.validation.due(update) and self._due(update):
            self._save(update, None, dict(metrics))
            self._unvalidated = update

    def __call__(self, update: int, metrics: Metrics) -> None:
        if update == 0:  # nothing is trained yet: a run that is killed here starts again
            return
        self.saver.raise_failed()
        self.last = update
        unfinished, score = self.validation.unfinished, validation_reward(metrics)
        if self._unvalidated == update:
            if not unfinished:
                self.saver.validated(update, score)
            return
        self._unsaved = (update, score, dict(metrics) if unfinished else None)
        if self._due(update):
            self._save(*self._unsaved)

    def finish(self) -> None:
        if self._unsaved is not None:
            self._save(*self._unsaved)
        self.saver.settle()

    def _due(self, update: int) -> bool:
        return update % self.every == 0 or update == self.steps or self.early

    def _save(self, update: int, score: float | None, unvalidated: Metrics | None) -> None:
        self.saver.save(update, score, unvalidated)
        self._unsaved, self.early = None, False


class BeforeValidation(Hook):
    """Saves checkpoints before a validation; it stands before ``Validation`` in the list of hooks."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        self.checkpoints.before_validation(update, metrics)


def validation_reward(metrics: Metrics) -> float | None:
    """Mean validation reward over all data sources; None if this update was not validated."""
    found = [v for k, v in metrics.items() if k.startswith("val-core/") and "/reward/mean@" in k]
    return sum(found) / len(found) if found else None
