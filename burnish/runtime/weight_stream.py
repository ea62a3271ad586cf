"""Named weights as a stream of bytes in buckets, and a checksum of each that is made where it lies."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

ALIGNMENT = 8  # bytes
WORDS = 1 << 20  # 64-bit words that are summed at a time
ODD = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as int64: 2^64 divided by the golden ratio


class Mismatch(RuntimeError):
    """Weights are not what they should be; the message names the first tensor that differs."""


@dataclass(frozen=True)
class Entry:
    """One tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as torch calls it, without torch.

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> Entry:
        """What a tensor is, whatever it holds; of a sharded one, the whole."""
        return cls(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """Its type in torch."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def cast(self, dtype: str) -> Entry:
        """In another type, if both are of floating-point numbers."""
        found = dataclasses.replace(self, dtype=dtype)
        return found if self.torch_dtype.is_floating_point and found.torch_dtype.is_floating_point else self

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype} {list(self.shape)})"


@dataclass(frozen=True)
class Layout:
    """Which tensors travel, in which order."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> Layout:
        """Of named weights, in their order."""
        return cls(tuple(Entry.of(name, tensor) for name, tensor in weights.items()))

    @property
    def size(self) -> int:
        """Bytes of the stream, in which each tensor begins at a multiple of 8."""
        return sum(aligned(entry.size) for entry in self.entries)

    def cast(self, types: Mapping[str, str]) -> Layout:
        """With floating-point tensors in the types that the receiver has, by name."""
        return Layout(tuple(entry.cast(types.get(entry.name, entry.dtype)) for entry in self.entries))

    def empty(self, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Buffers for these weights, each on the device of its namesake."""
        return {
            entry.name: torch.empty(entry.shape, dtype=entry.torch_dtype, device=like[entry.name].device)
            for entry in self.entries
        }

    def check(self, own: Layout, version: int, *, full: bool) -> None:
        """See that these weights fit.

        Args:
            own: the receiver's weights.
            version: for the message.
            full: whether all of the receiver's weights have to come.

        Raises:
            Mismatch: a tensor is unknown, missing, or of another shape or type.
        """
        known = {entry.name: entry for entry in own.entries}
        for entry in self.entries:
            there = known.get(entry.name)
            if there != entry:
                what = f"has {there}" if there else "has no such tensor"
                raise Mismatch(f"weight sync v{version}: brings {entry}, but the receiver {what}")
        missing = known.keys() - {entry.name for entry in self.entries}
        if full and missing:
            first = next(entry for entry in own.entries if entry.name in missing)
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise Mismatch(
                f"weight sync v{version}: a receiver's first sync must bring all weights, but it lacks {first}{more}"
            )


def aligned(size: int) -> int:
    """Bytes that a tensor takes in the stream, so that no number of the next one is cut by a bucket's end."""
    return size + -size % ALIGNMENT


def pieces(tensor: Tensor) -> Tensor:
    """A contiguous tensor's bytes, uint8 [n], in the same memory."""
    return tensor.detach().view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)


class Reader:
    """Puts the bytes of buckets back into tensors."""

    def __init__(self, buffers: Mapping[str, Tensor]) -> None:
        self._left: list[
            Tensor | int
        ] = []  # what comes next, the last first: bytes of a tensor, or a number of unused ones
        for tensor in buffers.values():
            self._left += [pieces(tensor), aligned(tensor.nbytes) - tensor.nbytes]
        self._left.reverse()

    def take(self, bucket: Tensor) -> None:
        """The next bucket, uint8 [n]."""
        while len(bucket):
            following = self._left.pop()
            size = following if isinstance(following, int) else len(following)
            count = min(size, len(bucket))
            if isinstance(following, Tensor):
                following[:count].copy_(bucket[:count])
            if count < size:
                self._left.append(following - count if isinstance(following, int) else following[count:])
            bucket = bucket[count:]

    @property
    def left(self) -> int:
        """Bytes that are still to come."""
        return sum(one if isinstance(one, int) else len(one) for one in self._left)


class Checksum:
    """64 bits of a tensor's bytes, the same on every device; any one byte that differs changes them.

    Words, their upper half mixed into the lower, are summed modulo 2^64, each times an odd number of its place:
    integer sums have no order, and what is odd has an inverse, so that a change in one word can't vanish.
    """

    def __init__(self, device: torch.device) -> None:
        self._total = torch.zeros((), dtype=torch.int64, device=device)
        self._block = torch.zeros_like(self._total)
        self._words = 0  # of the block

    def add(self, content: Tensor) -> None:
        """The next bytes, uint8 [n]; only the last ones may not be a multiple of 8."""
        while len(content):
            part = content[: (WORDS - self._words) * 8]
            content = content[len(part) :]
            if spare := -len(part) % 8:
                part = torch.cat([part, part.new_zeros(spare)])
            words = part.clone().view(torch.int64) if part.storage_offset() % 8 else part.view(torch.int64)
            mixed = words ^ ((words >> 32) & 0xFFFFFFFF)  # else two changes of the highest bit would cancel
            places = _places(words.device)[self._words : self._words + len(words)]
            self._block = self._block + (mixed * places).sum()
            self._words += len(words)
            if self._words == WORDS:
                self._end_block()

    @property
    def value(self) -> Tensor:
        """The checksum of what was added, int64 []."""
        return self._total * ODD + self._block if self._words else self._total

    def _end_block(self) -> None:
        self._total, self._block, self._words = self._total * ODD + self._block, torch.zeros_like(self._block), 0


def checksum(tensor: Tensor) -> int:
    """The ``Checksum`` of a tensor."""
    content = pieces(tensor.detach().contiguous())
    found = Checksum(content.device)
    found.add(content)
    return unsigned(found.value)


def unsigned(value: Tensor | int) -> int:
    """64 bits as a number from 0."""
    return int(value) & 0xFFFFFFFFFFFFFFFF


@cache
def _places(device: torch.device) -> Tensor:
    """An odd number for each place: [WORDS] int64, splitmix64 of the place."""
    z = torch.arange(1, WORDS + 1, dtype=torch.int64, device=device) * ODD
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (z ^ ((z >> 31) & ((1 << 33) - 1))) | 1


@dataclass(frozen=True)
class Fingerprint:
    """What weights of a version are: every tensor's name, shape, type and checksum."""

    version: int
    entries: tuple[Entry, ...]
    checksums: tuple[int, ...]

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], version: int) -> Fingerprint:
        """Of named weights."""
        return cls(version, Layout.of(weights).entries, tuple(map(checksum, weights.values())))

    @property
    def digest(self) -> str:
        """All of it in 16 letters."""
        return hashlib.sha256(json.dumps(dataclasses.astuple(self)).encode()).hexdigest()[:16]

    def check(self, found: Fingerprint, where: str) -> None:
        """See that what was found is this.

        Raises:
            Mismatch: it is not; the message names the first tensor that differs.
        """
        if found == self:
            return
        sync = f"weight sync v{self.version}"
        if found.version != self.version:
            raise Mismatch(f"{sync}: {where} has v{found.version}")
        for own, other, one, two in zip(self.entries, found.entries, self.checksums, found.checksums, strict=False):
            if own != other:
                raise Mismatch(f"{sync}: the trainer has {own} where {where} has {other}")
            if one != two:
                raise Mismatch(
                    f"{sync}: tensor {own} differs between the trainer and {where}: checksums {one:016x} and {two:016x}"
                )
        raise Mismatch(f"{sync}: the trainer has {len(self.entries)} tensors, {where} has {len(found.entries)}")
