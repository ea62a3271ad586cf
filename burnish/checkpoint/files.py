"""A checkpoint on disk: one file per part of the state, shard files, and a manifest with their hashes."""

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
VISIBLE = re.compile(r"(\d{8,})")  # folder names of complete checkpoints


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint: every file was verified when it was opened."""

    path: Path
    update: int
    identity: dict[str, str]
    score: float | None
    files: dict[str, dict[str, Any]]  # size and sha256 by file name
    unvalidated: Metrics | None = None  # metrics of its update, if the validation is still to be done

    def load(self, identity: dict[str, str], parts: Collection[str] = ()) -> dict[str, Any]:
        """The saved state by part, on the CPU. Loading never executes code of the checkpoint.

        Args:
            identity: of the run that loads, as it was given to ``save``.
            parts: required parts.

        Raises:
            UserError: the checkpoint is of another model or algorithm, was removed since, or has content that no run
                writes.
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
                "give the options that it was trained with, or start a new run in another output_dir"
            )
        try:
            found = {name.removesuffix(".pt"): _part(self.path / name) for name in self.files if name.endswith(".pt")}
            if missing := [name for name in parts if name not in found]:
                raise UserError(f"{self.path} lacks {missing[0]}.pt; use another checkpoint")
            if len(found) == len(self.files):
                return found
            start = f"{shard_files.FOLDER}/"
            sizes = {n.removeprefix(start): one["size"] for n, one in self.files.items() if n.startswith(start)}
            restored: dict[str, Any] = shard_files.restore(
                found, shard_files.read(self.path / shard_files.FOLDER, sizes)
            )
            return restored
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} was removed while it was read; start again") from None
        except OSError as error:
            raise UserError(f"{error.filename or self.path} can't be read: {error.strerror or error}") from None


def read(path: Path) -> Checkpoint:
    """Open a checkpoint and verify the hash of every file.

    Raises:
        UserError: a file is missing, truncated or damaged.
    """
    try:
        return _read(path)
    except OSError as error:
        raise UserError(f"{error.filename or path} can't be read: {error.strerror}") from None


def _read(path: Path) -> Checkpoint:
    if not path.is_dir():
        raise UserError(f"{path} is not a checkpoint: no such folder; give a numbered folder in a run's checkpoints")
    check_folder(path)
    content = manifest.read(path)
    if VISIBLE.fullmatch(path.name) and int(path.name) != content["update"]:
        raise UserError(f"{path} is of policy update {content['update']}; rename it to {content['update']:08d}")
    for name, about in content["files"].items():
        file = path / name
        if not file.exists():
            raise UserError(f"{file} is missing")
        if not file.is_file() or not file.resolve().is_relative_to(path.resolve()):
            raise UserError(f"{file} links outside the checkpoint; replace the link by its file, or use another one")
        if (size := file.stat().st_size) != about["size"]:
            raise UserError(f"{file} has {size} bytes of {about['size']}")
        if _sha256(file) != about["sha256"]:
            raise UserError(f"{file} is damaged: its sha256 is not the one in {MANIFEST}")
    return Checkpoint(
        path=path,
        update=content["update"],
        identity=content["identity"],
        score=content["score"],
        files=content["files"],
        unvalidated=_numbers(content.get("unvalidated")),  # missing in older checkpoints
    )


def _numbers(found: dict[str, float | None] | None) -> Metrics | None:
    """Metrics from JSON, which has null for NaN."""
    if found is None:
        return None
    return {name: math.nan if value is None else value for name, value in found.items()}


def _part(file: Path) -> Any:
    """Content of a file of plain data and tensors."""
    try:
        with zipfile.ZipFile(file) as packed:  # torch stores without compression; anything else is a zip bomb
            if sum(one.file_size for one in packed.infolist()) > file.stat().st_size:
                raise ValueError("it is compressed")
        return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # the file may be forged
        why = str(error).split("\n")[0] or type(error).__name__
        raise UserError(
            f"{file} has something other than tensors, numbers and text: {why}; nothing of it was executed; "
            "use another checkpoint"
        ) from None


def _sha256(file: Path, *, flush: bool = False) -> str:
    with file.open("rb") as opened:
        if flush:
            os.fsync(opened.fileno())
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write(folder: Path, state: Snapshot) -> None:
    """Write every part to its own file, then the manifest, which also lists the shards; run by one rank.

    All files are flushed to disk before this returns.
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
        files[f"{shards.name}/{path.name}"] = {"size": path.stat().st_size, "sha256": _sha256(path, flush=True)}
    _write_manifest(folder / MANIFEST, state, files)
    if shards.exists():
        sync(shards)
    sync(folder)


def mark_validated(checkpoint: Checkpoint, score: float | None) -> Checkpoint:
    """Record in the manifest, atomically, that the validation is done, and its reward."""
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


class _Sink:
    """Hashes what it writes, and defers an OSError until ``finish``: torch.save would obscure it."""

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
