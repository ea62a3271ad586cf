"""Missing rewards: records their causes, and stops a run that gets no training signal."""

from __future__ import annotations

import json
import logging

from burnish.config.run_folder import RunFolder
from burnish.hooks import Hook
from burnish.options import StepOptions
from burnish.types.rollout import Collected, Failure, Rollouts
from burnish.utils.errors import UserError

log = logging.getLogger(__name__)

MOST_LINES = 1000  # of failures.jsonl by one process
PATIENCE = 10  # times the limit, where no reward is missing but all are equal


class NothingLearned(UserError):
    """Consecutive updates had no training signal."""


class Failures(Hook):
    """Observes every batch, and every update."""

    def __init__(self, folder: RunFolder, options: StepOptions, *, steps: int) -> None:
        """Args: ``steps`` is the number of updates of the run."""
        self.folder, self.limit, self.steps = folder, options.max_empty_updates, steps
        self._empty: list[bool] = []  # consecutive updates without training signal: whether rewards were missing
        self._unvalidated = 0  # consecutive validations without any reward
        self._learned = False  # whether any update had a training signal
        self._update = 0
        self._last: Failure | None = None
        self._current: list[Failure] = []
        self._lines, self._traced = 0, False

    def start(self, done: int) -> None:
        self._learned = done > 0

    def observe(self, update: int, collected: Collected) -> None:
        """Record the missing rewards of a batch."""
        self._current = collected.failures if isinstance(collected, Rollouts) else []
        for failure in self._current:
            self._last = failure
            if failure.traceback and not self._traced:
                self._traced = True
                log.warning("first error of a reward, at update %d:\n%s", update, failure.traceback)
        self._write(update)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if "val-aux/missing" in metrics:
            self._unvalidated = self._unvalidated + 1 if metrics["val-aux/missing"] == 1 else 0
            if self._unvalidated > self.limit:
                raise NothingLearned(
                    f"{self._unvalidated} validations in a row have no reward at all (trainer.max_empty_updates="
                    f"{self.limit}); {self._advice()}"
                )
        if update == 0:
            return
        self._update = update
        if not (metrics.get("actor/empty_updates", 0.0) > 0 and "actor/loss" not in metrics):
            self._empty, self._learned = [], True
            return
        self._empty.append(bool(self._current))
        if sum(self._empty) > self.limit or len(self._empty) > PATIENCE * self.limit:
            raise NothingLearned(self._complaint(f"{len(self._empty)} updates in a row have"))

    def finish(self) -> None:
        if self._update == self.steps and not self._learned:
            raise NothingLearned(self._complaint("all updates have"))

    def _complaint(self, what: str) -> str:
        begin = f"{what} no training signal (trainer.max_empty_updates={self.limit}): "
        if self._last is None:
            return (
                f"{begin}no reward is missing, but those of each prompt are all equal, or all samples were rejected; "
                "check critic/rewards and train/ in metrics.jsonl, or raise the limit"
            )
        why = " ".join(self._last.why.split())
        return f"{begin}rewards are missing, the last one for {self._last.prompt}: {why}; {self._advice()}"

    def _advice(self) -> str:
        log_file = f" (all failures are in {self.folder.failures})" if self._lines else ""
        return (
            f"fix the reward{log_file}, and run the same command again: it resumes from the last checkpoint, if there "
            "is one"
        )

    def _write(self, update: int) -> None:
        lines = [json.dumps({"update": update} | vars(failure)) for failure in self._current]
        lines = lines[: max(MOST_LINES - self._lines, 0)]
        if not lines:
            return
        self._lines += len(lines)
        with self.folder.failures.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
