"""The process that exports the weights of every checkpoint of a run, as ``burnish export`` does, on the CPU."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from burnish.checkpoint import manifest
from burnish.checkpoint.manifest import numbered
from burnish.config.run_folder import RunFolder
from burnish.utils import feed_process
from burnish.utils.errors import UserError
from burnish.utils.feed_process import Orders

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # of the process: the run needs the rest
MARK = "checkpoint.json"  # which checkpoint an export is of
OFTEN = 5.0  # seconds between two messages that work goes on


def serve(end: socket.socket, lines: IO[str], parent: int) -> None:
    """The process; see ``burnish.utils.feed_process``."""
    os.nice(10)
    feed_process.serve(end, lines, parent, export_all)


def export_all(told: dict[str, Any], orders: Orders, say: Callable[..., None]) -> None:
    """Export every checkpoint that appears, the newest first, until the run ends; remove what has none any more.

    Args:
        told: ``run``, its folder, and ``what`` is exported.
        orders: of the run.
        say: what is to be logged.
    """
    folder, done = RunFolder(told["run"]), -1
    say(step=done)
    while True:
        orders.changed.clear()
        ended = orders.outcome is not None
        _remove_old(folder)
        while (checkpoint := _pending(folder)) is not None:
            try:
                with _alive(say, done):
                    _export(checkpoint, folder.exported / checkpoint.name, told["what"])
            except (UserError, FileNotFoundError):
                if checkpoint.is_dir():
                    raise
                say(warning=f"{checkpoint} was removed before it was exported; raise checkpoint.keep_last")
                continue
            done = max(done, int(checkpoint.name))
            say(step=done)
        if ended:
            return
        orders.changed.wait()


def _export(checkpoint: Path, target: Path, what: Any) -> None:
    from burnish.commands.export import model_card, write_export

    mark, staged = _mark(checkpoint), target.with_name(f".writing-{target.name}")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        exported = write_export(str(checkpoint), str(staged), what, None, ["model.device=cpu"])
        (staged / "README.md").write_text(model_card(exported.assembly, what, exported.update))
        (staged / MARK).write_text(mark)
        _remove(target)  # of the same update, before the run went back to an earlier one
        staged.rename(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _pending(folder: RunFolder) -> Path | None:
    """The newest checkpoint whose weights are not exported."""
    for path in sorted(numbered(folder.checkpoints), reverse=True):
        try:
            mark = _mark(path)
        except UserError:  # damaged, or being removed
            continue
        written = folder.exported / path.name / MARK
        if not written.is_file() or written.read_text() != mark:
            return path
    return None


def _mark(checkpoint: Path) -> str:
    files = json.dumps(manifest.read(checkpoint)["files"], sort_keys=True)
    return json.dumps({"update": int(checkpoint.name), "files": hashlib.sha256(files.encode()).hexdigest()})


def _remove_old(folder: RunFolder) -> None:
    kept = {path.name for path in numbered(folder.checkpoints)}
    for path in numbered(folder.exported):
        if path.name not in kept:
            _remove(path)


def _remove(export: Path) -> None:
    if export.exists():
        removing = export.with_name(f".removing-{export.name}")  # one that is there is all there
        shutil.rmtree(removing, ignore_errors=True)
        export.rename(removing)
        shutil.rmtree(removing)


@contextmanager
def _alive(say: Callable[..., None], done: int) -> Iterator[None]:
    """Say again and again that work goes on: loading a large model takes a while."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(OFTEN):
            say(step=done)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
