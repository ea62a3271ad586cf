"""What a rank of the trainer knows of the others: which one it is, and how all of them agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
P = TypeVar("P")


class RanksLost(RuntimeError):
    """The other ranks did not come to where all of them have to meet."""


class Ranks(Protocol):
    """Processes that train one set of networks together. All of them call the same methods in the same order."""

    @property
    def rank(self) -> int:
        """Which one this is, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def timeout(self) -> float:
        """Seconds that they wait for each other at most."""

    @property
    def group(self) -> Any:
        """What torch.distributed knows them by; None is its default group."""

    def clone_group(self) -> Ranks:
        """The same ranks over connections of their own, for a thread that meets them beside this one.

        All of them call it. It meets on the CPU.
        """
        ...

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sums over ranks by name; a name may be missing on some of them."""
        ...

    def max(self, value: int) -> int:
        """The largest value that a rank has."""
        ...

    def gather(self, value: T) -> list[T]:
        """The values of all ranks in their order. What they hold of tensors is on the CPU."""
        ...

    def first(self, action: Callable[[], T]) -> T:
        """What an action of the first rank alone returns; what it raises is raised on all."""
        ...

    def barrier(self, what: str) -> None:
        """Wait until all ranks are here; ``what`` says where, in an error."""
        ...


class SingleRank:
    """The only rank: it agrees with itself."""

    rank, size, timeout, group = 0, 1, 0.0, None

    def clone_group(self) -> Ranks:
        return self

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        return dict(values)

    def max(self, value: int) -> int:
        return value

    def gather(self, value: T) -> list[T]:
        return [value]

    def first(self, action: Callable[[], T]) -> T:
        return action()

    def barrier(self, what: str) -> None:
        """Nobody is waited for."""


SINGLE_RANK = SingleRank()


class ProcessRanks:
    """The processes of a group of torch.distributed that holds all of them, by default its own."""

    def __init__(self, timeout: float, group: Any = None) -> None:
        """Args: ``timeout`` in seconds is the group's; errors name it."""
        import torch.distributed as dist

        self._dist, self.timeout, self.group = dist, timeout, group
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._names: list[str] = []  # that any rank has ever summed, in the same order on all

    def clone_group(self) -> Ranks:
        limit = timedelta(seconds=self.timeout)
        return ProcessRanks(self.timeout, self._dist.new_group(backend="gloo", timeout=limit))

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """One reduction, in float64; a second one only when a name is seen for the first time."""
        known = set(self._names)
        news = [name for name in values if name not in known]
        row = [[values.get(name, 0.0), float(name in values)] for name in self._names]
        total = self._reduce(torch.tensor([[float(len(news)), 0.0], *row], dtype=torch.float64), "a sum").tolist()
        if total[0][0]:
            self._names += sorted({name for some in self.gather(news) for name in some})
            return self.sum(values)
        return {name: value for name, (value, there) in zip(self._names, total[1:], strict=True) if there}

    def max(self, value: int) -> int:
        return int(self._reduce(torch.tensor(value), "a maximum", largest=True))

    def gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.size
        with self._waiting("gathering what each has computed"):
            self._dist.all_gather_object(found, value, group=self.group)
        return found

    def first(self, action: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = action()
            except Exception as error:
                outcome[1] = error
        with self._waiting("what the first one does alone"):
            self._dist.broadcast_object_list(outcome, src=0, group=self.group)
        if outcome[1] is not None:
            raise outcome[1]
        value: T = outcome[0]
        return value

    def barrier(self, what: str) -> None:
        self._reduce(torch.zeros(1), what)

    def close(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()

    def _reduce(self, value: Tensor, what: str, *, largest: bool = False) -> Tensor:
        kind = self._dist.ReduceOp
        with self._waiting(what):
            self._dist.all_reduce(value, op=kind.MAX if largest else kind.SUM, group=self.group)
        return value

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RanksLost(
                f"rank {self.rank} of {self.size} waited up to {self.timeout:g} s for the others at {what}, and they "
                f"did not come: look for what ended one of them ({error})"
            ) from error


def join_ranks(rank: int, size: int, address: str, port: int, device: str, timeout: float) -> Ranks:
    """Meet the other ranks, and be one of them from now on; a single rank meets nobody.

    Args:
        rank: of this process, from 0.
        size: how many there are.
        address, port: where the first one listens.
        device: ``cpu``, or ``cuda`` for a GPU, which is the process's current one.
        timeout: seconds that any wait for the others may take, this one included.

    Raises:
        RanksLost: they did not all come in time.
    """
    if size == 1:
        return SINGLE_RANK
    import torch.distributed as dist

    from burnish.training.rendezvous import open_store, reach_store

    try:
        # not init_method=tcp://..., whose store listens on every network
        store = (reach_store if rank else open_store)(address, port, timeout)
        dist.init_process_group(
            # what is on the CPU, metrics above all, is never moved to a GPU to be summed
            backend="cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
    except (RuntimeError, OSError) as error:
        raise RanksLost(
            f"rank {rank} did not meet all {size} ranks at {address}:{port} within {timeout:g} s: look for what ended "
            f"one of them, and whether a firewall is between their machines ({error})"
        ) from error
    return ProcessRanks(timeout)


def distribute(ranks: Ranks, function: Callable[[P], T], parts: Iterable[P]) -> list[T]:
    """What ``function`` makes of every part, in order, the parts shared out among the ranks.

    All ranks call it with the same parts. Each runs ``function`` equally often, so that a network that lies on all of
    them can run in it: one that has a part less runs the first part once more for the others.
    """
    if ranks.size == 1:
        return [function(part) for part in parts]
    own: list[T] = []
    count = 0
    first: P | None = None
    for count, part in enumerate(parts, start=1):
        first = part if count == 1 else first
        if (count - 1) % ranks.size == ranks.rank:
            own.append(function(part))
    if first is not None and len(own) < math.ceil(count / ranks.size):
        function(first)
    gathered = ranks.gather(own)
    return [gathered[place % ranks.size][place // ranks.size] for place in range(count)]


def own_rows(ranks: Ranks, count: int) -> slice:
    """Which of so many rows this rank learns from: neighbours, as those of a prompt are, and as many as the others."""
    return slice(count * ranks.rank // ranks.size, count * (ranks.rank + 1) // ranks.size)
