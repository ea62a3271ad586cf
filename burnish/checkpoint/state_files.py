"""The state of a run as files: a tensor file per rank, and the rest as JSON, whose numbers come back bit for bit."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from burnish.checkpoint.files import FileEntry
from burnish.training.saved import Chunk, SavedTensor, in_memory, own_slice
from burnish.types.batch import is_sharded
from burnish.utils.errors import UserError
from burnish.utils.terminal import without_collecting

FOLDER = "tensors"
PIECE = 16 << 20  # bytes that are copied from a GPU, hashed and written at a time
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Piece:
    """What one rank writes of a tensor."""

    tensor: Tensor  # unsharded
    offset: tuple[int, ...]
    shape: tuple[int, ...]  # of the full tensor
    dtype: torch.dtype  # that is written

    @classmethod
    def of(cls, tensor: Tensor, *, rank: int, number: int) -> Piece | None:
        """This rank's piece of a tensor, if it is the one to write it.

        Rank 0 writes unsharded tensors. Ranks with the same shard write those of different tensors.

        Args:
            tensor: of the state.
            rank: of this process.
            number: of the tensor in the state.
        """
        local, offset = own_slice(tensor)
        if not is_sharded(tensor):
            mine = rank == 0
        else:
            there: Any = tensor
            copies, place = 1, 0
            sizes = zip(there.placements, there.device_mesh.shape, there.device_mesh.get_coordinate(), strict=True)
            for placement, size, coordinate in sizes:
                if placement.is_replicate():
                    copies, place = copies * size, place * size + coordinate
            mine = number % copies == place and local.numel() > 0
        return cls(local.detach(), offset, tuple(tensor.shape), tensor.dtype) if mine else None

    def copied(self) -> Piece:
        """The same in other memory, on the CPU."""
        return replace(self, tensor=self.tensor.to("cpu", copy=True))


def write_file(path: Path, content: Iterator[bytes | memoryview]) -> FileEntry:
    """Write a new file to disk, and hash it at the same time."""
    digest, size = hashlib.sha256(), 0
    with ThreadPoolExecutor(1) as hashing, path.open("wb") as file:
        for data in content:
            hashed = hashing.submit(digest.update, data)
            try:
                file.write(data)
            finally:
                hashed.result()
            size += len(data)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(size, digest.hexdigest())


def write(path: Path, pieces: Mapping[str, Piece]) -> FileEntry:
    """Write tensors to a new file.

    Raises:
        OSError: it can't be written.
    """
    return write_file(path, _content(pieces))


def _content(pieces: Mapping[str, Piece]) -> Iterator[bytes | memoryview]:
    header: dict[str, Any] = {}
    places = {name: [one.offset, one.shape] for name, one in pieces.items() if one.tensor.shape != one.shape}
    if places:
        header["__metadata__"] = {"places": json.dumps(places)}
    end = 0
    for name, piece in pieces.items():
        tensor, start = piece.tensor, end
        end += tensor.numel() * piece.dtype.itemsize
        header[name] = {"dtype": NAMES[piece.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for piece in pieces.values():
        for part in piece.tensor.reshape(-1).split(PIECE // piece.dtype.itemsize):
            if part.numel():
                # a copy: memory that numpy has seen can't be given up, and weights that ranks have gathered are
                copied = part.to("cpu", piece.dtype, copy=True)
                yield memoryview(copied.view(torch.uint8).numpy())


@without_collecting()
def read_tensors(files: Iterable[Path]) -> dict[str, SavedTensor]:
    """The tensors in the files of all ranks by name; nothing but headers is read.

    Raises:
        OSError: a file can't be read.
        UserError: the files were not written by a run.
    """
    found: dict[str, SavedTensor] = {}
    for file in files:
        try:
            for chunk, shape, dtype in _chunks(file):
                known = found.get(chunk.name)
                if known is None:
                    found[chunk.name] = known = SavedTensor(torch.Size(shape), dtype, [])
                if known.shape != shape or known.dtype != dtype:
                    raise ValueError(f"{chunk.name} has another shape or type than in another file")
                known.chunks.append(chunk)
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{file} is not a file of tensors of a run: {error}; nothing of it was executed; use another checkpoint"
            ) from None
    for name, tensor in found.items():
        if sum(math.prod(chunk.shape) for chunk in tensor.chunks) != tensor.shape.numel():
            raise UserError(f"the checkpoint lacks a part of {name:.80}; use another checkpoint")
    return found


def _chunks(path: Path) -> Iterator[tuple[Chunk, tuple[int, ...], torch.dtype]]:
    """What a file has of every tensor in it, with the tensor's full shape and type."""
    file: Any = safe_open(path, "pt")  # refuses a header that does not fit the file
    places = json.loads((file.metadata() or {}).get("places", "{}"))
    for name in file.keys():  # noqa: SIM118  # it is no dict
        part = file.get_slice(name)
        shape = part.get_shape()
        offset, full = places.get(name) or ([0] * len(shape), shape)
        for first, length, all_of_it in zip(offset, shape, full, strict=True):
            if first < 0 or first + length > all_of_it:
                raise ValueError(f"{name:.80} lies outside of the full tensor")
        yield Chunk(file, name, tuple(shape), tuple(offset)), tuple(full), DTYPES[part.get_dtype()]


NAME = "state.json"
LAZY = ("roles", "groups", "ema")  # parts of the state: each rank reads its own slices, into memory that is there
TENSOR, TUPLE, PAIRS, NUMBER = "$tensor", "$tuple", "$pairs", "$number"  # the only key of what JSON has no form for


def plain(state: dict[str, Any]) -> tuple[bytes, dict[str, Tensor]]:
    """A state as JSON with references to its tensors, and these by name."""
    tensors: dict[str, Tensor] = {}
    content = {name: _plain(value, name, tensors) for name, value in state.items()}
    return json.dumps(content).encode(), tensors


def read(path: Path, files: Mapping[str, FileEntry]) -> dict[str, Any]:
    """The state in a checkpoint's folder by part, tensors of ``LAZY`` parts still on disk.

    Raises:
        OSError: it can't be read.
        UserError: it was not written by a run.
    """
    tensors = read_tensors([path / name for name in files if name != NAME])
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
