"""The tensors of a rank in a file, in the format of safetensors, with the place of each in the full tensor.

Written and hashed at once, chunk by chunk, and read by slices: neither needs memory for more than a piece.
"""

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
from burnish.training.saved import Chunk, SavedTensor, own_slice
from burnish.types.batch import is_sharded
from burnish.utils.errors import UserError

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
    def full(cls, tensor: Tensor, dtype: torch.dtype) -> Piece:
        """All of an unsharded tensor, in some precision."""
        return cls(tensor.detach(), (0,) * tensor.ndim, tuple(tensor.shape), dtype)

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
        assert piece.dtype in NAMES, f"{name} is of {piece.dtype}, which these files don't have"
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


def read(files: Iterable[Path]) -> dict[str, SavedTensor]:
    """The tensors in the files of all ranks by name; nothing but headers is read.

    Raises:
        OSError: a file can't be read.
        UserError: the files were not written by a run.
    """
    chunks: dict[str, list[Chunk]] = {}
    about: dict[str, tuple[torch.Size, torch.dtype]] = {}
    for file in files:
        try:
            for name, shape, dtype, chunk in _chunks(file):
                if about.setdefault(name, (shape, dtype)) != (shape, dtype):
                    raise ValueError(f"{name} has another shape or type than in another file")
                chunks.setdefault(name, []).append(chunk)
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{file} is no file of tensors of a run: {error}; nothing of it was executed; use another checkpoint"
            ) from None
    for name, (shape, _) in about.items():
        if sum(math.prod(chunk.shape) for chunk in chunks[name]) != math.prod(shape):
            raise UserError(f"the checkpoint lacks a part of {name:.80}; use another checkpoint")
    return {name: SavedTensor(*about[name], tuple(found)) for name, found in chunks.items()}


def _chunks(path: Path) -> Iterator[tuple[str, torch.Size, torch.dtype, Chunk]]:
    """Every tensor of a file: its name, full shape, type and chunk."""
    file: Any = safe_open(path, "pt")  # refuses a header that does not fit the file
    places = json.loads((file.metadata() or {}).get("places", "{}"))
    for name in file.keys():  # noqa: SIM118  # it is no dict
        part = file.get_slice(name)
        shape = tuple(part.get_shape())
        offset, full = map(tuple, places.get(name, ([0] * len(shape), shape)))
        if any(a < 0 or a + n > m for a, n, m in zip(offset, shape, full, strict=True)):
            raise ValueError(f"{name:.80} lies outside of the full tensor")
        yield name, torch.Size(full), DTYPES[part.get_dtype()], Chunk(file, name, shape, offset)
