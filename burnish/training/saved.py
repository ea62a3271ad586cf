"""Tensors that lie in files: of each only the slice that is needed is read, into memory that is there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.utils._pytree import tree_map_only

from burnish.types.batch import is_sharded
from burnish.utils.errors import UserError


class Chunk(NamedTuple):
    """A block of a tensor in a file."""

    file: Any  # of safetensors, opened
    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]  # of its first element in the tensor


@dataclass(frozen=True)
class SavedTensor:
    """A tensor in one or more files, whose chunks cover it once."""

    shape: torch.Size
    dtype: torch.dtype
    chunks: list[Chunk]

    def load(self) -> Tensor:
        """The full tensor, on the CPU."""
        found = torch.empty(self.shape, dtype=self.dtype)
        self.read_into(found, (0,) * found.ndim)
        return found

    @torch.no_grad()
    def read_into(self, target: Tensor, offset: Sequence[int]) -> None:
        """Fill a tensor with the slice that begins at ``offset``; only that is read.

        Raises:
            UserError: a file can't be read.
        """
        first, last = (offset[0], offset[0] + target.shape[0]) if offset else (0, 1)
        for chunk in self.chunks:
            if offset and (chunk.offset[0] >= last or chunk.offset[0] + chunk.shape[0] <= first):
                continue  # most are those of other ranks
            sizes = zip(chunk.offset, chunk.shape, offset, target.shape, strict=True)
            common = [(max(a, b), min(a + n, b + m)) for a, n, b, m in sizes]
            if any(start >= end for start, end in common):
                continue
            there, here = (
                tuple(slice(start - first, end - first) for (start, end), first in zip(common, origin, strict=True))
                for origin in (chunk.offset, offset)
            )
            try:
                part = chunk.file.get_slice(chunk.name)[there] if there else chunk.file.get_tensor(chunk.name)
            except (SafetensorError, OSError) as error:
                raise UserError(f"{chunk.name} can't be read from the checkpoint: {error}") from None
            target[here].copy_(part)


def in_memory(value: Any) -> Any:
    """Nested plain data with its saved tensors loaded."""
    return tree_map_only(SavedTensor, SavedTensor.load, value)


def own_slice(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """This rank's shard of a tensor, which shares its memory, and where it begins; all of an unsharded one."""
    if not is_sharded(tensor):
        return tensor, (0,) * tensor.ndim
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    there: Any = tensor.detach()
    _, offset = compute_local_shape_and_global_offset(there.shape, there.device_mesh, there.placements)
    return there.to_local(), tuple(offset)
