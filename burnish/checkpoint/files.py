"""The files of a checkpoint: a manifest lists them with sizes and hashes, and is written last.

The manifest's own hash detects damage, not forgery, so its content is checked: names stay inside of the folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError

from burnish.utils.disk import sync, write_atomically
from burnish.utils.errors import UserError

MANIFEST = "manifest.json"
VISIBLE = re.compile(r"(\d{8,})")  # folder names of complete checkpoints
_FILE = re.compile(r"state\.json|tensors/[\w-][\w.-]*\.safetensors")
HASHED = 8  # files at a time


@dataclass(frozen=True)
class FileEntry:
    """A file in the manifest."""

    size: NonNegativeInt
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _inside(name: str) -> str:
    if not _FILE.fullmatch(name):
        raise ValueError(f"{name!r:.80} is not a file name of a checkpoint")
    return name


Files = Annotated[dict[Annotated[str, AfterValidator(_inside)], FileEntry], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint is, and of which files."""

    format: Literal[2] = 2
    update: NonNegativeInt
    identity: dict[str, str]
    score: FiniteFloat | None
    files: Files
    unvalidated: Mapping[str, FiniteFloat | None] | None = (
        None  # metrics of its update, if its validation is to be done
    )

    def render(self) -> bytes:
        """As JSON with its own hash, which detects any change; numbers that are not finite are null."""
        return _sealed(json.loads(_MANIFEST.dump_json(self)))


_MANIFEST = TypeAdapter(Manifest)


def _sealed(content: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(json.dumps(content, allow_nan=False).encode()).hexdigest()
    return json.dumps({"sha256": digest} | content, indent=1, allow_nan=False).encode() + b"\n"


def parse(raw: bytes, file: str) -> Manifest:
    """The manifest that was read from a file.

    Raises:
        UserError: it is damaged, or not written by a run.
    """
    try:
        content = json.loads(raw)
        content.pop("sha256")
        intact = _sealed(content) == raw
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise UserError(f"{file} is damaged: its {len(raw)} bytes do not match its sha256")
    try:
        return _MANIFEST.validate_json(raw, strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(map(str, wrong["loc"]))
        raise UserError(
            f"{file} was not written by Burnish: {where:.80}: {wrong['msg']}; use another checkpoint"
        ) from None


def read_manifest(path: Path) -> Manifest:
    """The manifest in a checkpoint's folder.

    Raises:
        OSError: it can't be read.
        UserError: it is missing, damaged, or not written by a run.
    """
    file = path / MANIFEST
    if not file.exists():
        raise UserError(
            f"{path} is not a complete checkpoint: {file} is missing; give a numbered folder in a run's checkpoints"
        )
    return parse(file.read_bytes(), str(file))


def numbered(folder: Path) -> list[Path]:
    """Checkpoints of a folder by their names, in no order; none if there is no such folder."""
    return [path for path in folder.iterdir() if VISIBLE.fullmatch(path.name)] if folder.is_dir() else []


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Manifest):
    """A complete checkpoint: every file was verified when it was opened."""

    path: Path

    @property
    def bytes(self) -> int:
        """Size of its files, the manifest aside."""
        return sum(entry.size for entry in self.files.values())

    def load(self, identity: dict[str, str], own: Collection[str] = ()) -> dict[str, Any]:
        """The saved state by part; what networks, optimizers and averages hold as saved tensors, which are read later.

        Loading never executes code of the checkpoint.

        Args:
            identity: of the run that loads, as it was given to ``save``.
            own: parts of the state of the run that loads, which the saved one must have.

        Raises:
            UserError: the checkpoint is of another model or algorithm, was removed since, or was not written by a run.
        """
        differing = [
            f"{name} is {self.identity.get(name)!r} in the checkpoint and {identity.get(name)!r} here"
            for name in dict.fromkeys([*self.identity, *identity])
            if self.identity.get(name) != identity.get(name)
        ]
        if differing:
            raise UserError(
                f"{self.path} is a checkpoint of another model or algorithm: {'; '.join(differing)}; "
                "give the options that it was trained with, or start a new run in another output_dir"
            )
        from burnish.checkpoint.state_files import read as read_state

        try:
            parts = read_state(self.path, self.files)
        except OSError as error:
            raise UserError(f"{error.filename or self.path} can't be read: {error.strerror or error}") from None
        if missing := set(own) - parts.keys():
            raise UserError(f"{self.path} lacks {min(missing)}; use another checkpoint")
        return parts


def damage(checkpoint: Checkpoint, rank: int = 0, size: int = 1) -> str:
    """What is wrong with the content of its files, of which each of ``size`` ranks reads its part; "" for nothing."""
    names = list(checkpoint.files)[rank::size]
    try:
        with ThreadPoolExecutor(min(HASHED, os.cpu_count() or 1)) as threads:
            digests = threads.map(lambda name: sha256_of(checkpoint.path / name), names)
            for name, digest in zip(names, digests, strict=True):
                if digest != checkpoint.files[name].sha256:
                    return f"{checkpoint.path / name} is damaged: its sha256 is not the one in {MANIFEST}"
    except OSError as error:
        return _unread(checkpoint.path, error)
    return ""


def _unread(path: Path, error: OSError) -> str:
    return f"{error.filename or path} can't be read: {error.strerror}"


def read(path: Path, damage: Callable[[Checkpoint], str] = damage) -> Checkpoint:
    """Open a checkpoint and verify the hash of every file.

    Args:
        path: of its folder.
        damage: finds what is wrong with the content of its files.

    Raises:
        UserError: a file is missing, truncated or damaged.
    """
    try:
        checkpoint = opened(path)
    except OSError as error:
        raise UserError(_unread(path, error)) from None
    if wrong := damage(checkpoint):
        raise UserError(wrong)
    return checkpoint


def opened(path: Path) -> Checkpoint:
    """Open a checkpoint and verify that every file is there with its size.

    Raises:
        OSError: it can't be read.
        UserError: a file is missing or truncated, or the manifest is damaged.
    """
    manifest = read_manifest(path)
    if VISIBLE.fullmatch(path.name) and int(path.name) != manifest.update:
        raise UserError(f"{path} is of policy update {manifest.update}; rename it to {manifest.update:08d}")
    for name, entry in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise UserError(f"{file} is missing, or no file")
        if not file.resolve().is_relative_to(path.resolve()):
            raise UserError(f"{file} links outside the checkpoint; replace the link by its file, or use another one")
        if (size := file.stat().st_size) != entry.size:
            raise UserError(f"{file} has {size} bytes of {entry.size}")
    metrics = manifest.unvalidated and {
        name: math.nan if value is None else value for name, value in manifest.unvalidated.items()
    }
    return Checkpoint(path=path, **vars(replace(manifest, unvalidated=metrics)))


def sha256_of(file: Path) -> str:
    """Of a file's content."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def temporary(kind: Literal["saving", "removing"], target: Path) -> Path:
    """A folder beside a checkpoint's, that is none; it may remain after a kill."""
    return target.with_name(f".{kind}-{target.name}-{secrets.token_hex(4)}")


def reveal(staged: Path, target: Path) -> None:
    """Rename a complete folder to its final name.

    An older one of that name, which was damaged or belongs to updates that are done again, makes room.
    """
    replaced = temporary("removing", target)
    if target.exists():
        target.rename(replaced)
    staged.rename(target)
    sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def publish_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest, atomically, and see that all files are there.

    Raises:
        OSError: it can't be written.
        UserError: so, or a file is not as long as it was written.
    """
    write_atomically(path / MANIFEST, manifest.render())
    sync(path)
    opened(path)
