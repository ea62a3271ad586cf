"""Tensors that stay with the rank that computed them, until another rank learns from their rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence, Sized
from typing import Any, TypeVar

import torch
from torch import Tensor

from burnish.training.ranks import Ranks, shares
from burnish.types.batch import Batch
from burnish.types.columns import Column, Here, stand_in

B = TypeVar("B", bound=Batch)
P = TypeVar("P", bound=Sized)


class AcrossRanks(Here):
    """Rows [N, ...] each of which one rank has; ``bring`` hands them to those who need them."""

    def __init__(self, tensor: Tensor, owner: Tensor, place: Tensor) -> None:
        """Take over what there is.

        Args:
            tensor: [M, ...] this rank's rows, on the CPU.
            owner: [N] long, the rank that has each row.
            place: [N] long, where it has it.
        """
        super().__init__(tensor)
        self.shape = len(owner), *tensor.shape[1:]
        self.owner, self.place = owner, place

    def take(self, rows: Tensor) -> Tensor:
        raise AssertionError("rows of other ranks are read before they were brought")


def kept_by_owners(ranks: Ranks, function: Callable[[P], Tensor], parts: Sequence[P]) -> Tensor:
    """What ``function`` makes of the rows of all parts, [N, ...]; of several ranks each keeps what it made.

    All ranks call it with the same parts, and each runs ``function`` equally often, since it may run a sharded network:
    a rank with a part less repeats the first one. Each has neighbouring parts, about those that it will learn.
    """
    if ranks.size == 1:
        return torch.cat([function(part) for part in parts])
    runs = shares([1] * len(parts), ranks.size)
    made = [function(part) for part in parts[runs[ranks.rank]]]
    if len(made) < math.ceil(len(parts) / ranks.size):
        again = function(parts[0])
        made = made or [again[:0]]
    counts = [sum(map(len, parts[run])) for run in runs]
    owner = torch.arange(ranks.size).repeat_interleave(torch.tensor(counts))
    place = torch.cat([torch.arange(count) for count in counts])
    return stand_in(Column.of(AcrossRanks(torch.cat(made), owner, place)))


def bring(batch: B, ranks: Ranks, wanted: Sequence[Sequence[int] | slice]) -> B:
    """This rank's rows of a batch, with those that other ranks computed.

    Args:
        batch: the same on every rank.
        ranks: all of which call this together.
        wanted: rows of each rank.
    """
    own = batch.select(wanted[ranks.rank])
    for field in _fields(batch):
        needed = [getattr(batch.select(rows), field) for rows in wanted]
        source: AcrossRanks = needed[ranks.rank].sources[0]
        asked = [column.row.flatten() for column in needed]  # by each rank, in its order
        sent = [source.tensor[source.place[rows[source.owner[rows] == ranks.rank]]] for rows in asked]
        mine = asked[ranks.rank]
        come = ranks.exchange(sent, [int((source.owner[mine] == rank).sum()) for rank in range(ranks.size)])
        order = source.owner[mine].argsort(stable=True)  # as they come: by who sent them, in this rank's order
        here = Column.of(Here(torch.cat(come)), order.argsort().view(needed[ranks.rank].row.shape))
        own = dataclasses.replace(own, **{field: here})  # type: ignore[type-var]
    return own


def without_others(batch: B) -> B:
    """A batch with zeros in place of what other ranks computed, for rows that count nothing."""
    empty = {}
    for field in _fields(batch):
        column = getattr(batch, field)
        source = Here(column.sources[0].tensor.new_zeros(1, *column.sources[0].shape[1:]))
        empty[field] = Column.of(source, torch.zeros_like(column.row))
    return dataclasses.replace(batch, **empty)  # type: ignore[type-var]


def _fields(batch: Any) -> list[str]:
    named = [(field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch)]
    return [name for name, value in named if isinstance(value, Column) and isinstance(value.sources[0], AcrossRanks)]
