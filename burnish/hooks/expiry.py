"""An announced end of the machine: the run saves and stops while there is time for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from burnish.hooks.base import Hook
from burnish.hooks.stop import StopRequest
from burnish.options import StepOptions, unix_seconds
from burnish.utils.errors import UserError

VARIABLES = (  # which verl reads, too
    "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
    "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
)


@dataclass(frozen=True, kw_only=True)
class Announced:
    """When the machine is taken away, and who says so."""

    at: float  # Unix seconds
    by: str  # an option or a variable of the environment

    def __str__(self) -> str:
        return f"{datetime.fromtimestamp(self.at, UTC):%Y-%m-%d %H:%M:%S} UTC ({self.by})"


def announced(
    options: StepOptions, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.time
) -> Announced | None:
    """What the options say, else the earlier of what the environment says; None if nobody announces anything.

    Raises:
        UserError: that is no moment, or it is past, so that it can't be this machine's.
    """
    if options.expires_at is not None:
        found = [Announced(at=unix_seconds(options.expires_at), by="trainer.expires_at")]
    else:
        found = [_of_variable(name, environment[name]) for name in VARIABLES if environment.get(name)]
    if not found:
        return None
    first = min(found, key=lambda one: one.at)
    if first.at <= clock():
        raise UserError(
            f"the machine's announced expiry is past: {first}; correct {first.by}, or leave it out if it belongs to an "
            "earlier machine"
        )
    return first


def _of_variable(name: str, value: str) -> Announced:
    try:
        return Announced(at=unix_seconds(float(value)), by=name)
    except ValueError:
        raise UserError(f"{name} is {value!r}, which is not Unix seconds; unset it, or correct it") from None


class Expiry(Hook):
    """Asks the run to stop after the update behind which another one might not fit any more.

    What an update takes is what the longest one of this process took, with the hooks after it: so this is the last of
    the hooks. An update that takes longer than all before can still be given up while its samples are made.
    """

    def __init__(
        self,
        expected: Announced | None,
        stop: StopRequest,
        *,
        margin: float,
        saving: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Get to know the end.

        Args:
            expected: when it is; None where nobody announces one, and nothing is asked.
            stop: who is asked.
            margin: seconds to be gone before it.
            saving: how many seconds it takes to have everything saved.
            clock: Unix seconds.
        """
        self.expected, self.stop, self.margin, self.saving, self.clock = expected, stop, margin, saving, clock
        self._since, self._longest = 0.0, 0.0

    def start(self, done: int) -> None:
        self._since = self.clock()

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        now = self.clock()
        if update > 0:  # judging the untrained model is no update
            self._longest = max(self._longest, now - self._since)
        self._since = now
        self.due(self._longest)

    def due(self, seconds: float = 0.0) -> bool:
        """Whether there is no time any more for so many seconds and for saving; if so, the stop is asked for."""
        if self.expected is None:
            return False
        late = self.clock() + seconds + self.saving() + self.margin > self.expected.at
        if late:
            self.stop.request(f"the machine's expiry at {self.expected}")
        return late
