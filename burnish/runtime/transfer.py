"""Batches by reference: stored once on the machine that made them, and read where their rows are needed."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import ray
import torch
from torch import Tensor

from burnish.types.batch import Batch, shared
from burnish.types.completion import Lengths

SMALL = 4096  # bytes; shorter tensors travel inside the head

T = TypeVar("T")


@dataclass(frozen=True)
class Packed:
    """A batch as Ray's object store keeps it: arrays are read where they lie there, which torch's tensors are not."""

    head: bytes  # everything but the long tensors
    arrays: list[np.ndarray]  # uint8, their bytes
    rows: int

    def unpack(self) -> Any:
        """The batch, bit for bit, on the CPU.

        Its tensors are copies. What lies in the store belongs to every process of the machine, and a tensor on top
        of it could be written to, by an in-place operation of whoever learns from it.
        """
        return pickle.loads(self.head, buffers=self.arrays)


def pack(batch: Batch) -> Packed:
    """Take a batch apart; tensors on a GPU come to the CPU. Tables and tensors that it holds twice stay one."""
    arrays: list[np.ndarray] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        arrays.append(np.frombuffer(buffer.raw(), dtype=np.uint8))

    head = io.BytesIO()
    _Pickler(head, keep).dump(batch)
    return Packed(head.getvalue(), arrays, len(batch))


class _Pickler(pickle.Pickler):
    """Writes tensors as bytes; the rest as usual."""

    def __init__(self, file: io.BytesIO, keep: Callable[[pickle.PickleBuffer], None]) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        content = flat.tobytes() if flat.nbytes < SMALL else pickle.PickleBuffer(flat)  # type: ignore[arg-type]
        return _tensor, (content, value.dtype, tuple(value.shape))


def _tensor(content: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.numel():
        tensor.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(content, dtype=np.uint8)
    return tensor


@dataclass(frozen=True)
class Stored:
    """A batch in the object store. It is freed when nobody refers to it any more."""

    reference: ray.ObjectRef[Any]  # of a Packed
    rows: int

    @classmethod
    def put(cls, batch: Batch) -> Stored:
        """Store a batch. It is lost with the process that stores it: a worker gives a ``Packed`` to keep instead."""
        packed = pack(batch)
        return cls(ray.put(packed), packed.rows)

    def read(self, *, seconds: float) -> Any:
        """The batch, the reader's own.

        Raises:
            ray.exceptions.GetTimeoutError: it does not come in time.
            ray.exceptions.ObjectLostError: the machine that held it, or its owner, is gone.
        """
        return ray.get(self.reference, timeout=seconds).unpack()


@dataclass(kw_only=True)
class Pointers(Batch):
    """Rows of stored batches of one type: selected, reordered and joined by whoever never sees what is in them."""

    part: Tensor  # [B] long: which of the stored batches
    row: Tensor  # [B] long: which of its rows
    stored: list[Stored] = shared()

    @classmethod
    def to_all(cls, stored: Stored) -> Pointers:
        """Every row of a stored batch."""
        return cls(part=torch.zeros(stored.rows, dtype=torch.long), row=torch.arange(stored.rows), stored=[stored])

    def select(self, index: Tensor | Sequence[int] | slice) -> Self:
        """The rows at ``index``; stored batches that none of them is in are let go."""
        return super().select(index)._needed()

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Rows of all parts, in order. A batch that several of them point into stays one."""
        if len(parts) == 1:
            return parts[0]
        places: dict[Any, int] = {}
        stored: list[Stored] = []
        numbers = []
        for pointers in parts:
            for one in pointers.stored:
                if one.reference not in places:
                    places[one.reference] = len(stored)
                    stored.append(one)
            here = torch.tensor([places[one.reference] for one in pointers.stored], dtype=torch.long)
            numbers.append(here[pointers.part])
        return dataclasses.replace(super().cat(parts), part=torch.cat(numbers), stored=stored)

    def resolve(self, *, seconds: float) -> Any:
        """What the rows hold, as one batch in their order.

        Args:
            seconds: that each stored batch may take to come.

        Raises:
            ray.exceptions.GetTimeoutError, ray.exceptions.ObjectLostError: see ``Stored.read``.
        """
        assert self.stored, "no stored batch says of which type nothing is"
        pieces, order = [], []
        for number, stored in enumerate(self.stored):
            places = (self.part == number).nonzero().flatten()
            batch, rows = stored.read(seconds=seconds), self.row[places]
            whole = torch.equal(rows, torch.arange(stored.rows))
            pieces.append(batch if whole else batch.select(rows))
            order.append(places)
        joined = type(pieces[0]).cat(pieces)
        places = torch.cat(order)
        in_order = torch.equal(places, torch.arange(len(self)))
        return joined if in_order else joined.select(places.argsort())

    def _needed(self) -> Self:
        used = self.part.unique().tolist() or [0]  # one stays to say of which type nothing is
        if len(used) >= len(self.stored):
            return self
        number = torch.zeros(len(self.stored), dtype=torch.long)
        number[used] = torch.arange(len(used))
        return dataclasses.replace(self, part=number[self.part], stored=[self.stored[old] for old in used])


@dataclass(kw_only=True)
class ResponsePointers(Pointers):
    """Rows of stored responses, and how long they are."""

    lengths: Lengths


def resolved(batch: T, *, seconds: float) -> T:
    """The same record with what it points to in place of pointers, in fields of fields too."""
    if isinstance(batch, Pointers):
        there: T = batch.resolve(seconds=seconds)
        return there
    if not isinstance(batch, Batch):
        return batch
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}  # type: ignore[arg-type]
    inner = {name: resolved(value, seconds=seconds) for name, value in values.items()}
    changed = {name: value for name, value in inner.items() if value is not values[name]}
    return dataclasses.replace(batch, **changed) if changed else batch  # type: ignore[type-var]
