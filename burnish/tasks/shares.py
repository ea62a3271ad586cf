"""Which held-out prompts a rank samples for, and what all ranks have made of theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

from torch import Tensor

from burnish.rollout.requests import group_starts
from burnish.training.ranks import Ranks, own_rows
from burnish.utils.errors import Cancelled


class Rows(Protocol):
    """A job of an engine."""

    @property
    def group(self) -> Tensor:
        """[B] long: rows of a prompt stand next to each other."""

    def select(self, rows: slice) -> Self:
        """Some of its rows."""
        ...


J = TypeVar("J", bound=Rows)
T = TypeVar("T")


def share(ranks: Ranks, job: J) -> J:
    """The rows that this rank samples: those of some prompts, in order; there may be none."""
    starts = group_starts(job.group)
    own = own_rows(ranks, len(starts) - 1)
    return job.select(slice(starts[own.start], starts[own.stop]))


def of_all(ranks: Ranks, work: Callable[[], T]) -> list[T]:
    """What every rank makes of its share, in their order.

    Raises:
        Cancelled: on all ranks, where one gave up. None may leave the others waiting for it.
    """
    try:
        own = [work()]
    except Cancelled:
        own = []
    shares = ranks.gather(own)
    if not all(shares):
        raise Cancelled
    return [one for some in shares for one in some]
