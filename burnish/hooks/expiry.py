"""Stops a run before its (spot) machine is reclaimed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from burnish.hooks import Hook
from burnish.hooks.stop import StopRequest
from burnish.options import StepOptions, unix_seconds
from burnish.utils.errors import UserError

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


def reclaim_time(
    options: StepOptions, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.time
) -> ReclaimTime | None:
    """The time of the options, else the earliest of the environment; None if there is none.

    Raises:
        UserError: it is no time, or past.
    """
    if options.walltime is not None:
        found = [ReclaimTime(at=unix_seconds(options.walltime), by="trainer.walltime")]
    else:
        found = [_of_variable(name, environment[name]) for name in VARIABLES if environment.get(name)]
    if not found:
        return None
    first = min(found, key=lambda one: one.at)
    if first.at <= clock():
        raise UserError(
            f"the time at which this machine will be reclaimed is past: {first}; correct {first.by}, or unset it if it "
            "belongs to an earlier machine"
        )
    return first


def _of_variable(name: str, value: str) -> ReclaimTime:
    try:
        return ReclaimTime(at=unix_seconds(float(value)), by=name)
    except ValueError:
        raise UserError(f"{name} is {value!r}, which is not Unix seconds; unset it, or correct it") from None


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
