"""Watches over rewards that are missing: names them, keeps their tracebacks, and stops a run that learns nothing."""

from __future__ import annotations

import json
import logging
from typing import Any

from burnish.config.run_folder import RunFolder
from burnish.hooks.base import Hook
from burnish.options import StepOptions
from burnish.rollout.base import Source
from burnish.types.rollout import Collected, Failure, Rollouts
from burnish.utils.errors import UserError

log = logging.getLogger(__name__)

KEPT = 1000  # lines that one process writes
PATIENCE = 10  # times as long, where samples have rewards, but such that nothing is to be learned from them


class NothingLearned(UserError):
    """Update after update, nothing could be learned."""


class Failures(Hook):
    """Is told of every batch by ``watched``, and of every update as a hook."""

    def __init__(self, folder: RunFolder, options: StepOptions, *, steps: int) -> None:
        """Args: ``steps`` are the updates of the run."""
        self.folder, self.limit, self.steps = folder, options.max_empty_updates, steps
        self._empty: list[bool] = []  # updates in a row that learned nothing: whether rewards were missing
        self._unjudged = 0  # validations in a row
        self._learned = False  # whether any update learned something, as far as this process knows
        self._update = 0
        self._last: Failure | None = None
        self._current: list[Failure] = []
        self._lines, self._traced = 0, False

    def start(self, done: int) -> None:
        self._learned = done > 0

    def watched(self, source: Source) -> Source:
        """The same source, whose batches are looked at."""
        return _Watched(source, self)

    def see(self, update: int, collected: Collected) -> None:
        """Note what is missing in a batch."""
        self._current = collected.failures if isinstance(collected, Rollouts) else []
        for failure in self._current:
            self._last = failure
            if failure.traceback and not self._traced:
                self._traced = True
                log.warning("the first error of a reward, at update %d:\n%s", update, failure.traceback)
        self._keep(update)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if "val-aux/missing" in metrics:
            self._unjudged = self._unjudged + 1 if metrics["val-aux/missing"] == 1 else 0
            if self._unjudged > self.limit:
                raise NothingLearned(
                    f"{self._unjudged} validations in a row have no reward at all (trainer.max_empty_updates="
                    f"{self.limit}); {self._where()}"
                )
        if update == 0:
            return
        self._update = update
        if not is_empty(metrics):
            self._empty, self._learned = [], True
            return
        self._empty.append(bool(self._current))
        if sum(self._empty) > self.limit or len(self._empty) > PATIENCE * self.limit:
            raise NothingLearned(self._complaint(f"{len(self._empty)} updates in a row have"))

    def finish(self) -> None:
        if self._update == self.steps and not self._learned:
            raise NothingLearned(self._complaint("all updates have"))

    def _complaint(self, what: str) -> str:
        begin = f"{what} learned nothing (trainer.max_empty_updates={self.limit}): "
        if self._last is None:
            return (
                f"{begin}every sample has a reward, but those of a prompt are all equal, or all samples were rejected; "
                "look at critic/rewards and train/ in metrics.jsonl, or raise the limit"
            )
        last = self._last
        return (
            f"{begin}rewards are missing, the last one for {last.prompt}: {' '.join(last.why.split())}; {self._where()}"
        )

    def _where(self) -> str:
        tracebacks = f" (all that is missing is in {self.folder.failures})" if self._lines else ""
        return (
            f"put the reward right{tracebacks}, and run the same command again: it goes on from the last checkpoint, "
            "if there is one"
        )

    def _keep(self, update: int) -> None:
        lines = [json.dumps({"update": update} | vars(failure)) for failure in self._current]
        lines = lines[: max(KEPT - self._lines, 0)]
        if not lines:
            return
        self._lines += len(lines)
        with self.folder.failures.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


def is_empty(metrics: dict[str, float]) -> bool:
    """Whether an update had nothing to learn from."""
    return metrics.get("actor/empty_updates", 0.0) > 0 and "actor/loss" not in metrics


class _Watched:
    def __init__(self, source: Source, failures: Failures) -> None:
        self._source, self._failures = source, failures

    def collect(self, update: int) -> Collected:
        collected = self._source.collect(update)
        self._failures.see(update, collected)
        return collected

    def state_dict(self) -> dict[str, Any]:
        return self._source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state)
