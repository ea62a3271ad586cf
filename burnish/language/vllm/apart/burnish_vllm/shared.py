"""Named tensors in memory that several processes map: the owner writes them, vLLM's workers read them in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

Places = Mapping[str, tuple[str, tuple[int, ...], int]]  # by name: type, shape, and first byte


def mapped(path: str, size: int) -> Tensor:
    """The memory's bytes, uint8 [size]; whoever maps it sees what another one writes."""
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


def tensors(memory: Tensor, places: Places) -> Iterator[tuple[str, Tensor]]:
    """Each tensor with its name, as a view of the bytes."""
    for name, (kind, shape, start) in places.items():
        dtype: torch.dtype = getattr(torch, kind)
        count = torch.Size(shape).numel()
        yield name, memory[start : start + count * dtype.itemsize].view(dtype).view(shape)
