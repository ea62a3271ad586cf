"""Atomic checkpoints: written to a temporary folder, verified, renamed; only then are older ones removed."""

from __future__ import annotations

import logging
import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import replace
from pathlib import Path
from typing import Any

from burnish.checkpoint import state_files
from burnish.checkpoint.files import (
    Checkpoint,
    FileEntry,
    Manifest,
    damage,
    numbered,
    opened,
    publish_manifest,
    read,
    reveal,
    temporary,
)
from burnish.checkpoint.state_files import NAME, plain
from burnish.options import CheckpointOptions
from burnish.rl.algorithm import Metrics
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.utils.disk import sync, write_error
from burnish.utils.errors import UserError

log = logging.getLogger(__name__)

TIMEOUT = 3600.0  # seconds in which a save in the background has to end
TEMPORARY = re.compile(r"\.(saving|removing)-\d{8,}-[0-9a-f]{8}")  # may remain after a kill


class CheckpointStore:
    """The checkpoints of a run: ``folder/00000010`` is the state after policy update 10.

    Reading never changes the folder, so that another process may read while the run trains.
    """

    def __init__(self, folder: Path, options: CheckpointOptions, ranks: Ranks = SINGLE_RANK) -> None:
        """Args: ``ranks`` save together, into a folder that all of them see."""
        self.folder, self.options, self.ranks = Path(folder), options, ranks
        self._told = False  # that max_gb is too low
        self._longest = 0.0
        self._writing: Future[None] | None = None
        self._background_ranks: Ranks | None = None

    @property
    def seconds(self) -> float:
        """Expected time of a save: the longest one of this process so far."""
        return self._longest * (2 if self._writing is not None and not self._writing.done() else 1)

    def save(
        self,
        update: int,
        state: dict[str, Any],
        *,
        identity: dict[str, str],
        score: float | None,
        unvalidated: Metrics | None = None,
    ) -> Path:
        """Write a checkpoint, and remove those that are no longer kept.

        All ranks call it together. Each writes and hashes its shards; rank 0 writes everything else, and makes the
        checkpoint visible once all have written. With ``checkpoint.asynchronous`` it returns when the state is copied,
        and writes in the background, one checkpoint at a time.

        Args:
            update: number of policy updates of the state.
            state: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None, by part.
            identity: must be equal when it is loaded.
            score: validation reward; None or NaN if there is none.
            unvalidated: metrics of the update, if its validation is still to be done; a resumed run begins with it.

        Raises:
            UserError: the disk is full or can't be written, for this checkpoint or the one before; earlier
                checkpoints are intact.
        """
        self.wait()
        start, target = time.perf_counter(), self.folder / f"{update:08d}"
        copy = self.options.asynchronous
        metrics = None if unvalidated is None else dict(unvalidated)
        manifest = Manifest(update=update, identity=dict(identity), score=score, files={}, unvalidated=metrics)
        text, tensors = plain(state)
        pieces = {}  # that this rank writes
        for number, (name, tensor) in enumerate(tensors.items()):
            piece = state_files.Piece.of(tensor, rank=self.ranks.rank, number=number)
            if piece is not None:
                pieces[name] = piece.copied() if copy else piece
        size = len(text) + sum(tensor.nbytes for tensor in tensors.values())  # of what all ranks write

        def write(ranks: Ranks) -> None:
            staged = ranks.first(lambda: temporary("saving", target))
            try:
                ranks.first(lambda: self._stage(staged))
                entries = ranks.each(lambda: _write_own(staged, ranks.rank, pieces))
                files = {name: entry for own in entries for name, entry in own.items()}
                ranks.first(lambda: self._publish(staged, target, text, replace(manifest, files=files)))
            except (OSError, UserError) as error:
                raise UserError(self._failure(target, size, error)) from error
            finally:
                if ranks.rank == 0:
                    shutil.rmtree(staged, ignore_errors=True)
            ranks.first(lambda: self._retire(update))
            self._longest = max(self._longest, time.perf_counter() - start)

        if not copy:
            write(self.ranks)
            return target
        if self._background_ranks is None:
            self._background_ranks = self.ranks.clone_group()
        ranks = self._background_ranks
        self._writing = _in_background(lambda: write(ranks))
        return target

    def validated(self, update: int, score: float | None) -> None:
        """Record the finished validation of a checkpoint that was saved before it.

        Raises:
            UserError: the disk is full or can't be written; the checkpoint is intact.
        """
        self.wait()
        self.ranks.first(lambda: self._validated(self.folder / f"{update:08d}", score))

    def _validated(self, target: Path, score: float | None) -> None:
        try:
            found = opened(target)
            publish_manifest(target, replace(found, score=score, unvalidated=None))
        except (OSError, UserError) as error:
            raise UserError(
                f"the validation of checkpoint {target} can't be recorded: {error}; the checkpoint is intact, and a "
                "run that resumes from it repeats the validation"
            ) from error
        self._retire(found.update)

    def raise_failed(self) -> None:
        """Raise the error of a save in the background that has failed meanwhile; see ``save``."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait for a save in the background, if there is one.

        Raises:
            UserError: it failed; see ``save``.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            if not wait_for([writing], TIMEOUT).done:
                raise TimeoutError(f"timed out after {TIMEOUT:g} s writing a checkpoint to {self.folder}")
            writing.result()

    def close(self, kind: type[BaseException] | None) -> None:
        """Wait for a save in the background, except on KeyboardInterrupt; an exception in flight takes precedence."""
        if kind is None:
            self.wait()
        elif issubclass(kind, Exception):
            try:
                self.wait()
            except Exception as failed:
                log.error("%s", failed)

    def _stage(self, staged: Path) -> None:
        """Make the folder of a save, and remove those of one that was killed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sync(self.folder.parent)
        for entry in list(self.folder.iterdir()):
            if TEMPORARY.fullmatch(entry.name):
                shutil.rmtree(entry)
        (staged / state_files.FOLDER).mkdir(parents=True)

    def latest(self, damage: Callable[[Checkpoint], str] = damage) -> Checkpoint | None:
        """The newest complete checkpoint; those with ``damage`` are skipped with a warning."""
        for path in sorted(numbered(self.folder), reverse=True):
            try:
                return read(path, damage)
            except UserError as error:
                log.warning("checkpoint skipped: %s", error)
        return None

    def _publish(self, staged: Path, target: Path, text: bytes, manifest: Manifest) -> None:
        """Complete a folder, whose tensors all ranks have written and hashed, and make it visible."""
        rest = state_files.write_file(staged / NAME, iter([text]))
        sync(staged / state_files.FOLDER)
        publish_manifest(staged, replace(manifest, files={NAME: rest} | manifest.files))
        reveal(staged, target)

    def _retire(self, update: int) -> None:
        """Remove older checkpoints; later ones belong to a run that was resumed from an earlier update."""
        paths, complete = sorted(numbered(self.folder)), list[Checkpoint]()
        for path in paths:
            try:
                complete.append(opened(path))
            except (OSError, UserError) as error:
                log.warning("damaged checkpoint: %s", error)
        older = [found.path for found in complete if found.update <= update]
        scored = [found for found in complete if found.score is not None and self.options.keep_best]
        best = max(scored, key=lambda found: (found.score, found.update), default=None)
        always = {best.path if best else None, older[-1] if older else None}
        keep = {*older[-self.options.keep_last :], best.path if best else None}
        room = math.inf if self.options.max_gb is None else self.options.max_gb * 1e9
        room -= sum(found.bytes for found in complete if found.path in always)
        if room < 0 and not self._told:
            self._told = True
            log.warning("the newest and the best checkpoint take more than checkpoint.max_gb, %g", self.options.max_gb)
        for found in reversed(complete):
            if found.path in keep - always:
                room -= found.bytes
                if room < 0:
                    keep.remove(found.path)
        for path in paths:
            if int(path.name) < update and path not in keep:
                self._remove(path)

    def rewind(self, done: int, to: int) -> None:
        """Remove the checkpoints of the updates after ``to`` up to ``done``, the newest first: the run goes back."""
        for path in sorted(numbered(self.folder), reverse=True):
            if to < int(path.name) <= done:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Rename a checkpoint before removing it, so that a kill never leaves a partial one."""
        removing = temporary("removing", path)
        try:
            path.rename(removing)
            shutil.rmtree(removing)
        except OSError as error:
            log.warning("checkpoint %s can't be removed: %s", path, error)

    def _failure(self, target: Path, size: int, error: Exception) -> str:
        """Message of a failed save."""
        earlier = self.latest()
        intact = f"checkpoint {earlier.path} is intact" if earlier else "there is no earlier one"
        why = write_error(target, error) if isinstance(error, OSError) else f"{target} can't be written: {error}"
        return f"{why}; {intact}. A checkpoint takes {size / 1e6:.2f} MB (checkpoint.keep_last says how many are kept)"


def _in_background(work: Callable[[], None]) -> Future[None]:
    """Work in a daemon thread, which does not keep the process alive."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)  # raised by wait()

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future


def _write_own(folder: Path, rank: int, pieces: Mapping[str, state_files.Piece]) -> dict[str, FileEntry]:
    """Write this rank's tensors to a file, if there are any: its size and sha256 by name."""
    name = f"{state_files.FOLDER}/rank-{rank:05d}.safetensors"
    return {name: state_files.write(folder / name, pieces)} if pieces else {}
