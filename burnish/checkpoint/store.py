"""Checkpoints that are whole or not there: written aside, verified, renamed; only then do older ones go."""

from __future__ import annotations

import logging
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from burnish.algorithms.base import Metrics
from burnish.checkpoint import shard_files
from burnish.checkpoint.files import VISIBLE, Checkpoint, mark_validated, read, write
from burnish.checkpoint.snapshot import Snapshot
from burnish.options import CheckpointOptions
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.utils.background import Background
from burnish.utils.disk import FULL, sync
from burnish.utils.errors import UserError

log = logging.getLogger(__name__)

PASSING = re.compile(r"\.(saving|replaced|removing)-(\d{8,})-[0-9a-f]{8}")  # what a kill may leave behind


class CheckpointStore:
    """The checkpoints of a run: ``folder/00000010`` is the state after policy update 10.

    Reading never changes the folder, so that a run can be looked at while it trains.
    """

    def __init__(self, folder: Path, options: CheckpointOptions, ranks: Ranks = SINGLE_RANK) -> None:
        """Args: ``ranks`` save together, and find the same; they all see the folder."""
        self.folder, self.options, self.ranks = Path(folder), options, ranks
        self._verified: dict[Path, Checkpoint] = {}  # hashed by this process once
        self._swept = False
        self._longest = 0.0
        self._writing: Background | None = None
        self._apart: Ranks | None = None  # the same ranks, for what is written meanwhile

    @property
    def seconds(self) -> float:
        """How long it takes to have a state saved, judged by the longest save of this process."""
        return self._longest * (2 if self._writing is not None and not self._writing.done else 1)

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

        Several ranks call it together. Each writes what it holds of tensors that lie on all of them; the first one
        writes everything else, and makes the checkpoint visible once all have written.

        With ``checkpoint.asynchronous`` it returns when the state is copied, and all else happens meanwhile. One is
        written at a time: this waits for the one before it.

        Args:
            update: policy updates behind the state.
            state: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None, by part.
            identity: what must agree when it is loaded.
            score: its validation reward, if it was judged; not a number counts as not judged.
            unvalidated: the metrics of the update, if a validation is due that has not been finished: a run that goes
                on from here begins with it.

        Raises:
            UserError: the disk is full or can't be written, now or when the one before was written meanwhile; earlier
                checkpoints are as they were.
        """
        self.wait()
        start, target = time.perf_counter(), self.folder / f"{update:08d}"
        copy = self.options.asynchronous
        taken = Snapshot.of(update, state, identity=identity, score=score, unvalidated=unvalidated, copy=copy)
        if not copy:
            self._save(taken, target, self.ranks, start)
            return target
        if self._apart is None:
            self._apart = self.ranks.clone_group()
        apart = self._apart
        self._writing = Background(f"{target} is written", lambda: self._save(taken, target, apart, start))
        return target

    def validated(self, update: int, score: float | None) -> None:
        """Write down that the validation of a checkpoint is done, which was saved before it.

        Raises:
            UserError: the disk is full or can't be written; the checkpoint is as it was.
        """
        self.wait()
        self.ranks.first(lambda: self._validated(self.folder / f"{update:08d}", score))

    def _validated(self, target: Path, score: float | None) -> None:
        found = self._whole(target)
        if found is None or (found.unvalidated is None and found.score == score):
            return
        try:
            self._verified[target] = mark_validated(found, score)
        except OSError as error:
            raise UserError(
                f"the validation of checkpoint {target} can't be written down: {error}; the checkpoint is intact, and "
                "a run that goes on from it does the validation again"
            ) from error
        self._retire(found.update)

    def wait(self) -> None:
        """Wait for a save that goes on meanwhile, if there is one.

        Raises:
            UserError: it failed; see ``save``.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait, unless the user wants to be gone at once; an error that is under way goes first."""
        if kind is None:
            self.wait()
        elif issubclass(kind, Exception):
            try:
                self.wait()
            except Exception as failed:
                log.error("%s", failed)

    def _save(self, state: Snapshot, target: Path, ranks: Ranks, start: float) -> None:
        staged = ranks.first(lambda: self._aside("saving", state.update))
        try:
            ranks.first(lambda: self._stage(staged))
            if state.sharded:
                shard_files.write(staged / shard_files.FOLDER, state.sharded, ranks)
            ranks.first(lambda: self._finish(staged, target, state))
        except (OSError, UserError) as error:
            raise UserError(self._failure(target, state, error)) from error
        finally:
            if ranks.rank == 0:
                shutil.rmtree(staged, ignore_errors=True)
        ranks.first(lambda: self._retire(state.update))
        self._longest = max(self._longest, time.perf_counter() - start)

    def _stage(self, staged: Path) -> None:
        self._begin()
        staged.mkdir()

    def _finish(self, staged: Path, target: Path, state: Snapshot) -> None:
        """Write what one rank writes, and make all of it visible."""
        write(staged, state)
        self._publish(read(staged), target)

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint; damaged ones are passed over with a warning."""
        return next(self._whole_ones(), None)

    def best(self) -> Checkpoint | None:
        """The whole checkpoint with the highest score, the newest among equals; None if none was judged."""
        return _best(list(self._whole_ones()))

    def open(self, path: str | Path) -> Checkpoint:
        """A checkpoint that the user names.

        Raises:
            UserError: it is not there or not whole; the message says what is wrong with which file.
        """
        return read(Path(path))

    def _whole_ones(self) -> Iterator[Checkpoint]:
        """Whole checkpoints, the newest first."""
        found = []
        for entry in self.folder.iterdir() if self.folder.is_dir() else ():
            if match := VISIBLE.fullmatch(entry.name):
                found.append((int(match[1]), 1, entry))
            elif (match := PASSING.fullmatch(entry.name)) and match[1] == "replaced":
                found.append((int(match[2]), 0, entry))
        for _, _, path in sorted(found, reverse=True):
            try:
                yield read(path)
            except UserError as error:
                log.warning("checkpoint passed over: %s", error)

    def _begin(self) -> None:
        """Make the folder and, once, remove what a killed run left half done."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sync(self.folder.parent)
        if self._swept:
            return
        for entry in list(self.folder.iterdir()):
            match = PASSING.fullmatch(entry.name)
            if not match:
                continue
            target = self.folder / match[2]
            if match[1] == "replaced" and not target.exists():
                entry.rename(target)  # killed between the two renames of _publish
            elif match[1] != "replaced" or self._whole(target):
                shutil.rmtree(entry)
        self._swept = True

    def _publish(self, staged: Checkpoint, target: Path) -> None:
        """Make a verified folder visible under its name, in the place of an older one of that name."""
        self._verified.pop(target, None)  # hashed again: whoever saves twice may be repairing it
        old = self._whole(target) if target.exists() else None
        if old and replace(old, path=staged.path) == staged:
            return
        aside = self._aside("replaced", staged.update)
        if target.exists():
            target.rename(aside)
        self._verified.pop(target, None)
        staged.path.rename(target)
        sync(self.folder)
        self._verified[target] = read(target)
        shutil.rmtree(aside, ignore_errors=True)

    def _retire(self, update: int) -> None:
        """Remove older checkpoints; those of later updates belong to a run that went on from here before."""
        paths = sorted(path for path in self.folder.iterdir() if VISIBLE.fullmatch(path.name))
        whole = [found for path in paths if (found := self._whole(path))]
        older = [found.path for found in whole if found.update <= update]
        keep = set(older[-self.options.keep_last :])
        best = _best(whole) if self.options.keep_best else None
        if best:
            keep.add(best.path)
        for path in paths:
            if int(path.name) < update and path not in keep:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Take a checkpoint out of sight first, so that a kill never leaves half of one."""
        aside = self._aside("removing", int(path.name))
        self._verified.pop(path, None)
        try:
            path.rename(aside)
            shutil.rmtree(aside)
        except OSError as error:
            log.warning("checkpoint %s can't be removed: %s", path, error)

    def _whole(self, path: Path) -> Checkpoint | None:
        """A checkpoint that this process has hashed once, now or before."""
        if path not in self._verified:
            try:
                self._verified[path] = read(path)
            except UserError as error:
                log.warning("damaged checkpoint: %s", error)
                return None
        return self._verified[path]

    def _aside(self, kind: str, update: int) -> Path:
        return self.folder / f".{kind}-{update:08d}-{secrets.token_hex(4)}"

    def _failure(self, target: Path, state: Snapshot, error: Exception) -> str:
        """What a failed save means to the user."""
        earlier = self.latest()
        intact = f"checkpoint {earlier.path} is intact" if earlier else "there is no earlier one"
        if not (isinstance(error, OSError) and error.errno in FULL):
            why = (error.strerror if isinstance(error, OSError) else None) or error
            way = "put the disk in order, or change the permissions of the folder, and start again to go on"
            return f"checkpoint {target} can't be written: {why}; {intact}; {way}"
        return (
            f"no space is left in {self.folder}: checkpoint {target.name} needs about "
            f"{state.size / 1e6:.2f} MB beside what is kept; {intact}; free some space or lower "
            "checkpoint.keep_last, then start again to go on"
        )


def _best(found: list[Checkpoint]) -> Checkpoint | None:
    judged = [one for one in found if one.score is not None]
    return max(judged, key=lambda one: (one.score, one.update), default=None)
