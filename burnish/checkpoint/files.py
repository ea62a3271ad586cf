"""One checkpoint on the disk: a file for each part of the state, files of shards, and a manifest with their hashes."""

from __future__ import annotations

import hashlib
import math
import os
import re
import zipfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

import torch

from burnish.algorithms.base import Metrics
from burnish.checkpoint import manifest, shard_files
from burnish.checkpoint.snapshot import Snapshot
from burnish.utils.disk import sync
from burnish.utils.errors import UserError
from burnish.utils.reading import check_folder

MANIFEST = manifest.NAME
PARTS = ("roles", "groups", "ema", "trainer", "source")  # of the state of a run
VISIBLE = re.compile(r"(\d{8,})")  # names of folders that are whole


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint: every byte was there when it was opened."""

    path: Path
    update: int
    identity: dict[str, str]
    score: float | None
    files: dict[str, dict[str, Any]]  # size and sha256 by file name
    unvalidated: Metrics | None = None  # of its update, whose validation is still to be done

    def load(self, identity: dict[str, str], parts: Collection[str] = ()) -> dict[str, Any]:
        """The saved state by part, on the CPU. Nothing in a checkpoint can run anything here.

        Args:
            identity: what the run that loads is, entry by entry as it was given to ``save``.
            parts: that have to be there.

        Raises:
            UserError: the checkpoint is of another model or algorithm, has been removed since, or holds something
                else than what a run writes.
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
            found = {name.removesuffix(".pt"): _part(self.path / name) for name in self.files if name.endswith(".pt")}
            if missing := [name for name in parts if name not in found]:
                raise UserError(f"{self.path} lacks {missing[0]}.pt, which every run writes; use another checkpoint")
            if len(found) == len(self.files):
                return found
            start = f"{shard_files.FOLDER}/"
            sizes = {n.removeprefix(start): one["size"] for n, one in self.files.items() if n.startswith(start)}
            restored: dict[str, Any] = shard_files.restore(
                found, shard_files.read(self.path / shard_files.FOLDER, sizes)
            )
            return restored
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} was removed; start again to use what is there now") from None
        except OSError as error:
            raise UserError(f"{error.filename or self.path} can't be read: {error.strerror or error}") from None


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
        raise UserError(f"{path} is not a checkpoint: there is no such folder; give one in a run's checkpoints")
    check_folder(path)
    content = manifest.read(path)
    if VISIBLE.fullmatch(path.name) and int(path.name) != content["update"]:
        raise UserError(f"{path} holds policy update {content['update']}; name it {content['update']:08d}")
    for name, about in content["files"].items():
        file = path / name
        if not file.exists():
            raise UserError(f"{file} is missing")
        if not file.is_file() or not file.resolve().is_relative_to(path.resolve()):
            raise UserError(f"{file} leads out of the checkpoint; copy what it stands for there, or use another one")
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
        unvalidated=_numbers(content.get("unvalidated")),  # older ones have none
    )


def _numbers(found: dict[str, float | None] | None) -> Metrics | None:
    """Metrics as they were before JSON, which knows no NaN."""
    if found is None:
        return None
    return {name: math.nan if value is None else value for name, value in found.items()}


def _part(file: Path) -> Any:
    """What a file of plain data and tensors holds."""
    try:
        with zipfile.ZipFile(file) as packed:  # torch packs nothing smaller, so nothing can grow without bound
            if sum(one.file_size for one in packed.infolist()) > file.stat().st_size:
                raise ValueError("it would grow when it is read")
        return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # anything may be wrong with what somebody else has made up
        why = str(error).split("\n")[0] or type(error).__name__
        raise UserError(
            f"{file} holds something else than the tensors, numbers and text of a run: {why}; nothing of it was run; "
            "use another checkpoint"
        ) from None


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write(folder: Path, state: Snapshot) -> None:
    """What one rank writes: every part as a file of its own, and last the manifest, in which the shards stand, too.

    All of it is on the disk before this returns.
    """
    files = {}
    for name, part in state.parts.items():
        with (folder / f"{name}.pt").open("wb") as file:
            sink = _Sink(file)
            torch.save(part, cast(IO[bytes], sink))
            sink.finish()
        files[f"{name}.pt"] = {"size": sink.size, "sha256": sink.hash.hexdigest()}
    shards = folder / shard_files.FOLDER
    for path in shard_files.files(shards) if shards.exists() else ():
        files[f"{shards.name}/{path.name}"] = _settled(path)
    _write_manifest(folder / MANIFEST, state, files)
    if shards.exists():
        sync(shards)
    sync(folder)


def mark_validated(checkpoint: Checkpoint, score: float | None) -> Checkpoint:
    """Write down that its validation is done, and the reward; a crash leaves the old manifest or the new one."""
    done = replace(checkpoint, score=_finite(score), unvalidated=None)
    new = checkpoint.path / f".{MANIFEST}.new"
    _write_manifest(new, done, checkpoint.files)
    new.replace(checkpoint.path / MANIFEST)
    sync(checkpoint.path)
    return done


def _write_manifest(path: Path, about: Snapshot | Checkpoint, files: dict[str, dict[str, Any]]) -> None:
    content = {
        "format": manifest.FORMAT,
        "update": about.update,
        "identity": about.identity,
        "score": _finite(about.score),
        "files": files,
    }
    if about.unvalidated is not None:
        content["unvalidated"] = {name: _finite(value) for name, value in about.unvalidated.items()}
    with path.open("wb") as file:
        sink = _Sink(file)
        sink.write(manifest.render(content))
        sink.finish()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _settled(path: Path) -> dict[str, Any]:
    """Size and hash of a file that another program wrote, once it is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


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
