"""Processes beside a run that do something with every complete checkpoint: copy it, or export its weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from burnish.checkpoint.files import numbered
from burnish.config.run_folder import RunFolder
from burnish.hooks import Hook
from burnish.utils.sidecar import Sidecar, end_all

FAILED = 10.0  # seconds that a run which failed, or is interrupted, waits for them
log = logging.getLogger(__name__)


class Beside(Hook):
    """Tells them that there may be another checkpoint. It stands before ``MetricsLog``, for what it counts."""

    def __init__(self, folder: RunFolder, feeds: Mapping[str, Sidecar], *, wait: float) -> None:
        """Take them over.

        Args:
            folder: of the run.
            feeds: by what their metrics are called.
            wait: seconds that they may still take at the end of the run, a stop included.
        """
        self.folder, self.feeds, self.wait = folder, dict(feeds), wait
        self._finished = False

    def start(self, done: int) -> None:
        for feed in self.feeds.values():
            feed.start()
        self._tell()

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        self._tell()
        for name, feed in self.feeds.items():
            metrics[f"perf/{name}/failures"] = float(feed.failed)
            metrics[f"perf/{name}/updates_behind"] = float(max(feed.upto, 0) - max(feed.delivered, 0))

    def finish(self) -> None:
        self._finished = True

    def close(self) -> None:
        """Wait until they have done the last one; what is not done the same command does later."""
        seconds = self.wait if self._finished else min(self.wait, FAILED)
        self._tell()
        for feed in self.feeds.values():
            if feed.upto > feed.delivered:
                log.info("%s: waiting until it has done update %d", feed.option, feed.upto)
        for feed in end_all(list(self.feeds.values()), seconds):
            why = feed.problem or f"it took longer than {seconds:g} s (checkpoint.wait)"
            log.warning(
                "%s: not done for all checkpoints up to update %d: %s; the same command does what is left",
                feed.option, max(feed.upto, 0), why,
            )  # fmt: skip

    def _tell(self) -> None:
        found = [int(path.name) for path in numbered(self.folder.checkpoints)]
        for feed in self.feeds.values():
            feed.allow(max(found, default=-1))
