"""When a run is validated, and when its checkpoints are saved."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from burnish.alarms.actions import Action
from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.controller import Controller
from burnish.hooks import Hook
from burnish.rl.algorithm import Metrics
from burnish.utils.disk import write_atomically
from burnish.utils.errors import Cancelled

Evaluate = Callable[[Path, float | None], Metrics]  # of a folder for samples and a guidance scale, None for the run's


class Validation(Hook):
    """Evaluates the policy before training, every N updates, and after the last one, as far as the options say."""

    def __init__(self, config: RunConfig, folder: RunFolder, evaluate: Evaluate) -> None:
        self.config, self.folder, self.evaluate = config, folder, evaluate
        self.unfinished = False  # whether a stop cancelled the last one
        self.before: Callable[[int, Metrics], None] = lambda update, metrics: None  # called where one is due

    def start(self, done: int) -> None:
        """Evaluate the untrained model with guidance, as a baseline."""
        scale = self.config.reference_guidance
        if not done and scale is not None:
            metrics = self.evaluate(self.folder.reference, scale)
            content = json.dumps({"guidance_scale": scale} | metrics, indent=1)
            write_atomically(self.folder.reference / "metrics.json", content.encode())

    def due(self, update: int) -> bool:
        """Whether the policy is evaluated after this update."""
        options = self.config.validation
        if update == 0:
            return bool(options.before)
        if options.every is None:
            return False
        return update == self.config.steps or bool(options.every and update % options.every == 0)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if not self.due(update):
            return
        self.before(update, metrics)
        start = time.perf_counter()
        try:
            metrics |= self.evaluate(self.folder.validation(update), None)
        except Cancelled:
            self.unfinished = True
        else:
            metrics["timing_s/testing"] = time.perf_counter() - start


class Checkpoints(Hook):
    """Saves every N updates, and when the run ends or is stopped.

    Where a validation is due, too, it saves first, with a note that the validation is missing; its reward is recorded
    afterwards.
    """

    def __init__(
        self,
        config: RunConfig,
        saver: Controller,
        validation: Validation,
        *,
        early: bool = False,
        unvalidated: int | None = None,
        untrained: bool = False,
        decided: Sequence[Action] = (),
    ) -> None:
        """Take over the schedule.

        Args:
            config: of the run.
            saver: of the checkpoints.
            validation: of the run.
            early: also save after the first update, to measure how long it takes.
            unvalidated: update whose checkpoint exists but lacks its validation.
            untrained: also save before the first update, so that a run can be rewound to its beginning.
            decided: what alarms do now; where the run goes back, nothing is saved that pushes a checkpoint out.
        """
        self.saver, self.validation, self.early = saver, validation, early
        self.every, self.steps, self.untrained = config.checkpoint.every, config.steps, untrained
        self.decided, self.last = decided, 0  # update of this process
        self._unvalidated = unvalidated
        self._unsaved: tuple[int, float | None, Metrics | None] | None = None  # arguments of ``save``
        validation.before = self._before_validation

    def _before_validation(self, update: int, metrics: Metrics) -> None:
        if update > 0 and self._unvalidated != update and self._due(update):
            self._save(update, None, dict(metrics))
            self._unvalidated = update

    def __call__(self, update: int, metrics: Metrics) -> None:
        if update == 0 and not self.untrained:  # nothing is trained yet: a run that is killed here starts again
            return
        self.saver.raise_failed()
        self.last = update
        if any(one.kind == "rewind" for one in self.decided):
            self._unsaved = None
            return
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


def validation_reward(metrics: Metrics) -> float | None:
    """Mean validation reward over all data sources; None if this update was not validated."""
    rewards = [v for k, v in metrics.items() if k.startswith("val-core/") and "/reward/mean@" in k]
    return sum(rewards) / len(rewards) if rewards else None
