"""Tensors that lie in files: read where they are needed, slice by slice, into memory that is there already."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish.types.batch import is_sharded
from burnish.utils.errors import UserError

PIECE = 16 << 20  # bytes that are read at a time where they can't be read in place


@dataclass(frozen=True)
class Chunk:
    """A block of a tensor in a file, row by row."""

    file: Path
    position: int  # of its first byte
    shape: tuple[int, ...]
    offset: tuple[int, ...]  # of its first element in the tensor


@dataclass(frozen=True)
class SavedTensor:
    """A tensor in one or more files, whose chunks cover it once."""

    shape: torch.Size
    dtype: torch.dtype
    chunks: tuple[Chunk, ...]

    def load(self) -> Tensor:
        """The full tensor, on the CPU."""
        found = torch.empty(self.shape, dtype=self.dtype)
        self.read_into(found, (0,) * found.ndim)
        return found

    def read_into(self, target: Tensor, offset: Sequence[int]) -> None:
        """Fill a tensor with the slice that begins at ``offset``; only that is read.

        Raises:
            UserError: a file is gone or can't be read.
        """
        try:
            with torch.no_grad():
                for chunk in self.chunks:
                    self._read(chunk, target, tuple(offset))
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} was removed while it was read; start again") from None
        except OSError as error:
            raise UserError(f"{error.filename or chunk.file} can't be read: {error.strerror or error}") from None

    def _read(self, chunk: Chunk, target: Tensor, offset: tuple[int, ...]) -> None:
        """Copy what a chunk and the target have in common."""
        start = [max(a, b) for a, b in zip(chunk.offset, offset, strict=True)]
        ends = zip(chunk.offset, chunk.shape, offset, target.shape, strict=True)
        end = [min(a + n, b + m) for a, n, b, m in ends]
        if any(a >= b for a, b in zip(start, end, strict=True)):
            return
        for dim, (a, b) in enumerate(zip(start, end, strict=True)):
            target = target.narrow(dim, a - offset[dim], b - a)
        own = [a - b for a, b in zip(start, chunk.offset, strict=True)]
        row = math.prod(chunk.shape[1:]) * self.dtype.itemsize
        with chunk.file.open("rb", buffering=0) as file:
            file.seek(chunk.position + (own[0] * row if own else 0))
            whole = target.shape[1:] == chunk.shape[1:]
            if whole and target.is_contiguous() and target.dtype == self.dtype and target.device.type == "cpu":
                _fill(file, target)
                return
            for rows in _in_pieces(target, row):
                read = torch.empty((len(rows), *chunk.shape[1:]) if chunk.shape else (), dtype=self.dtype)
                _fill(file, read)
                for dim in range(1, read.ndim):
                    read = read.narrow(dim, own[dim], rows.shape[dim])
                rows.copy_(read if target.ndim else read.reshape(rows.shape))


def _in_pieces(target: Tensor, row: int) -> Iterator[Tensor]:
    """Rows of a tensor, as many at a time as fit into a piece; a number is one."""
    if not target.ndim:
        yield target.view(1)
        return
    yield from target.split(max(1, PIECE // max(row, 1)))


def _fill(file: Any, tensor: Tensor) -> None:
    """Read a contiguous tensor's bytes."""
    if not tensor.numel():
        return
    content: Any = tensor.view(-1).view(torch.uint8).numpy()
    view = memoryview(content)
    while len(view):
        count = file.readinto(view)
        if not count:
            raise OSError(None, "it ends too early", file.name)
        view = view[count:]


def in_memory(value: Any) -> Any:
    """Nested plain data with its saved tensors loaded."""
    if isinstance(value, SavedTensor):
        return value.load()
    if isinstance(value, dict):
        return {key: in_memory(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [in_memory(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def own_slice(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """This rank's shard of a tensor, which shares its memory, and where it begins; all of an unsharded one."""
    if not is_sharded(tensor):
        return tensor, (0,) * tensor.ndim
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    there: Any = tensor.detach()
    _, offset = compute_local_shape_and_global_offset(there.shape, there.device_mesh, there.placements)
    return there.to_local(), tuple(offset)
