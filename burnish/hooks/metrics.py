"""Metrics of every update, in metrics.jsonl and for TensorBoard."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from burnish.config.run_folder import STEP, RunFolder
from burnish.hooks import Hook
from burnish.utils.disk import write_atomically, writing

EVENT_VERSION = "brain.Event:2"


class MetricsLog(Hook):
    """One line per update in metrics.jsonl, flushed to disk before the next update."""

    def __init__(self, folder: RunFolder, *, resumed_at: int | None) -> None:
        self.folder, self.resumed_at = folder, resumed_at
        self._lines: IO[str] | None = None
        self._scalars: ScalarWriter | None = None

    def start(self, done: int) -> None:
        """Drop the metrics after the checkpoint that this process resumes from."""
        with writing(self.folder.metrics):
            self.folder.path.mkdir(parents=True, exist_ok=True)
            drop_after(self.folder, -1 if self.resumed_at is None else self.resumed_at)
            self._lines = self.folder.metrics.open("a", encoding="utf-8")
        self._scalars = ScalarWriter(self.folder.tensorboard, None if self.resumed_at is None else self.resumed_at + 1)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        assert self._lines is not None, "start comes first"
        assert self._scalars is not None
        line: dict[str, Any] = {STEP: update}
        # JSON has no NaN
        line |= {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        with writing(self.folder.metrics):
            self._lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._lines.flush()
            os.fsync(self._lines.fileno())
        self._scalars.add(update, metrics)

    def close(self) -> None:
        with ExitStack() as ends:
            if self._scalars is not None:
                ends.callback(self._scalars.close)
            if self._lines is not None:
                ends.enter_context(writing(self.folder.metrics))
                ends.callback(self._lines.close)


def drop_after(folder: RunFolder, update: int) -> None:
    """Remove, atomically, truncated lines and those after an update."""
    if folder.metrics.exists():
        rows = [row for row in folder.read_metrics() if row[STEP] <= update]
        write_atomically(folder.metrics, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


class ScalarWriter:
    """A TensorBoard event file, written synchronously so that a full disk raises where it is met."""

    def __init__(self, folder: Path, purge: int | None) -> None:
        """Open a new file.

        Args:
            folder: of the run's event files.
            purge: first step to discard from earlier files; None keeps all.
        """
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        number = 0
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            while (path := folder / f"{name}.{number}").exists():
                number += 1
            self.path = path
            self._file = path.open("wb")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version=EVENT_VERSION))
        if purge is not None:
            self._write(Event(step=purge, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write the scalars of a step."""
        for name, value in values.items():
            self._write(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)])))
        with writing(self.path):
            self._file.flush()

    def close(self) -> None:
        with writing(self.path):
            self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        with writing(self.path):
            self._records.write(event.SerializeToString())
