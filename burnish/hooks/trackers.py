"""Trackers of a run: told after every update that there is something to send."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any

from burnish.config import RunConfig, to_dict
from burnish.config.run_folder import RunFolder
from burnish.hooks import Hook
from burnish.options.trackers import TrackersOptions
from burnish.utils.feed import Feed, Timing, end_all
from burnish.utils.feed_process import Outcome

log = logging.getLogger(__name__)

STOPPED = 10.0  # seconds that a run which was stopped, or failed, waits for its trackers
MODULE = "burnish.trackers.worker"
QUIET = {  # a library in a process without a terminal has nobody to print to
    "WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "GRADIO_ANALYTICS_ENABLED": "False",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}  # fmt: skip


class Trackers(Hook):
    """Stands behind ``MetricsLog`` and ``Validation``, whose files trackers read."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        unfinished: Callable[[], bool],
        *,
        resumed_at: int | None,
        timing: Timing | None = None,
    ) -> None:
        """Choose them.

        Args:
            config: of the run.
            folder: of the run.
            unfinished: whether a stop cancelled the last validation, so that its update comes again.
            resumed_at: last update whose metrics are recorded; None for a new run.
            timing: of failures.
        """
        self.options, self.unfinished, self.resumed_at = config.trackers, unfinished, resumed_at
        self.steps, self._last = config.steps, 0
        self._outcome: Outcome = "failed"
        self._feeds = [
            Feed(f"trackers.{kind}", MODULE, told(kind, config, folder), timing or Timing(), environment=QUIET)
            for kind in chosen(config.trackers)
        ]

    def start(self, done: int) -> None:
        self._last = done
        for feed in self._feeds:
            feed.start()
            if self.resumed_at is not None:  # what could not be sent before
                feed.allow(self.resumed_at)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        self._last = update
        if not self.unfinished():
            for feed in self._feeds:
                feed.allow(update)

    def finish(self) -> None:
        self._outcome = "finished" if self._last >= self.steps and not self.unfinished() else "stopped"

    def close(self) -> None:
        """Give trackers some time to send what is left."""
        seconds = self.options.wait if self._outcome == "finished" else min(self.options.wait, STOPPED)
        for feed in end_all(self._feeds, self._outcome, seconds):
            log.warning("%s: %s", feed.option, _lost(feed, seconds))


def _lost(feed: Feed, seconds: float) -> str:
    what = f"{feed.left} updates are not sent" if feed.left else "it was not closed"
    why = feed.problem or f"it took longer than {seconds:g} s (trackers.wait)"
    return f"{what}: {why}; the same command sends what is left"


def chosen(options: TrackersOptions) -> list[str]:
    """Trackers that are asked for."""
    return [*options.libraries(), *(["tensorboard"] if options.tensorboard else [])]


def told(kind: str, config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """What the process of a tracker has to know."""
    section, options = getattr(config.trackers, kind), config.trackers
    own = asdict(section) if is_dataclass(section) and not isinstance(section, type) else {}
    return {
        "kind": kind, "run": str(folder.path.absolute()), "name": own.get("name") or folder.path.absolute().name,
        "options": own, "config": to_dict(config), "names": options.names, "samples": options.samples,
    }  # fmt: skip
