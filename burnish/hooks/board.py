"""A file of scalars for TensorBoard, written as they come: no thread, so that a full disk is told where it is met."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from burnish.utils.disk import writing

VERSION = "brain.Event:2"


class Board:
    """One file of events in a folder, beside those of earlier processes."""

    def __init__(self, folder: Path, purge: int | None) -> None:
        """Begin a file.

        Args:
            folder: of all files of a run.
            purge: first step that earlier files say something about that did not happen; None keeps all.
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
        self._write(Event(file_version=VERSION))
        if purge is not None:
            self._write(Event(step=purge, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write a step's values."""
        for name, value in values.items():
            self._write(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)])))
        with writing(self.path):
            self._file.flush()

    def close(self) -> None:
        """Write what is left."""
        with writing(self.path):
            self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        with writing(self.path):
            self._records.write(event.SerializeToString())
