"""Which held-out prompts a rank samples for."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

from torch import Tensor

from burnish.sources.asked import group_starts
from burnish.workers.ranks import Ranks, own_rows


class Rows(Protocol):
    """A job of an engine."""

    @property
    def group(self) -> Tensor:
        """[B] long: rows of a prompt stand next to each other."""

    def select(self, rows: slice) -> Self:
        """Some of its rows."""
        ...


J = TypeVar("J", bound=Rows)


def share(ranks: Ranks, job: J) -> J:
    """The rows that this rank samples: those of some prompts, in order; there may be none."""
    starts = group_starts(job.group)
    own = own_rows(ranks, len(starts) - 1)
    return job.select(slice(starts[own.start], starts[own.stop]))
