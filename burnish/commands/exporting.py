"""The process that exports the weights of every checkpoint of a run, as ``burnish export`` does, on the CPU."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from burnish.checkpoint.files import numbered, read_manifest
from burnish.config.run_folder import RunFolder
from burnish.utils.errors import UserError
from burnish.utils.sidecar import Report

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # of the process: the run needs the rest
MARK = "checkpoint.json"  # which checkpoint an export is of
OFTEN = 5.0  # seconds between two messages that work goes on


class Exports:
    """Exports every checkpoint of a run; see ``burnish.utils.sidecar``."""

    def __init__(self, told: Mapping[str, Any], report: Report) -> None:
        """Args:
        told: ``run``, its folder, and ``what`` is exported.
        report: what is to be logged, and that work goes on.
        """
        os.nice(10)
        self.folder, self.what, self.report = RunFolder(told["run"]), told["what"], report

    def __call__(self) -> None:
        """Export what is not exported yet, the newest first; remove what has no checkpoint any more."""
        _remove_old(self.folder)
        while (checkpoint := _pending(self.folder)) is not None:
            try:
                with _alive(self.report):
                    _export(checkpoint, self.folder.exported / checkpoint.name, self.what)
            except (UserError, FileNotFoundError):
                if checkpoint.is_dir():
                    raise
                self.report.warning(f"{checkpoint} was removed before it was exported; raise checkpoint.keep_last")
                continue
            self.report.done(int(checkpoint.name))


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
    files = json.dumps({name: entry.sha256 for name, entry in read_manifest(checkpoint).files.items()}, sort_keys=True)
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
def _alive(report: Report) -> Iterator[None]:
    """Say again and again that work goes on: loading a large model takes a while."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(OFTEN):
            report.alive()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
