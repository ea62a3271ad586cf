"""Checkpoints that are whole or not there: written aside, verified, renamed; only then do older ones go."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.options import CheckpointOptions
from burnish.workers import shard_files
from burnish.workers.ranks import ALONE, Ranks

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
FORMAT = 1
FULL = {errno.ENOSPC, errno.EDQUOT}
VISIBLE = re.compile(r"(\d{8,})")
PASSING = re.compile(r"\.(saving|replaced|removing)-(\d{8,})-[0-9a-f]{8}")  # what a kill may leave behind


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint: every byte was there when it was opened."""

    path: Path
    update: int
    identity: dict[str, str]
    score: float | None
    files: dict[str, dict[str, Any]]  # size and sha256 by file name

    def load(self, identity: dict[str, str]) -> dict[str, Any]:
        """The saved state by part, on the CPU.

        Args:
            identity: what the run that loads is, entry by entry as it was given to ``save``.

        Raises:
            UserError: the checkpoint is of another model or algorithm, or has been removed since.
        """
        saved = self.identity
        differing = [
            f"{name} is {saved.get(name)!r} in the checkpoint and {identity.get(name)!r} here"
            for name in dict.fromkeys([*saved, *identity])
            if saved.get(name) != identity.get(name)
        ]
        if differing:
            raise UserError(
                f"{self.path} is a checkpoint of another model or algorithm: {'; '.join(differing)}; "
                "give the options that it was trained with, or start anew in another output_dir"
            )
        try:
            parts = {
                name.removesuffix(".pt"): torch.load(self.path / name, map_location="cpu", weights_only=True)
                for name in self.files
                if name.endswith(".pt")
            }
            if len(parts) == len(self.files):
                return parts
            return shard_files.put_back(parts, shard_files.read(self.path / shard_files.FOLDER))
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} was removed; start again to use what is there now") from None


class CheckpointStore:
    """The checkpoints of a run: ``folder/00000010`` is the state after policy update 10.

    Reading never changes the folder, so that a run can be looked at while it trains.
    """

    def __init__(self, folder: Path, options: CheckpointOptions, ranks: Ranks = ALONE) -> None:
        """Args: ``ranks`` save together, and find the same; they all see the folder."""
        self.folder, self.options, self.ranks = Path(folder), options, ranks
        self._verified: dict[Path, Checkpoint] = {}  # hashed by this process once
        self._swept = False
        self._longest = 0.0

    @property
    def seconds(self) -> float:
        """How long it takes to have a state saved: as long as the longest save of this process took."""
        return self._longest

    def save(self, update: int, state: dict[str, Any], *, identity: dict[str, str], score: float | None) -> Path:
        """Write a checkpoint, and remove those that are no longer kept.

        Several ranks call it together. Each writes what it holds of tensors that lie on all of them; the first one
        writes everything else, and makes the checkpoint visible once all have written.

        Args:
            update: policy updates behind the state.
            state: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None, by part.
            identity: what must agree when it is loaded.
            score: its validation reward, if it was judged; not a number counts as not judged.

        Raises:
            UserError: the disk is full or can't be written; earlier checkpoints are as they were.
        """
        start = time.perf_counter()
        target = self.folder / f"{update:08d}"
        sharded: dict[str, Tensor] = {}
        parts = {name: _portable(shard_files.take_out(value, name, sharded), name) for name, value in state.items()}
        staged = self.ranks.first(lambda: self._aside("saving", update))
        try:
            self.ranks.first(lambda: self._stage(staged))
            if sharded:
                shard_files.write(staged / shard_files.FOLDER, sharded)
            self.ranks.first(lambda: self._finish(staged, target, parts, update, identity, score))
        except (OSError, UserError) as error:
            raise UserError(self._failure(target, parts, sharded, error)) from error
        finally:
            if self.ranks.rank == 0:
                shutil.rmtree(staged, ignore_errors=True)
        self.ranks.first(lambda: self._retire(update))
        self._longest = max(self._longest, time.perf_counter() - start)
        return target

    def _stage(self, staged: Path) -> None:
        self._begin()
        staged.mkdir()

    def _finish(
        self,
        staged: Path,
        target: Path,
        parts: dict[str, Any],
        update: int,
        identity: dict[str, str],
        score: float | None,
    ) -> None:
        """Write what one rank writes, and make all of it visible."""
        _write(staged, parts, update=update, identity=identity, score=score)
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
        _sync(self.folder.parent)
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
        if old and (old.files, old.identity, old.score) == (staged.files, staged.identity, staged.score):
            return
        aside = self._aside("replaced", staged.update)
        if target.exists():
            target.rename(aside)
        self._verified.pop(target, None)
        staged.path.rename(target)
        _sync(self.folder)
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

    def _failure(self, target: Path, parts: dict[str, Any], sharded: dict[str, Tensor], error: Exception) -> str:
        """What a failed save means to the user."""
        earlier = self.latest()
        intact = f"checkpoint {earlier.path} is intact" if earlier else "there is no earlier one"
        if not (isinstance(error, OSError) and error.errno in FULL):
            return f"checkpoint {target} can't be written: {error}; {intact}"
        return (
            f"no space is left in {self.folder}: checkpoint {target.name} needs about "
            f"{(_size(parts) + _size(sharded)) / 1e6:.2f} MB beside what is kept; {intact}; make room or lower "
            "checkpoint.keep_last, then start again to go on"
        )


def read(path: Path) -> Checkpoint:
    """Open a checkpoint and hash every file of it.

    Raises:
        UserError: something is missing, too short, or not what was written.
    """
    try:
        return _read(path)
    except OSError as error:
        raise UserError(f"{error.filename or path} can't be read: {error.strerror}") from None


def _read(path: Path) -> Checkpoint:
    if not path.is_dir():
        raise UserError(f"{path} is not a checkpoint: there is no such folder")
    try:
        raw = (path / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} is not a whole checkpoint: {path / MANIFEST} is missing") from None
    try:
        content = json.loads(raw)
        content.pop("sha256")
        whole = _render(content) == raw
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"{path / MANIFEST} is damaged: its {len(raw)} bytes are not what was written")
    if content["format"] != FORMAT:
        raise UserError(f"{path} has format {content['format']}, not {FORMAT}; a newer Burnish wrote it")
    if VISIBLE.fullmatch(path.name) and int(path.name) != content["update"]:
        raise UserError(f"{path} holds policy update {content['update']}; name it {content['update']:08d}")
    for name, about in content["files"].items():
        file = path / name
        if not file.exists():
            raise UserError(f"{file} is missing")
        size = file.stat().st_size
        if size != about["size"]:
            raise UserError(f"{file} has {size} bytes of {about['size']}")
        if _sha256(file) != about["sha256"]:
            raise UserError(f"{file} is damaged: its sha256 is not the one in {MANIFEST}")
    return Checkpoint(
        path=path,
        update=content["update"],
        identity=content["identity"],
        score=content["score"],
        files=content["files"],
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _best(found: list[Checkpoint]) -> Checkpoint | None:
    judged = [one for one in found if one.score is not None]
    return max(judged, key=lambda one: (one.score, one.update), default=None)


def _write(folder: Path, parts: dict[str, Any], *, update: int, identity: dict[str, str], score: float | None) -> None:
    """Every part as a file of its own, the manifest last, all of it on the disk before this returns."""
    files = {}
    for name, part in parts.items():
        with (folder / f"{name}.pt").open("wb") as file:
            sink = _Sink(file)
            torch.save(part, cast(IO[bytes], sink))
            sink.finish()
        files[f"{name}.pt"] = {"size": sink.size, "sha256": sink.hash.hexdigest()}
    shards = folder / shard_files.FOLDER
    for path in shard_files.files(shards) if shards.exists() else ():
        files[f"{shards.name}/{path.name}"] = {"size": path.stat().st_size, "sha256": _sha256(path)}
    content = {
        "format": FORMAT,
        "update": update,
        "identity": identity,
        "score": score if score is not None and math.isfinite(score) else None,
        "files": files,
    }
    with (folder / MANIFEST).open("wb") as file:
        sink = _Sink(file)
        sink.write(_render(content))
        sink.finish()
    if shards.exists():
        _sync(shards)
    _sync(folder)


class _Sink:
    """Hashes what it writes, and keeps an error until the end: torch.save would turn it into a riddle."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.hash, self.size = file, hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        if self.error is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = error
            self.hash.update(data)
            self.size += len(data)
        return len(data)

    def flush(self) -> None: ...

    def finish(self) -> None:
        if self.error is not None:
            raise self.error
        self.file.flush()
        os.fsync(self.file.fileno())


def _render(content: dict[str, Any]) -> bytes:
    """A manifest with its own hash, so that no bit of it can change unseen."""
    digest = hashlib.sha256(json.dumps(content, allow_nan=False).encode()).hexdigest()
    return json.dumps({"sha256": digest} | content, indent=1, allow_nan=False).encode() + b"\n"


def _portable(value: Any, where: str) -> Any:
    """The same value with tensors on the CPU, without gradients, and no larger than what they show."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
    if isinstance(value, dict):
        return {key: _portable(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_portable(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    kind = type(value)
    assert kind in (int, float, bool, str, type(None)), f"{where} is a {kind.__name__}, not plain data"
    return value


def _size(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 8


def _sync(folder: Path) -> None:
    """Put the names in a folder on the disk, not only the files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
