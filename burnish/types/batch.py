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
        moved: dict[str, Any] = {}
        for name, value in self._rows():
            if isinstance(value, Tensor):
                moved[name] = to_device(value, device)
            elif isinstance(value, Batch):
                moved[name] = value.to(device)
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
        return dataclasses.replace(self, table=self.table.to(device), index=to_device(self.index, device))

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


def to_device(value: Tensor, device: torch.device | str) -> Tensor:
    """The tensor there. The CPU waits for what comes from a GPU, and does not for what goes to one."""
    return value.to(device, non_blocking=value.device.type == "cpu")


def numbers(values: Sequence[Tensor | float]) -> list[float]:
    """As Python numbers. Those that lie on a GPU leave it together, so that the CPU waits for it once."""
    there = [value.double() for value in values if isinstance(value, Tensor) and value.device.type != "cpu"]
    arrived = iter(torch.stack(there).tolist() if there else [])
    return [
        next(arrived) if isinstance(value, Tensor) and value.device.type != "cpu" else float(value) for value in values
    ]


def _take(value: Any, positions: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, to_device(positions, value.device))
    if isinstance(value, Batch):
        return value.select(positions)
    return [value[int(i)] for i in positions]


def _join(values: list[Any]) -> Any:
    if isinstance(values[0], Tensor):
        return torch.cat(values)
    if isinstance(values[0], Batch):
        return type(values[0]).cat(values)
    return [item for value in values for item in value]
