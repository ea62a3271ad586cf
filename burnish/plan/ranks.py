"""Ranks that are not there: this process is the first of them, and nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor

from burnish.training.ranks import SINGLE_RANK, Ranks, exchanged

T = TypeVar("T")


class PretendRanks(Ranks):
    """Ranks that all do what this one does."""

    timeout = 1.0

    def __init__(self, size: int, group: Any = None) -> None:
        self.size, self.group = size, group

    def in_contexts(self, size: int) -> Ranks:
        import torch.distributed as dist

        found = PretendRanks(self.size)
        if size > 1:
            if size < self.size:
                found._rows = PretendRanks(self.size // size, dist.new_group(list(range(0, self.size, size))))
            else:
                found._rows = SINGLE_RANK
            found._context = PretendRanks(size, dist.new_group(list(range(size))))
        return found

    def gather(self, value: T) -> list[T]:
        return [value] * self.size

    def to_first(self, value: T) -> list[T]:
        return [value] * self.size

    def exchange(self, pieces: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        return exchanged(pieces, counts, self.group)


@contextmanager
def pretend_ranks(size: int) -> Iterator[Ranks]:
    """The first of ``size`` ranks, with a process group whose collectives do nothing."""
    if size == 1:
        yield SINGLE_RANK
        return
    import torch.distributed as dist
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield PretendRanks(size)
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()  # what is remembered of this group would be taken for that of a later, real one
