"""The ranks that hold networks together: what they exchange, and how they stop together."""

from __future__ import annotations

import bisect
import itertools
import math
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from burnish.utils.errors import Cancelled

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def open_store(address: str, port: int, seconds: float) -> dist.TCPStore:
    """A store of this process that listens on ``address`` alone.

    ``TCPStore`` binds to all interfaces whatever its address is, so it gets a socket that is already bound.

    Args:
        address: of this machine: loopback for a single machine, else the one that the others connect to.
        port: to listen on; 0 takes a free one, see ``store.port``.
        seconds: timeout of the store.

    Raises:
        OSError: the address is not this machine's, or the port is in use.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError:
        listener.close()
        raise
    return dist.TCPStore(
        address,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=seconds),
        master_listen_fd=listener.detach(),  # torch closes it
    )


def reach_store(address: str, port: int, seconds: float) -> dist.TCPStore:
    """The store of another process.

    Raises:
        RuntimeError: timeout.
    """
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=seconds))


T = TypeVar("T")
P = TypeVar("P")


class RanksLost(RuntimeError):
    """Other ranks did not take part in a collective operation."""


class Ranks:
    """Processes that train together; here a single one. All of them call the same methods in the same order."""

    rank, size = 0, 1  # of this process, from 0; number of ranks
    timeout = 0.0  # of a collective operation, in seconds
    group: Any = None  # process group of torch.distributed; None is the default group
    tells = True  # whether it says what came of its rows, for all ranks that work on these
    _rows: Ranks | None = None
    _context: Ranks | None = None

    @property
    def rows(self) -> Ranks:
        """Ranks that rows are shared out to: of every group the one at this rank's place; by default all."""
        return self if self._rows is None else self._rows

    @property
    def context(self) -> Ranks:
        """Ranks that work on the same rows, each on a part of every sequence; by default this one alone."""
        return SINGLE_RANK if self._context is None else self._context

    def in_contexts(self, context: int, tensor: int = 1) -> Ranks:
        """The same ranks, in groups of neighbours that work on the same rows; a collective operation.

        Args:
            context: ranks of a context group, a divisor of all.
            tensor: ranks of a tensor group, which hold layers together; the same. One of both is 1.
        """
        return self

    def clone_group(self) -> Ranks:
        """The same ranks with a new gloo process group, for a background thread; a collective operation."""
        return self

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sums over ranks by name; a name may be missing on some ranks."""
        return dict(values)

    def max(self, value: int) -> int:
        """The maximum over ranks."""
        return value

    def gather(self, value: T) -> list[T]:
        """The values of all ranks in order; their tensors must be on the CPU."""
        return [value]

    def to_first(self, value: T) -> list[T]:
        """The values of all ranks in order, on rank 0; nothing on the others. Their tensors must be on the CPU."""
        return [value]

    def exchange(self, pieces: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """Rows from every rank to every rank, and to none besides.

        Args:
            pieces: rows [N, ...] on the CPU for each rank, all of one shape but for N.
            counts: rows that come from each rank.
        """
        return list(pieces)

    def each(self, action: Callable[[], T]) -> list[T]:
        """Run an action on every rank: the results in order; an exception on one of them is that of all."""
        return [action()]

    def first(self, action: Callable[[], T]) -> T:
        """Run an action on rank 0 alone; its result, or its exception, is that of all ranks."""
        return self.each(action if self.rank == 0 else lambda: None)[0]  # type: ignore[return-value]


SINGLE_RANK = Ranks()


class ProcessRanks(Ranks):
    """Ranks of a torch.distributed process group, by default the default group."""

    def __init__(self, timeout: float, group: Any = None) -> None:
        """Args: ``timeout`` is that of the group in seconds, for messages."""
        self.timeout, self.group = timeout, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._names: list[str] = []  # of all sums so far, in the same order on all ranks

    def in_contexts(self, context: int, tensor: int = 1) -> Ranks:
        size = context * tensor
        if size == 1:
            return self
        places, kind = torch.arange(self.size).view(-1, size), type(self)
        found = kind(self.timeout, self.group)
        if context > 1:
            found._context = kind(self.timeout, group_along(places, 1, self.timeout))
        found.tells = not self.rank % size
        found._rows = kind(self.timeout, group_along(places, 0, self.timeout)) if len(places) > 1 else SINGLE_RANK
        return found

    def clone_group(self) -> Ranks:
        limit = timedelta(seconds=self.timeout)
        return ProcessRanks(self.timeout, dist.new_group(backend="gloo", timeout=limit))

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """One all-reduce in float64, and further ones only when a name is new."""
        known = set(self._names)
        new = [name for name in values if name not in known]
        row = [[values.get(name, 0.0), float(name in values)] for name in self._names]
        total = self._reduce(torch.tensor([[float(len(new)), 0.0], *row], dtype=torch.float64), "a sum").tolist()
        if total[0][0]:
            self._names += sorted({name for some in self.gather(new) for name in some})
            return self.sum(values)
        return {name: value for name, (value, there) in zip(self._names, total[1:], strict=True) if there}

    def max(self, value: int) -> int:
        return int(self._reduce(torch.tensor(value), "a maximum", largest=True))

    def gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.size
        with self._waiting("an all-gather"):
            dist.all_gather_object(found, value, group=self.group)
        return found

    def to_first(self, value: T) -> list[T]:
        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self._waiting("a gathering on rank 0"):
            dist.gather_object(value, found, group_dst=0, group=self.group)
        return found or []

    def exchange(self, pieces: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        rows = torch.cat(list(pieces)).contiguous()
        come = rows.new_empty(sum(counts), *rows.shape[1:])
        with self._waiting("an exchange of rows"):
            dist.all_to_all_single(
                come.view(len(come), math.prod(rows.shape[1:])),
                rows.view(len(rows), math.prod(rows.shape[1:])),
                list(counts), [len(piece) for piece in pieces], group=self.group,
            )  # fmt: skip
        return list(come.split(list(counts)))

    def each(self, action: Callable[[], T]) -> list[T]:
        results: list[T] = []
        failed: BaseException | None = None
        try:
            results = [action()]
        except (Exception, Cancelled) as error:  # the others would wait for this rank
            failed = error
        outcomes = self.gather((results, failed))
        for reason in (failed, *(theirs for _, theirs in outcomes)):  # this rank's own has its traceback
            if reason is not None:
                raise reason
        return [value for values, _ in outcomes for value in values]

    def _reduce(self, value: Tensor, what: str, *, largest: bool = False) -> Tensor:
        with self._waiting(what):
            dist.all_reduce(value, op=dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=self.group)
        return value

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RanksLost(
                f"rank {self.rank} of {self.size}: {what} failed or timed out after {self.timeout:g} s; check the logs "
                f"of the other ranks ({error})"
            ) from error


def group_along(places: Tensor, axis: int, timeout: float) -> Any:
    """The process group of this rank among those along an axis of an array of all ranks; a collective operation."""
    groups = places.movedim(axis, -1).flatten(0, -2).tolist()
    return dist.new_subgroups_by_enumeration(groups, timeout=timedelta(seconds=timeout))[0]


def device_mesh(ranks: Ranks, device: str, **sizes: int) -> DeviceMesh:
    """Device mesh of all ranks: neighbours make groups of these sizes, by the names of their axes, the last one
    innermost; what is in one of them is replicated along the first axis, ``replicate``."""
    from torch.distributed.device_mesh import DeviceMesh

    places = torch.arange(ranks.size).view(-1, *sizes.values())
    groups = [group_along(places, axis, ranks.timeout) for axis in range(places.ndim)]
    return DeviceMesh.from_group(groups, device, mesh=places, mesh_dim_names=("replicate", *sizes))


def join_ranks(rank: int, size: int, address: str, port: int, device: str, timeout: float) -> Ranks:
    """Initialise torch.distributed, unless there is a single rank.

    Args:
        rank: of this process, from 0.
        size: number of ranks.
        address, port: where rank 0 listens.
        device: ``cpu``, or ``cuda`` for the process's current GPU.
        timeout: seconds, for the rendezvous and every collective operation.

    Raises:
        RanksLost: not all ranks joined in time.
    """
    if size == 1:
        return SINGLE_RANK
    try:
        # not init_method=tcp://..., whose store listens on all interfaces
        store = (reach_store if rank else open_store)(address, port, timeout)
        dist.init_process_group(
            # CPU tensors, such as metrics, are reduced on the CPU
            backend="cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
    except (RuntimeError, OSError) as error:
        raise RanksLost(
            f"rank {rank}: timed out after {timeout:g} s waiting for all {size} ranks at {address}:{port}; check the "
            f"logs of the other ranks, and firewalls between the machines ({error})"
        ) from error
    return ProcessRanks(timeout)


def group_of_one() -> AbstractContextManager[None]:
    """A process group of this process alone, which FSDP asks for also where it only keeps weights in CPU memory."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")  # or it listens everywhere
    return process_group("gloo", dist.HashStore(), 1)


@contextmanager
def process_group(backend: str, store: Any, size: int) -> Iterator[None]:
    """A default process group of ``size`` ranks in this context, of which this is the first."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    dist.init_process_group(backend, store=store, rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()  # what is remembered of this group would be taken for that of a later one


def distribute(ranks: Ranks, function: Callable[[P], T], items: Iterable[P]) -> list[T]:
    """``[function(item) for item in items]`` on every rank, with the items distributed over the ranks.

    All ranks call it with the same items, and each runs ``function`` equally often, since it may run a sharded
    network: a rank with one item less repeats the first one.
    """
    if ranks.size == 1:
        return [function(item) for item in items]
    own: list[T] = []
    count = 0
    first: P | None = None
    for count, item in enumerate(items, start=1):
        first = item if count == 1 else first
        if (count - 1) % ranks.size == ranks.rank:
            own.append(function(item))
    if first is not None and len(own) < math.ceil(count / ranks.size):
        function(first)
    gathered = ranks.gather(own)
    return [gathered[i % ranks.size][i // ranks.size] for i in range(count)]


def own_rows(ranks: Ranks, count: int) -> slice:
    """The rows of ``count`` that this rank works on: contiguous, and as many as on other ranks ±1."""
    return shares([1] * count, ranks.size)[ranks.rank]


def shares(costs: Sequence[int], size: int) -> list[slice]:
    """The rows that each of ``size`` ranks trains on: contiguous, as those of a prompt are, and about as costly.

    None has more than its share and the cost of one row.
    """
    ends, total = list(itertools.accumulate(costs)), sum(costs)
    bounds = [bisect.bisect_right(ends, total * rank // size) for rank in range(size)] + [len(costs)]
    return [slice(start, end) for start, end in itertools.pairwise(bounds)]


class Lockstep:
    """The work of the ranks of a context group on the same samples; entered once.

    Before each forward they agree whether to go on. One that leaves by an error agrees once more, which cancels the
    others; one that fails within a forward can't, and whoever leads the ranks has to end them, as in an update.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Args: ``ranks`` of the group; a rank alone has nobody to agree with."""
        self._ranks, self._waited_for = ranks, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._waited_for and self._stopped(kind is not None) and kind is None:
            raise Cancelled

    @contextmanager
    def forward(self, check_cancelled: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Around what runs the network.

        Args:
            check_cancelled: called before; what it raises, as Cancelled, ends the work of all ranks.
        """
        try:
            check_cancelled()
        except Cancelled:
            self._stopped(True)
            raise
        if self._stopped(False):
            raise Cancelled
        yield
        self._waited_for = True

    def _stopped(self, here: bool) -> bool:
        """Whether one of the ranks stops, as this one does or not."""
        self._waited_for = False
        return bool(self._ranks.max(int(here)))
