"""When a run is validated, when its checkpoints are saved, and when it ends with its machine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.hooks import Hook
from burnish.hooks.stop import StopRequest
from burnish.options import StepOptions, unix_seconds
from burnish.rl.algorithm import Metrics
from burnish.utils.disk import writing
from burnish.utils.errors import Cancelled, UserError

if TYPE_CHECKING:
    from burnish.controller import Controller

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
            text = json.dumps({"guidance_scale": scale} | metrics, indent=1)
            with writing(self.folder.reference):
                (self.folder.reference / "metrics.json").write_text(text)

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
        validation.before = self._before_validation

    def _before_validation(self, update: int, metrics: Metrics) -> None:
        if update > 0 and self._unvalidated != update and self._due(update):
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


def validation_reward(metrics: Metrics) -> float | None:
    """Mean validation reward over all data sources; None if this update was not validated."""
    rewards = [v for k, v in metrics.items() if k.startswith("val-core/") and "/reward/mean@" in k]
    return sum(rewards) / len(rewards) if rewards else None


VARIABLES = (
    "SLURM_JOB_END_TIME",  # of the job's time limit
    # also read by verl
    "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
    "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
)


@dataclass(frozen=True, kw_only=True)
class ReclaimTime:
    """When the machine will be reclaimed, and the option or environment variable that says so."""

    at: float  # Unix seconds
    by: str

    def __str__(self) -> str:
        return f"{datetime.fromtimestamp(self.at, UTC):%Y-%m-%d %H:%M:%S} UTC ({self.by})"


def reclaim_time(options: StepOptions) -> ReclaimTime | None:
    """The time of the options, else the earliest of the environment; None if there is none.

    Raises:
        UserError: it is no time, or past.
    """
    times = []
    if options.walltime is not None:
        times = [ReclaimTime(at=unix_seconds(options.walltime), by="trainer.walltime")]
    else:
        for name in VARIABLES:
            if value := os.environ.get(name):
                try:
                    times.append(ReclaimTime(at=unix_seconds(float(value)), by=name))
                except ValueError:
                    raise UserError(
                        f"{name} is {value!r}, which is not Unix seconds; unset it, or correct it"
                    ) from None
    first = min(times, key=lambda one: one.at, default=None)
    if first is not None and first.at <= time.time():
        raise UserError(
            f"the time at which this machine will be reclaimed is past: {first}; correct {first.by}, or unset it if it "
            "belongs to an earlier machine"
        )
    return first


class Expiry(Hook):
    """Requests a stop when another update would not fit before the machine is reclaimed.

    The expected time of an update is the longest one so far, including hooks, so this is the last hook. An update that
    takes longer than that can still be cancelled while it samples.
    """

    def __init__(
        self,
        expected: ReclaimTime | None,
        stop: StopRequest,
        *,
        margin: float,
        saving: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set the deadline.

        Args:
            expected: when the machine will be reclaimed; None disables this hook.
            stop: of the run.
            margin: seconds before ``expected`` at which the run has stopped.
            saving: expected seconds of a checkpoint.
            clock: Unix seconds.
        """
        self.expected, self.stop, self.margin, self.saving, self.clock = expected, stop, margin, saving, clock
        self._since, self._longest = 0.0, 0.0

    def start(self, done: int) -> None:
        self._since = self.clock()

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        now = self.clock()
        if update > 0:  # the first validation is no update
            self._longest = max(self._longest, now - self._since)
        self._since = now
        self.due(self._longest)

    def due(self, seconds: float = 0.0) -> bool:
        """Whether ``seconds`` and a checkpoint no longer fit before the deadline; if so, request a stop."""
        if self.expected is None:
            return False
        late = self.clock() + seconds + self.saving() + self.margin > self.expected.at
        if late:
            self.stop.request(f"the machine's expiry at {self.expected}")
        return late
