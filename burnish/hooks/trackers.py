"""Trackers of a run: each gets every update from a thread of its own, and at the end some time for what is left."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread, main_thread
from typing import Any

from burnish.config import RunConfig, to_dict
from burnish.config.run_folder import STEP, RunFolder
from burnish.hooks import Hook
from burnish.trackers.records import first_samples, read_alarm_events
from burnish.utils.addresses import redacted
from burnish.utils.disk import write_atomically
from burnish.utils.json_text import parse_json
from burnish.utils.terminal import printable

log = logging.getLogger(__name__)

STOPPED = 10.0  # seconds that a run which was stopped, or failed, waits for its trackers
AT_EXIT = 30.0  # seconds that libraries which did not end in time have when the process ends
MOST = 1000  # updates that wait; further ones are left to the next start of the run
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0  # seconds before what failed is tried again
QUIET = {  # the terminal is the run's
    "WANDB_SILENT": "true", "GRADIO_ANALYTICS_ENABLED": "False", "MLFLOW_DISABLE_TELEMETRY": "true",
}  # fmt: skip

Update = tuple[int, Mapping[str, Any]]  # and its metrics


class Delivery:
    """One tracker of a run. Nothing waits for it before the end."""

    def __init__(self, kind: str, config: RunConfig, folder: RunFolder) -> None:
        """Args: ``kind`` of tracker, as its section is called. Nothing is opened before ``start``."""
        self.kind, self.folder, self.options, self.config = kind, folder, config.trackers, to_dict(config)
        self.problem = ""  # why the last attempt failed
        self.ended = Event()  # all is sent, and the run is closed there
        self._queue: SimpleQueue[Update | None] = SimpleQueue()
        self._closing, self._outcome = Event(), "failed"
        self._due = self._done = self._missed = 0  # updates; those that were missed before this process
        self._full = False
        self._id: str | None = None  # by which the tracker knows the run
        self._sent = -1  # last update that it has
        self._library: Any = None
        self._warnings: set[str] = set()
        self._progress = folder.trackers / f"{kind}.json"

    @property
    def missing(self) -> int:
        """Updates that are not sent."""
        return self._due - self._done

    def start(self, recorded: int) -> None:
        """Begin with what could not be sent before.

        Args:
            recorded: last update in metrics.jsonl; -1 for a new run.
        """
        os.environ.update(QUIET)
        (self.folder.trackers / self.kind).mkdir(parents=True, exist_ok=True)
        self._read_progress()
        for row in self.folder.read_metrics() if self._sent < recorded else []:
            if self._sent < row[STEP] <= recorded:
                self._due += 1
                self._queue.put((row.pop(STEP), row))
        self._missed = self._due
        Thread(target=self._work, name=f"trackers.{self.kind}", daemon=True).start()

    def put(self, update: int, metrics: Mapping[str, float]) -> None:
        """Send an update when those before it are sent."""
        self._due += 1
        if self._full or self._queue.qsize() >= MOST + self._missed:
            self._full = True  # also for later updates: a tracker's steps only rise
            self._warn(f"{MOST} updates wait; later ones are sent when the run is started again")
        else:
            self._queue.put((update, dict(metrics)))

    def end(self, outcome: str) -> None:
        """Send what is left, with one more attempt if it fails, and close the run; ``ended`` says when."""
        self._outcome = outcome
        self._closing.set()
        self._queue.put(None)

    def _work(self) -> None:
        for update, metrics in iter(self._queue.get, None):
            if not self._attempt(partial(self._send, update, metrics)):
                return
        if self._attempt(lambda: self._library.finish(self._outcome)):
            self.ended.set()

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Do something with the tracker, again after pauses until it works; False if it doesn't before the end."""
        pause = FIRST_PAUSE
        while True:
            last = self._closing.is_set()
            try:
                if self._library is None:
                    self._open()
                action()
                self.problem = ""
                return True
            except BaseException as error:  # whatever a library raises, SystemExit included
                self._library = None  # opened again
                self.problem = _text(error)
                self._warn(f"{self.problem}; the run goes on, and it is tried again")
            if last:
                return False
            self._closing.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _open(self) -> None:
        from burnish.trackers.libraries import LIBRARIES, TrackedRun  # seconds

        folder, section = self.folder.path.absolute(), getattr(self.options, self.kind)
        values = {} if isinstance(section, bool) else asdict(section)
        self._library = LIBRARIES[self.kind](
            TrackedRun(
                name=values.get("name") or folder.name, options=values, config=self.config,
                folder=folder / "trackers" / self.kind,
                id=self._id, wait=self.options.wait,
            )
        )  # fmt: skip
        self._write_progress()
        if self._library.url:
            log.info("trackers.%s: %s", self.kind, redacted(self._library.url))

    def _send(self, update: int, metrics: Mapping[str, Any]) -> None:
        """An update with its samples and alarms; nothing for one that a resumed run repeats."""
        if update > self._sent:
            values = {name: v for name, v in metrics.items() if v is not None and math.isfinite(v)}
            self._library.log(update, values | {STEP: float(update)})
            try:
                if samples := first_samples(self.folder.validation(update), self.options.samples):
                    self._library.log_samples(update, samples)
            except Exception as error:  # of one file, which would fail again
                self._warn(f"samples of update {update}: {_text(error)}")
            for event in read_alarm_events(self.folder.alarms, update):
                self._library.log_alarm(event)
            self._sent = update
            self._write_progress()
        self._done += 1

    def _read_progress(self) -> None:
        try:
            progress = parse_json(self._progress.read_bytes())
            self._id, self._sent = str(progress["id"]), int(progress["step"])
        except (OSError, ValueError, KeyError, TypeError):  # none, or not written by a run
            pass

    def _write_progress(self) -> None:
        self._id = self._library.id
        write_atomically(self._progress, json.dumps({"id": self._id, "step": self._sent}).encode())

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            log.warning("trackers.%s: %s", self.kind, printable(text))


def _text(error: BaseException) -> str:
    return redacted(" ".join(f"{type(error).__name__}: {error}".split()))[:500]


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
