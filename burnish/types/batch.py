"""Typed batches: dataclasses of tensors and lists whose first axis is the sample."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

SMALLEST_PINNED = 2**16  # bytes up to which CUDA copies pageable memory without waiting
LARGEST_PINNED = 2**28  # bytes of a copy that go through pinned memory, which stays with the process


def shared(**kwargs: Any) -> Any:
    """A field of the batch rather than of one sample: never indexed, and equal in batches that are concatenated."""
    return dataclasses.field(metadata={"shared": True}, **kwargs)


def heavy(**kwargs: Any) -> Any:
    """A field of states, pixels or embeddings, which in another process is read by whoever uses a row."""
    return dataclasses.field(metadata={"heavy": True}, **kwargs)


def on_host(**kwargs: Any) -> Any:
    """A field of numbers that code on the CPU reads: it stays in its memory, where nobody waits for them."""
    return dataclasses.field(metadata={"on_host": True}, **kwargs)


class Batch:
    """Base of the batches of the loop. Subclasses are dataclasses; shards and micro-batches never split a row."""

    is_remote: ClassVar[bool] = False  # whether it stands in for what is read when it is moved to a device

    def __len__(self) -> int:
        return len(next(value for _, value in self._rows()))

    def select(self, index: Tensor | Sequence[int] | slice) -> Self:
        """The samples at ``index`` (positions or a slice), in that order."""
        positions = as_positions(index, len(self))
        return dataclasses.replace(self, **{n: _take(v, positions) for n, v in self._rows()})  # type: ignore[type-var]

    def to(self, device: torch.device | str) -> Self:
        """The same batch with its tensors on ``device``."""
        moved = {
            name: to_device(value, device) if isinstance(value, Tensor) else value.to(device)
            for name, value in self._movable()
            if isinstance(value, Tensor | Batch)
        }
        return dataclasses.replace(self, **moved)  # type: ignore[type-var]

    def costs(self) -> list[int]:
        """What a pass with each row costs, by which rows are shared out over ranks; all the same by default."""
        return [1] * len(self)

    def split(self, size: int) -> Iterator[Self]:
        """Consecutive chunks of at most ``size`` samples."""
        for start in range(0, len(self), size):
            yield self if len(self) <= size else self.select(slice(start, start + size))

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """Concatenate batches along the sample axis, in order."""
        first = batches[0]
        if len(batches) == 1:
            return first
        joined = {name: _join([getattr(batch, name) for batch in batches]) for name, _ in first._rows()}
        return dataclasses.replace(first, **joined)  # type: ignore[type-var]

    def _movable(self) -> Iterator[tuple[str, Any]]:
        """The rows that go where the batch goes."""
        stay = {field.name for field in dataclasses.fields(self) if field.metadata.get("on_host")}  # type: ignore[arg-type]
        return ((name, value) for name, value in self._rows() if name not in stay)

    def _rows(self) -> Iterator[tuple[str, Any]]:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if not field.metadata.get("shared"):
                yield field.name, getattr(self, field.name)


B = TypeVar("B", bound=Batch)


@dataclasses.dataclass(kw_only=True)
class Gathered(Batch, Generic[B]):
    """Rows of a table by index: what the samples of one prompt share is stored once per prompt."""

    table: B = shared()
    index: Tensor  # [B] long, row of the table

    def rows(self) -> B:
        """The table's rows, one per sample."""
        return self.table.select(self.index)

    def to(self, device: torch.device | str) -> Self:
        """The same rows on ``device``; of a table that lies elsewhere only those that are used."""
        table, index = self.table, self.index
        if not lies_on(table, device):
            used, index = index.unique(return_inverse=True)
            table = table.select(used).to(device)
        return dataclasses.replace(self, table=table, index=to_device(index, device))

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        first = batches[0]
        if all(batch.table is first.table for batch in batches):
            return dataclasses.replace(first, index=torch.cat([batch.index for batch in batches]))
        starts = itertools.accumulate((len(batch.table) for batch in batches), initial=0)
        table = type(first.table).cat([batch.table for batch in batches])
        index = torch.cat([batch.index + start for batch, start in zip(batches, starts, strict=False)])
        return dataclasses.replace(first, table=table, index=index)


def to_device(value: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device. Copies to a GPU are asynchronous; the CPU waits for copies from one."""
    if value.device.type == "cpu" and torch.device(device).type == "cuda":
        if SMALLEST_PINNED < value.nbytes <= LARGEST_PINNED and not value.is_pinned():
            value = value.pin_memory()  # from pageable memory CUDA first waits for what the GPU is doing
        return value.to(device, non_blocking=True)
    return value.to(device, non_blocking=value.device.type == "cpu")


def lies_on(batch: Batch, device: torch.device | str) -> bool:
    """Whether all tensors of a batch are on a device already."""
    wanted = torch.device(device)
    found = {value.device for _, value in batch._movable() if isinstance(value, Tensor)}
    here = all(one.type == wanted.type and wanted.index in (None, one.index) for one in found)
    inner = [value for _, value in batch._rows() if isinstance(value, Batch)]
    return here and not batch.is_remote and all(lies_on(value, device) for value in inner)


def device_of(batch: Batch) -> torch.device:
    """Where the tensors of a batch lie."""
    return next((value.device for _, value in batch._movable() if isinstance(value, Tensor)), torch.device("cpu"))


def is_sharded(value: Any) -> bool:
    """Whether a tensor is a DTensor, without importing DTensor."""
    return isinstance(value, Tensor) and hasattr(value, "to_local")


def numbers(values: Sequence[Tensor | float]) -> list[float]:
    """Scalars as Python floats. Those on a GPU are copied together, so that the CPU waits for it once."""
    on_gpu = [isinstance(value, Tensor) and value.device.type != "cpu" for value in values]
    stacked = [value.double() for value, remote in zip(values, on_gpu, strict=True) if remote]  # type: ignore[union-attr]
    copied = iter(torch.stack(stacked).tolist() if stacked else [])
    return [next(copied) if remote else float(value) for value, remote in zip(values, on_gpu, strict=True)]


def settle(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.synchronize(device)


def as_positions(index: Tensor | Sequence[int] | slice, count: int) -> Tensor:
    """Positions, or a slice of ``count`` rows, as a long tensor."""
    if isinstance(index, slice):
        index = range(count)[index]
    return torch.as_tensor(index if isinstance(index, Tensor) else list(index), dtype=torch.long)


def first_of_each(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where each distinct id [N] or [N, D] occurs first, in rising order of ids, and which of these each row has."""
    known, place = torch.unique(ids, return_inverse=True, dim=0)
    first = torch.full((len(known),), len(ids)).scatter_reduce(0, place, torch.arange(len(ids)), "amin")
    return first, place


def _take(value: Any, positions: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, to_device(positions, value.device))
    if isinstance(value, Batch):
        return value.select(positions)
    return [value[i] for i in positions.tolist()]


def _join(values: list[Any]) -> Any:
    batch = next((value for value in values if isinstance(value, Batch)), None)
    if batch is not None:  # which may stand in for a tensor among tensors
        return type(batch).cat(values)
    if isinstance(values[0], Tensor):
        return torch.cat(values)
    return [item for value in values for item in value]
