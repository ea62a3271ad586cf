"""A checkpoint on disk: tensors in a file per rank, the rest of the state, and a manifest with the files' hashes."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from burnish.checkpoint import first_format, manifest, state_file, tensor_file
from burnish.checkpoint.manifest import VISIBLE
from burnish.checkpoint.snapshot import Snapshot
from burnish.rl.algorithm import Metrics
from burnish.training.saved import SavedTensor, in_memory
from burnish.utils.disk import sync
from burnish.utils.errors import UserError
from burnish.utils.reading import check_folder

MANIFEST = manifest.NAME
PLACED = ("roles", "groups", "ema")  # parts of the state: each rank reads its own slices, into memory that is there
VARYING = ("roles", "source")  # versions and options differ in what these hold: who loads them says what is missing
KINDS: dict[str, Any] = {
    "true or false": bool, "a map": dict, "a list": list | tuple, "a tensor": Tensor | SavedTensor, "text": str,
    "an integer": int, "a number": float | int,
}  # fmt: skip
HASHED = 8  # files at a time


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint: every file was verified when it was opened."""

    path: Path
    update: int
    identity: dict[str, str]
    score: float | None
    files: dict[str, dict[str, Any]]  # size and sha256 by file name
    format: int
    unvalidated: Metrics | None = None  # metrics of its update, if the validation is still to be done

    @property
    def bytes(self) -> int:
        """Size of its files, the manifest aside."""
        return sum(about["size"] for about in self.files.values())

    def load(self, identity: dict[str, str], own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The saved state by part; what networks, optimizers and averages hold as saved tensors, which are read later.

        Loading never executes code of the checkpoint.

        Args:
            identity: of the run that loads, as it was given to ``save``.
            own: state of the run that loads: the saved one must have its parts, with values of the same kinds.

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
            found = self._read()
            if wrong := _unlike(found, own):
                raise UserError(f"{self.path} {wrong}; use another checkpoint")
            return {name: part if name in PLACED else in_memory(part) for name, part in found.items()}
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} was removed while it was read; start again") from None
        except OSError as error:
            raise UserError(f"{error.filename or self.path} can't be read: {error.strerror or error}") from None

    def _read(self) -> dict[str, Any]:
        sizes = {name: about["size"] for name, about in self.files.items()}
        if self.format == manifest.FIRST:
            return first_format.read(self.path, sizes)
        start = f"{tensor_file.FOLDER}/"
        own = {name.removeprefix(start): size for name, size in sizes.items() if name.startswith(start)}
        tensors = tensor_file.read(self.path / tensor_file.FOLDER, own)
        if state_file.NAME not in sizes:
            raise UserError(f"{self.path} lacks {state_file.NAME}; use another checkpoint")
        found = state_file.read((self.path / state_file.NAME).read_bytes(), tensors)
        if not isinstance(found, dict):
            raise UserError(f"{self.path / state_file.NAME} has no parts; use another checkpoint")
        return found


def _unlike(saved: Any, own: Any, where: str = "") -> str:
    """What a saved state lacks, or has of another kind than the state of the run that loads it; "" is nothing."""
    if own is None or (where == "ema" and saved is None):  # whether there is an average is the trainer's question
        return ""
    name, kind = next((name, kind) for name, kind in KINDS.items() if isinstance(own, kind))
    if not isinstance(saved, kind) or isinstance(saved, bool) != isinstance(own, bool):
        return f"has a {where} that is not {name}: {saved!r:.40}"
    if name != "a map":
        return ""
    inside = {key: f"{where}.{key}" if where else key for key in own}
    if where not in VARYING and (missing := own.keys() - saved.keys()):
        return f"lacks {inside[min(missing)]}"
    return next(filter(None, (_unlike(saved[key], own[key], inside[key]) for key in own if key in saved)), "")


def read(path: Path) -> Checkpoint:
    """Open a checkpoint and verify the hash of every file.

    Raises:
        UserError: a file is missing, truncated or damaged.
    """
    try:
        checkpoint = opened(path)
        with ThreadPoolExecutor(min(HASHED, os.cpu_count() or 1)) as threads:
            found = threads.map(lambda name: _sha256(path / name), checkpoint.files)
            for (name, about), digest in zip(checkpoint.files.items(), found, strict=True):
                if digest != about["sha256"]:
                    raise UserError(f"{path / name} is damaged: its sha256 is not the one in {MANIFEST}")
        return checkpoint
    except OSError as error:
        raise UserError(f"{error.filename or path} can't be read: {error.strerror}") from None


def opened(path: Path) -> Checkpoint:
    """Open a checkpoint and verify that every file is there with its size.

    Raises:
        OSError: it can't be read.
        UserError: a file is missing or truncated, or the manifest is damaged.
    """
    if not path.is_dir():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        there = ", ".join(sorted(one.name for one in beside if VISIBLE.fullmatch(one.name)))
        names = f"; {path.parent} has {there} (checkpoint.keep_last says how many are kept)" if there else ""
        raise UserError(
            f"{path} is not a checkpoint: no such folder; give a numbered folder in a run's checkpoints{names}"
        )
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
    return Checkpoint(
        path=path,
        update=content["update"],
        identity=content["identity"],
        score=content["score"],
        files=content["files"],
        format=content["format"],
        unvalidated=_numbers(content.get("unvalidated")),  # missing in older checkpoints
    )


def _numbers(found: dict[str, float | None] | None) -> Metrics | None:
    """Metrics from JSON, which has null for NaN."""
    if found is None:
        return None
    return {name: math.nan if value is None else value for name, value in found.items()}


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_tensors(folder: Path, state: Snapshot, rank: int) -> dict[str, dict[str, Any]]:
    """Write this rank's tensors to a file, if there are any: its size and sha256 by name."""
    if not state.pieces:
        return {}
    name = f"{tensor_file.FOLDER}/rank-{rank:05d}.safetensors"
    return {name: tensor_file.write(folder / name, state.pieces)}


def write(folder: Path, state: Snapshot, files: dict[str, dict[str, Any]]) -> Checkpoint:
    """Write the rest of the state and the manifest, and see that all files are there; run by one rank.

    Args:
        folder: of the checkpoint.
        state: to be written.
        files: what ``write_tensors`` said on all ranks. They hashed what they wrote, so nothing is read again.

    Raises:
        OSError: it can't be written.
        UserError: a file is not as long as it was written.
    """
    rest = tensor_file.write_file(folder / state_file.NAME, iter([state_file.render(state.parts)]))
    _write_manifest(folder / MANIFEST, state, {state_file.NAME: rest} | files, manifest.FORMAT)
    sync(folder / tensor_file.FOLDER)
    sync(folder)
    return opened(folder)


def mark_validated(checkpoint: Checkpoint, score: float | None) -> Checkpoint:
    """Record in the manifest, atomically, that the validation is done, and its reward."""
    done = replace(checkpoint, score=_finite(score), unvalidated=None)
    new = checkpoint.path / f".{MANIFEST}.new"
    _write_manifest(new, done, checkpoint.files, checkpoint.format)
    new.replace(checkpoint.path / MANIFEST)
    sync(checkpoint.path)
    return done


def _write_manifest(path: Path, about: Snapshot | Checkpoint, files: dict[str, dict[str, Any]], number: int) -> None:
    content = {
        "format": number,
        "update": about.update,
        "identity": about.identity,
        "score": _finite(about.score),
        "files": files,
    }
    if about.unvalidated is not None:
        content["unvalidated"] = {name: _finite(value) for name, value in about.unvalidated.items()}
    tensor_file.write_file(path, iter([manifest.render(content)]))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
