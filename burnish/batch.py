"""Typed batches: dataclasses of tensors and lists whose first axis is the sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor


def shared(**kwargs: Any) -> Any:
    """A field that describes the whole batch rather than one sample: not indexed, equal in batches that are joined."""
    return dataclasses.field(metadata={"shared": True}, **kwargs)


class Batch:
    """What travels through the loop. Subclasses are dataclasses; a row is an atom that no shard or micro-batch cuts."""

    def __len__(self) -> int:
        for _, value in self._rows():
            return len(value)
        raise AssertionError(f"{type(self).__name__} has no field with a sample axis")

    def select(self, index: Tensor | Sequence[int] | slice) -> Self:
        """The samples at ``index`` (positions or a slice), in that order."""
        if isinstance(index, slice):
            index = range(len(self))[index]
        positions = torch.as_tensor(list(index) if not isinstance(index, Tensor) else index, dtype=torch.long)
        return dataclasses.replace(self, **{n: _take(v, positions) for n, v in self._rows()})  # type: ignore[type-var]

    def to(self, device: torch.device | str) -> Self:
        """The same batch with its tensors on ``device``."""
        moved = {n: v.to(device) for n, v in self._rows() if isinstance(v, Tensor | Batch)}
        return dataclasses.replace(self, **moved)  # type: ignore[type-var]

    def split(self, size: int) -> Iterator[Self]:
        """Consecutive parts of at most ``size`` samples."""
        for start in range(0, len(self), size):
            yield self.select(slice(start, start + size))

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Join batches along the sample axis, in order."""
        first = parts[0]
        if len(parts) == 1:
            return first
        joined = {name: _join([getattr(p, name) for p in parts]) for name, _ in first._rows()}
        return dataclasses.replace(first, **joined)  # type: ignore[type-var]

    def _rows(self) -> Iterator[tuple[str, Any]]:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if not field.metadata.get("shared"):
                yield field.name, getattr(self, field.name)


B = TypeVar("B", bound=Batch)


@dataclasses.dataclass(kw_only=True)
class Gathered(Batch, Generic[B]):
    """Rows of a table by reference: what the samples of one prompt share is stored once per prompt."""

    table: B = shared()
    index: Tensor  # [B] long, row of the table

    def rows(self) -> B:
        """The table's rows, one per sample."""
        return self.table.select(self.index)

    def to(self, device: torch.device | str) -> Self:
        return dataclasses.replace(self, table=self.table.to(device), index=self.index.to(device))

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        if all(part.table is parts[0].table for part in parts):
            return dataclasses.replace(parts[0], index=torch.cat([part.index for part in parts]))
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + len(part.table))
        table = type(parts[0].table).cat([part.table for part in parts])
        index = torch.cat([part.index + start for part, start in zip(parts, starts, strict=False)])
        return dataclasses.replace(parts[0], table=table, index=index)


def _take(value: Any, positions: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, positions.to(value.device))
    if isinstance(value, Batch):
        return value.select(positions)
    return [value[int(i)] for i in positions]


def _join(values: list[Any]) -> Any:
    if isinstance(values[0], Tensor):
        return torch.cat(values)
    if isinstance(values[0], Batch):
        return type(values[0]).cat(values)
    return [item for value in values for item in value]
