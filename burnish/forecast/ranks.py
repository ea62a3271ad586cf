"""Ranks that are not there: this process is the first of them, and nothing is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor

from burnish.training.ranks import SINGLE_RANK, Ranks

T = TypeVar("T")


class PretendRanks:
    """Ranks that all do what this one does."""

    rank, timeout, group = 0, 1.0, None

    def __init__(self, size: int) -> None:
        self.size = size

    def clone_group(self) -> Ranks:
        return self

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        return dict(values)

    def max(self, value: int) -> int:
        return value

    def gather(self, value: T) -> list[T]:
        return [value] * self.size

    def to_first(self, value: T) -> list[T]:
        return [value] * self.size

    def exchange(self, pieces: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        return [pieces[0].new_zeros(count, *pieces[0].shape[1:]) for count in counts]

    def first(self, action: Callable[[], T]) -> T:
        return action()

    def barrier(self, what: str) -> None:
        """Nothing to wait for."""


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
