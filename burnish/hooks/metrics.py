"""Records the metrics of every update: a line of JSON, and TensorBoard's scalars."""

from __future__ import annotations

import json
import math
import os
from contextlib import ExitStack
from typing import IO, Any

from burnish.config.run_folder import STEP, RunFolder
from burnish.hooks.base import Hook
from burnish.hooks.board import Board
from burnish.utils.disk import write_atomically, writing


class MetricsLog(Hook):
    """One line per update in metrics.jsonl, on disk before the next update begins."""

    def __init__(self, folder: RunFolder, *, resumed_at: int | None) -> None:
        self.folder, self.resumed_at = folder, resumed_at
        self._lines: IO[str] | None = None
        self._board: Board | None = None

    def start(self, done: int) -> None:
        """Forget what an earlier process recorded after the checkpoint that this one goes on from."""
        with writing(self.folder.metrics):
            self.folder.path.mkdir(parents=True, exist_ok=True)
            drop_after(self.folder, -1 if self.resumed_at is None else self.resumed_at)
            self._lines = self.folder.metrics.open("a", encoding="utf-8")
        self._board = Board(self.folder.tensorboard, None if self.resumed_at is None else self.resumed_at + 1)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        assert self._lines is not None, "start comes first"
        assert self._board is not None
        line: dict[str, Any] = {STEP: update}
        # JSON knows no NaN, and readers other than Python's refuse it
        line |= {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        with writing(self.folder.metrics):
            self._lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._lines.flush()
            os.fsync(self._lines.fileno())
        self._board.add(update, metrics)

    def close(self) -> None:
        with ExitStack() as ends:
            if self._board is not None:
                ends.callback(self._board.close)
            if self._lines is not None:
                ends.enter_context(writing(self.folder.metrics))
                ends.callback(self._lines.close)


def drop_after(folder: RunFolder, update: int) -> None:
    """Remove torn lines and those of later updates, in one step: a crash leaves the old file or the new."""
    if folder.metrics.exists():
        rows = [row for row in folder.read_metrics() if row[STEP] <= update]
        write_atomically(folder.metrics, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
