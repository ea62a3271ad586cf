"""The state of a run: a tensor file per rank, and the rest as JSON, in which numbers come back bit for bit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from burnish.checkpoint import tensor_file
from burnish.checkpoint.files import FileEntry, Manifest, publish_manifest
from burnish.training.saved import in_memory
from burnish.utils.disk import sync
from burnish.utils.errors import UserError

NAME = "state.json"
LAZY = ("roles", "groups", "ema")  # parts of the state: each rank reads its own slices, into memory that is there
TENSOR, TUPLE, PAIRS, NUMBER = "$tensor", "$tuple", "$pairs", "$number"  # the only key of what JSON has no form for


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Content of a checkpoint, as far as this rank writes it; to be written while training continues."""

    manifest: Manifest  # without files
    state: bytes  # JSON, with references to the tensors
    pieces: dict[str, tensor_file.Piece]  # of tensors by name; on their devices, or copies on the CPU
    size: int  # bytes of what all ranks write

    @classmethod
    def of(cls, manifest: Manifest, state: dict[str, Any], *, copy: bool, rank: int) -> Snapshot:
        """Take a snapshot of what ``CheckpointStore.save`` is given.

        With ``copy`` every tensor that this rank writes is copied to CPU memory; otherwise tensors are shared.
        """
        tensors: dict[str, Tensor] = {}
        text = json.dumps(
            {name: _plain(value, name, tensors) for name, value in state.items()}, allow_nan=False
        ).encode()
        pieces = {}
        for number, (name, tensor) in enumerate(tensors.items()):
            piece = tensor_file.Piece.of(tensor, rank=rank, number=number)
            if piece is not None:
                pieces[name] = piece.copied() if copy else piece
        size = len(text) + sum(tensor.nbytes for tensor in tensors.values())
        return cls(manifest=manifest, state=text, pieces=pieces, size=size)

    def write_tensors(self, folder: Path, rank: int) -> dict[str, FileEntry]:
        """Write this rank's tensors to a file, if there are any: its size and sha256 by name."""
        if not self.pieces:
            return {}
        name = f"{tensor_file.FOLDER}/rank-{rank:05d}.safetensors"
        return {name: tensor_file.write(folder / name, self.pieces)}

    def write(self, folder: Path, files: dict[str, FileEntry]) -> None:
        """Write the rest of the state and the manifest, and see that all files are there; run by one rank.

        Args:
            folder: of the checkpoint.
            files: of all ranks' tensors. They hashed what they wrote, so nothing is read again.

        Raises:
            OSError: it can't be written.
            UserError: a file is not as long as it was written.
        """
        rest = tensor_file.write_file(folder / NAME, iter([self.state]))
        sync(folder / tensor_file.FOLDER)
        publish_manifest(folder, replace(self.manifest, files={NAME: rest} | files))


def read(path: Path, files: Mapping[str, FileEntry]) -> dict[str, Any]:
    """The state in a checkpoint's folder by part, tensors of ``LAZY`` parts still on disk.

    Raises:
        OSError: it can't be read.
        UserError: it was not written by a run.
    """
    tensors = tensor_file.read([path / name for name in files if name != NAME])
    try:
        parts = _restored(json.loads((path / NAME).read_bytes()), tensors)
        return {name: part if name in LAZY else in_memory(part) for name, part in parts.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path / NAME} was not written by Burnish: {error}; use another checkpoint") from None


def _plain(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON has it; its tensors move into a dict by their names."""
    if isinstance(value, Tensor):
        tensors[where] = value
        return {TENSOR: where}
    if isinstance(value, dict):
        items = {key: _plain(item, f"{where}.{key}", tensors) for key, item in value.items()}
        if all(isinstance(key, str) for key in value) and not _is_tagged(value):
            return items
        return {PAIRS: [[_plain(key, "", tensors), item] for key, item in items.items()]}
    if isinstance(value, list | tuple):
        listed = [_plain(item, f"{where}[{i}]", tensors) for i, item in enumerate(value)]
        return listed if isinstance(value, list) else {TUPLE: listed}
    return {NUMBER: str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _is_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and next(iter(value)) in (TENSOR, TUPLE, PAIRS, NUMBER)


def _restored(value: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_restored(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if not _is_tagged(value):
        return {key: _restored(item, tensors) for key, item in value.items()}
    ((tag, content),) = value.items()
    if tag == TENSOR:
        return tensors[content]
    if tag == NUMBER:
        return float(content)
    items = [_restored(item, tensors) for item in content]
    return tuple(items) if tag == TUPLE else dict(items)
