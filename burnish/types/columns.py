"""Columns of a batch whose rows lie elsewhere until they are used: once on a path of states, or in another process."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor

from burnish.types.batch import Batch, shared, to_device

CHUNK = 16  # rows that are looked at together where a number is made of each


@dataclass(kw_only=True, eq=False)
class Source(ABC):
    """Rows of a tensor, wherever they are."""

    shape: tuple[int, ...]  # [N, ...]
    dtype: torch.dtype
    device: torch.device = torch.device("cpu")  # where rows are once they are taken

    @abstractmethod
    def take(self, rows: Tensor) -> Tensor:
        """The rows [M] long, on the CPU, in that order: [M, ...], the caller's own."""


class Here(Source):
    """A tensor of this process."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(shape=tuple(tensor.shape), dtype=tensor.dtype, device=tensor.device)
        self.tensor = tensor

    def take(self, rows: Tensor) -> Tensor:
        return self.tensor.index_select(0, to_device(rows, self.tensor.device))


@dataclass(kw_only=True, eq=False)
class Made(Source):
    """Rows that are made where they are used, and by nobody else."""

    make: Callable[[Tensor], Tensor]  # of rows [M] long: [M, ...] on the CPU

    def take(self, rows: Tensor) -> Tensor:
        return self.make(rows)


@dataclass(kw_only=True)
class Pointers(Batch):
    """Rows of sources, which are selected and joined without one being read."""

    part: Tensor  # [B, ...] long: which of the sources
    row: Tensor  # [B, ...] long: which of its rows
    sources: list[Any] = shared()

    def select(self, index: Tensor | Sequence[int] | slice) -> Self:
        """The rows at ``index``; sources that none of them is in are let go."""
        return super().select(index)._needed()

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """Rows of all, in order; a source of several of them stays one."""
        places: dict[Any, int] = {}
        parts = []
        for one in batches:
            numbers = [places.setdefault(source, len(places)) for source in one.sources]
            parts.append(torch.tensor(numbers, dtype=torch.long)[one.part])
        return dataclasses.replace(super().cat(batches), part=torch.cat(parts), sources=list(places))

    def _needed(self) -> Self:
        used = self.part.unique().tolist() or [0]  # one stays, which tells the shape of a row
        if len(used) >= len(self.sources):
            return self
        number = torch.zeros(len(self.sources), dtype=torch.long)
        number[used] = torch.arange(len(used))
        return dataclasses.replace(self, part=number[self.part], sources=[self.sources[old] for old in used])


@dataclass(kw_only=True)
class Column(Pointers):
    """Stands in for a tensor [B, ...] of a batch; moved to a device, it is one.

    It can be selected, joined and indexed along the axes [B, ...] of ``part`` without a row being read.
    """

    is_remote = True

    sources: list[Source] = shared()

    @classmethod
    def of(cls, source: Source, row: Tensor | None = None) -> Column:
        """Rows of one source, by default all of them."""
        row = torch.arange(source.shape[0]) if row is None else row
        return cls(part=torch.zeros_like(row), row=row, sources=[source])

    @property
    def shape(self) -> torch.Size:
        return torch.Size([*self.part.shape, *self.sources[0].shape[1:]])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.sources[0].dtype

    @property
    def device(self) -> torch.device:
        """Where rows are once they are read."""
        return self.sources[0].device

    def __getitem__(self, index: Any) -> Tensor:
        """Entries at CPU indices of the axes of ``part``; stands in for a tensor, as this does."""
        return stand_in(dataclasses.replace(self, part=self.part[index], row=self.row[index])._needed())

    def flatten(self, start: int, end: int) -> Tensor:
        """Two neighbouring axes as one; rows are read where the axes are theirs, as of a batch that was saved."""
        own = self if self.part.ndim > end else _of_axes(stand_in(self), end + 1)
        return stand_in(dataclasses.replace(own, part=own.part.flatten(start, end), row=own.row.flatten(start, end)))

    def view(self, *shape: int) -> Tensor:
        """Other axes of ``part``; those of a row stay."""
        axes = shape[: len(shape) - len(self.sources[0].shape) + 1]
        return stand_in(dataclasses.replace(self, part=self.part.view(axes), row=self.row.view(axes)))

    def values(self) -> Tensor:
        """The tensor."""
        part, row = self.part.flatten(), self.row.flatten()
        if len(self.sources) == 1:
            taken = self.sources[0].take(row)
        else:
            places = [(part == number).nonzero().flatten() for number in range(len(self.sources))]
            pieces = [one.take(row[place]) for one, place in zip(self.sources, places, strict=True) if len(place)]
            taken = torch.cat(pieces) if pieces else self.sources[0].take(row)
            order = torch.cat(places).argsort()
            taken = taken.index_select(0, to_device(order, taken.device))
        return taken.view(self.shape)

    def to(self, device: torch.device | str) -> Any:
        """The tensor, on ``device``."""
        return to_device(self.values(), device)

    @classmethod
    def cat(cls, batches: Sequence[Any]) -> Any:
        """As of ``Pointers``, and tensors may be among them: what has fewer axes is read."""
        axes = max(one.part.ndim for one in batches if isinstance(one, Column))
        return super().cat([one if isinstance(one, Column) and one.part.ndim == axes else _of_axes(one, axes)
                            for one in batches])  # fmt: skip


def _of_axes(value: Tensor, axes: int) -> Column:
    """A column of a tensor [*, ...] of which each entry of the first axes is a row of its own."""
    value = read(value)
    count = value.shape[:axes]
    return Column.of(Here(value.flatten(0, axes - 1)), torch.arange(count.numel()).view(count))


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name, each read when it is asked for and kept by nobody else."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.sources = dict(sources)

    def __getitem__(self, name: str) -> Tensor:
        source = self.sources[name]
        return source.take(torch.arange(source.shape[0]))

    def __iter__(self) -> Any:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


def stand_in(column: Column) -> Tensor:
    """A column as the tensor that it stands in for, for those who only hand it on."""
    return cast(Tensor, column)


def at(value: Tensor, *index: Tensor) -> Tensor:
    """Entries of a tensor, or of a column that stands in for one, at indices of its first axes on the CPU."""
    if isinstance(value, Column):
        return value[index]
    return value[tuple(to_device(one, value.device) for one in index)]


def read(value: Tensor) -> Tensor:
    """The tensor that a column stands in for; a tensor as it is."""
    return value.values() if isinstance(value, Column) else value


def states_once(state: Tensor, next_state: Tensor, time: Tensor, time_next: Tensor) -> tuple[Tensor, Tensor]:
    """Both of [B, K, ...] as columns of one tensor: a state in which one recorded step ended and the next one began is
    kept once."""
    count, steps = time.shape
    begins = torch.arange(count * steps).view(count, steps)
    time, time_next = time.cpu(), time_next.cpu()
    goes_on = torch.zeros(count, steps, dtype=torch.bool)
    goes_on[:, :-1] = time_next[:, :-1] == time[:, 1:]
    ends = torch.where(goes_on, begins + 1, count * steps - 1 + (~goes_on).flatten().cumsum(0).view(count, steps))
    last = next_state.flatten(0, 1)[to_device((~goes_on).flatten().nonzero().flatten(), next_state.device)]
    source = Here(torch.cat([state.flatten(0, 1), last]))
    return stand_in(Column.of(source, begins)), stand_in(Column.of(source, ends))
