"""Named tensors in memory that several processes map: where each lies, how another process opens it, and a checksum.

Weights travel in such buckets to everybody who samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor
from torch.nn.functional import pad

Places = Mapping[str, tuple[str, tuple[int, ...], int]]  # by name: type, shape, and first byte
ALIGNMENT = 64  # bytes at which tensors begin
SUM = 8  # bytes of a checksum
WORDS = 1 << 20  # 64-bit words that are summed at a time
ODD = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as int64: 2^64 divided by the golden ratio


@dataclass(frozen=True)
class Entry:
    """What a tensor is, whatever it holds; of a sharded one, the whole."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name} ({str(self.dtype).removeprefix('torch.')} {list(self.shape)})"


def entries_of(weights: Mapping[str, Tensor], types: Mapping[str, torch.dtype] | None = None) -> list[Entry]:
    """What named weights are, floating-point ones in the precision that ``types`` has for them."""
    found = []
    for name, tensor in weights.items():
        wanted = (types or {}).get(name, tensor.dtype)
        dtype = wanted if tensor.dtype.is_floating_point and wanted.is_floating_point else tensor.dtype
        found.append(Entry(name, tuple(tensor.shape), dtype))
    return found


def placed(bucket: Sequence[Entry]) -> tuple[Places, int]:
    """Where tensors lie one after the other, and how many bytes they take."""
    places, size = {}, 0
    for entry in bucket:
        places[entry.name] = (str(entry.dtype).removeprefix("torch."), entry.shape, size)
        size += -(-entry.bytes // ALIGNMENT) * ALIGNMENT
    return places, size


def buckets(entries: Sequence[Entry], size: float) -> Iterator[list[Entry]]:
    """Neighbours that travel together, ``size`` bytes at most unless a single one is larger."""
    bucket: list[Entry] = []
    for entry in entries:
        if bucket and placed([*bucket, entry])[1] > size:
            yield bucket
            bucket = []
        bucket.append(entry)
    if bucket:
        yield bucket


def tensors(memory: Tensor, places: Places) -> Iterator[tuple[str, Tensor]]:
    """Each tensor with its name, as a view of the bytes."""
    for name, (kind, shape, start) in places.items():
        dtype: torch.dtype = getattr(torch, kind)
        count = torch.Size(shape).numel()
        yield name, memory[start : start + count * dtype.itemsize].view(dtype).view(shape)


def mapped(path: str, size: int) -> Tensor:
    """Bytes of the CPU's memory, uint8 [size]; whoever maps it sees what another one writes."""
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


def opened(handle: Sequence[Any]) -> Tensor:
    """Bytes of a GPU's memory that another process shares, uint8 [size].

    Args:
        handle: what ``torch.multiprocessing.reductions.reduce_tensor`` has made of it there. The GPU is this process's
            present one, which may have another number than there.
    """
    rebuild: Any = rebuild_cuda_tensor
    memory: Tensor = rebuild(*handle[:6], torch.accelerator.current_device_index(), *handle[7:])
    return memory


def place_of(device: torch.device) -> str:
    """Which GPU that is, of all machines; empty for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def checksum(tensor: Tensor) -> Tensor:
    """64 bits of a tensor's bytes, int64 [], made where these lie; any one byte that differs changes them.

    Words, their upper half mixed into the lower, are summed modulo 2^64, each times an odd number of its place:
    integer sums have no order, and what is odd has an inverse, so that a change in one word can't vanish.
    """
    content = tensor.detach().contiguous().view(-1).view(torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for chunk in content.split(WORDS * 8):
        if len(chunk) % 8 or chunk.storage_offset() % 8:
            chunk = pad(chunk, (0, -len(chunk) % 8))  # a copy, also where nothing is missing
        words = chunk.view(torch.int64)
        mixed = words ^ ((words >> 32) & 0xFFFFFFFF)  # else two changes of the highest bit would cancel
        total = total * ODD + (mixed * _places(tensor.device)[: len(words)]).sum()
    return total


def mismatch(places: Places, sent: int, came: int) -> str:
    """What is said of a bucket whose bytes are not those that were sent, by their checksums."""
    return (
        f"{next(iter(places))} and what travels with it differ between the trainer and vLLM: checksums {sent:#x} and "
        f"{came:#x}"
    )


@cache
def _places(device: torch.device) -> Tensor:
    """An odd number for each place: [WORDS] int64."""
    # vLLM may have made a GPU the place of new tensors
    numbers = torch.randint(-(2**63), 2**63 - 1, (WORDS,), generator=torch.Generator().manual_seed(0), device="cpu")
    return (numbers | 1).to(device)
