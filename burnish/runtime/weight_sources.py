"""Weights of the ranks that train as one stream of buckets: every rank adds its own shards, the first has the sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from burnish.runtime.weight_stream import Entry, Layout, aligned
from burnish.training.saved import own_slice
from burnish.types.batch import is_sharded


@dataclass(frozen=True)
class Source:
    """This rank's elements of a tensor, which are neighbours in memory."""

    elements: Tensor  # [n]
    first: int  # place of the first one among all
    group: Any  # of the ranks that have the others; None where this one has all

    @classmethod
    def of(cls, tensor: Tensor) -> Source:
        """Of a tensor that may be sharded by rows, as FSDP2 does."""
        local, offset = own_slice(tensor.detach())
        if not is_sharded(tensor):
            return cls(local.reshape(-1), 0, None)
        there: Any = tensor
        assert local.shape[1:] == tensor.shape[1:], "shards are rows"
        dims = [dim for dim, placement in enumerate(there.placements) if placement.is_shard()]
        group = there.device_mesh.get_group(dims[0]) if dims else None
        return cls(local.reshape(-1), offset[0] * math.prod(tensor.shape[1:]) if dims else 0, group)

    def copied(self, dtype: torch.dtype) -> Source:
        """The same in CPU memory, in another precision."""
        return Source(self.elements.to(dtype).to("cpu", copy=True), self.first, self.group)

    def add_to(self, bucket: Tensor, begin: int) -> None:
        """Put into a bucket what it has of this rank's elements.

        Args:
            bucket: [n] in the type that travels.
            begin: place of its first element among all of the tensor's.
        """
        start, end = max(begin, self.first), min(begin + len(bucket), self.first + len(self.elements))
        if start < end:
            bucket[start - begin : end - begin].copy_(self.elements[start - self.first : end - self.first])


def buckets(
    sources: Mapping[str, Source], layout: Layout, size: int, *, rank: int
) -> Iterator[tuple[Tensor, list[tuple[Entry, Tensor]]]]:
    """The stream in buckets on rank 0, each with what it has of which tensor; nothing on others, which take part.

    Args:
        sources: this rank's weights.
        layout: of what travels, for all of the sources; the types may be others.
        size: bytes of a bucket, a multiple of 8; the last one is shorter.
        rank: of this process.
    """
    group = next((source.group for source in sources.values() if source.group is not None), None)
    if rank and (group is None or 0 not in dist.get_process_group_ranks(group)):
        return  # rank 0 has all, or gets it from other copies
    device = next((source.elements.device for source in sources.values()), torch.device("cpu"))
    for parts, length in _cut(layout, size):
        bucket = torch.zeros(length, dtype=torch.uint8, device=device)
        views = []
        for entry, begin, start, count in parts:
            view = bucket[start : start + count]
            views.append((entry, view))
            source = sources[entry.name]
            if source.group is not None or rank == 0:
                source.add_to(view.view(entry.torch_dtype), begin // entry.torch_dtype.itemsize)
        if group is not None:
            # bytes of one rank each, and zeros of all others: their sum is what the rank has
            dist.reduce(bucket, dst=0, group=group)
        if rank == 0:
            yield bucket, views


def _cut(layout: Layout, size: int) -> Iterator[tuple[list[tuple[Entry, int, int, int]], int]]:
    """The buckets of a stream: (entry, its first byte there, place in the bucket, bytes) of each part, and length."""
    parts: list[tuple[Entry, int, int, int]] = []
    filled = 0
    for entry in layout.entries:
        begin, end = 0, aligned(entry.size)
        while begin < end:
            count = min(size - filled, end - begin)
            if begin < entry.size:
                parts.append((entry, begin, filled, min(count, entry.size - begin)))
            begin, filled = begin + count, filled + count
            if filled == size:
                yield parts, filled
                parts, filled = [], 0
    if filled:
        yield parts, filled
