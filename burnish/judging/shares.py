"""Which held-out prompts a rank samples for."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

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
    sizes = torch.unique_consecutive(job.group, return_counts=True)[1]
    starts = [0, *sizes.cumsum(0).tolist()]
    own = own_rows(ranks, len(sizes))
    return job.select(slice(starts[own.start], starts[own.stop]))
