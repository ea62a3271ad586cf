"""Trackers of a run: they get every update, and at the end some time to send what is left."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from threading import Thread, main_thread

from burnish.config import RunConfig
from burnish.config.run_folder import RunFolder
from burnish.hooks import Hook
from burnish.trackers.delivery import Delivery

log = logging.getLogger(__name__)

STOPPED = 10.0  # seconds that a run which was stopped, or failed, waits for its trackers
AT_EXIT = 30.0  # seconds that libraries which did not end in time have when the process ends


class Trackers(Hook):
    """Stands behind ``MetricsLog``, ``Validation`` and ``Alarms``, whose files trackers read."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, unfinished: Callable[[], bool], *, resumed_at: int | None
    ) -> None:
        """Choose them.

        Args:
            config: of the run.
            folder: of the run.
            unfinished: whether a stop cancelled the last validation, so that its update comes again.
            resumed_at: last update whose metrics are recorded; None for a new run.
        """
        options = config.trackers
        self.unfinished, self.resumed_at, self.wait, self.steps = unfinished, resumed_at, options.wait, config.steps
        self._last, self._outcome = 0, "failed"
        kinds = [*options.libraries(), *(["tensorboard"] if options.tensorboard else [])]
        self._deliveries = [Delivery(kind, config, folder) for kind in kinds]

    def start(self, done: int) -> None:
        self._last = done
        for delivery in self._deliveries:
            delivery.start(-1 if self.resumed_at is None else self.resumed_at)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        self._last = update
        if not self.unfinished():
            for delivery in self._deliveries:
                delivery.put(update, metrics)

    def finish(self) -> None:
        self._outcome = "finished" if self._last >= self.steps and not self.unfinished() else "stopped"

    def close(self) -> None:
        """Give trackers some time to send what is left."""
        seconds = self.wait if self._outcome == "finished" else min(self.wait, STOPPED)
        for delivery in self._deliveries:
            delivery.end(self._outcome)
        deadline = time.monotonic() + seconds
        for delivery in self._deliveries:
            if not delivery.ended.wait(max(deadline - time.monotonic(), 0)) or delivery.missing:
                what = f"{delivery.missing} updates are not sent" if delivery.missing else "it was not closed"
                why = delivery.problem or f"it took longer than {seconds:g} s (trackers.wait)"
                log.warning("trackers.%s: %s: %s; the same command sends what is left", delivery.kind, what, why)
        if not all(delivery.ended.is_set() for delivery in self._deliveries):
            Thread(target=_leave, args=(self._outcome != "finished",), daemon=True).start()


def _leave(status: int) -> None:
    """End the process where what a library does at exit hangs."""
    main_thread().join()
    time.sleep(AT_EXIT)
    os._exit(status)
