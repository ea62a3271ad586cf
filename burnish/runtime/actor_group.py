"""Workers of one kind in a pool: plain Ray actors, called together or one by one, and replaced when they die."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import ray

from burnish.runtime.actor import BEAT, BESIDE, LIFE, RankInfo, WorkerProcess, environment
from burnish.runtime.calls import POLL, Call, RestartLimit, WorkerDied, WorkerTimeout
from burnish.runtime.cluster import Pool
from burnish.runtime.heartbeat import Heartbeat

log = logging.getLogger(__name__)

DAY = 86_400.0  # seconds after which a restart no longer counts
COMPUTING = ("compute_logprobs", "update")  # step by step; what reads or writes files may stand still for long
# of calls that do not wait for each other
LINES: dict[str, Any] = {"concurrency_groups": {BESIDE: 1, LIFE: 1, BEAT: 1}}


class ActorGroup:
    """One actor per rank of a pool. A method is called by its name; ``part.method`` is one of an attribute.

    Every wait has a deadline (ray.call_timeout, or what a call is given) and fails at once when a worker dies. In a
    collective group, whose workers wait for each other, one that dies, raises or times out ends the others too: then
    ``rebuild`` starts all again. So do workers of which none moves for long (``Heartbeat``). Otherwise the others go
    on, and ``restart`` replaces the one. Workers without state are replaced by Ray itself, which repeats their
    unfinished calls, so that others may call them by their handles.
    """

    def __init__(
        self,
        pool: Pool,
        kind: Callable[..., Any],
        arguments: Sequence[Sequence[Any]] | None = None,
        *,
        collective: bool,
        stateless: int = 0,
        nsight: Mapping[str, str] | None = None,
    ) -> None:
        """Start the workers and wait until all have made their object.

        Args:
            pool: where they are.
            kind: makes what answers calls, from its ``RankInfo`` and the arguments of its rank.
            arguments: one row per rank; None gives none.
            collective: whether the workers wait for each other.
            stateless: calls that a worker without state answers at once; 0 where workers have a state.
            nsight: options of Nsight Systems, under which the workers are to run; None leaves it alone.

        Raises:
            Unschedulable, WorkerTimeout: they are not there in time.
            RestartLimit: they die too often (ray.max_restarts).
            Exception: what making an object raised.
        """
        self.pool, self.kind, self.collective, self.stateless = pool, kind, collective, stateless
        self.arguments = [tuple(row) for row in (arguments or [()] * pool.size)]
        assert len(self.arguments) == pool.size, f"{len(self.arguments)} rows of arguments, {pool.size} workers"
        self.restarts = 0  # so far
        self._counted: list[float] = []  # when those were that count toward the limit
        self.ended: BaseException | None = None  # why there are no workers any more
        self.handles: list[Any] = [None] * pool.size
        self.pids = [0] * pool.size  # on their machines
        self.address, self._port = "", 0  # where torch.distributed meets, on rank 0's machine
        self._lives: dict[int, ray.ObjectRef[Any]] = {}  # by rank: ready when it is dead
        # a class of the name that Ray's lists and logs are to show
        self._actor: Any = ray.remote(**LINES)(type(kind.__name__, (WorkerProcess,), {}))
        restarts = pool.options.max_restarts if stateless else 0
        self._options: dict[str, Any] = {
            "num_cpus": pool.need.cpus,
            "num_gpus": pool.need.gpus,
            "runtime_env": {"env_vars": environment(pool.need.cpus, pool.need.gpus, pool.options.runtime_env)}
            | ({"nsight": dict(nsight)} if nsight is not None else {}),
            # with a state, Ray's own restart would run a call again on a fresh object
            "max_restarts": restarts,
            "max_task_retries": restarts,
            "max_concurrency": max(1, stateless),
        }
        try:
            self._replace(range(pool.size), restart=False)
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __len__(self) -> int:
        return self.pool.size

    @property
    def name(self) -> str:
        """Of the pool."""
        return self.pool.name

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all workers with the same arguments: what they return, in the order of ranks."""
        return self.submit(method, *arguments).results()

    def call_one(self, rank: int, method: str, *arguments: Any) -> Any:
        """Call a method of one worker."""
        return self.submit_one(rank, method, *arguments).result()

    def submit(
        self, method: str, *arguments: Any, beside: bool = False, seconds: float | None = None, option: str = ""
    ) -> Call:
        """Like ``call``, without waiting. Arguments are sent to Ray's store only once.

        Args:
            method: of the workers.
            arguments: of the method. A reference to a stored object arrives as that object.
            beside: run it while another call goes on, not after it. The method has to stand that.
            seconds: deadline; None is ray.call_timeout.
            option: where the user sets that deadline, for messages.
        """
        shared = [_stored(argument, len(self)) for argument in arguments]
        responses = {rank: self._ask(rank, method, shared, beside, 1) for rank in range(len(self))}
        call = self._call(method, responses, seconds, option)
        if self.collective and method in COMPUTING:
            call.heartbeat, call.handles = Heartbeat(tuple(responses), call.start), self.handles
        return call

    def submit_one(
        self,
        rank: int,
        method: str,
        *arguments: Any,
        keep: bool = False,
        beside: bool = False,
        seconds: float | None = None,
        option: str = "",
    ) -> Call:
        """Like ``call_one``, without waiting; see ``submit``.

        With ``keep`` the method gives a pair: its first half is the result, its second half stays in the object
        store, as ``kept[rank]`` of the call, where it outlives the worker.
        """
        found = self._ask(rank, method, arguments, beside, 2 if keep else 1)
        response, kept = found if keep else (found, None)
        call = self._call(method, {rank: response}, seconds, option)
        if kept is not None:
            call.kept[rank] = kept
        return call

    def dead(self) -> list[int]:
        """Workers whose processes are known to be gone, whether or not anything was asked of them."""
        lives = {life: rank for rank, life in self._lives.items()}
        gone, _ = ray.wait(list(lives), num_returns=len(lives), timeout=0) if lives else ([], [])
        return sorted(lives[life] for life in gone)

    def watched(self) -> dict[ray.ObjectRef[Any], int]:
        """References that are ready when a worker is dead, by which all others would wait for ever; with its rank."""
        return {life: rank for rank, life in self._lives.items()} if self.collective else {}

    def failed(self, rank: int, error: BaseException) -> None:
        """A worker died, raised or timed out; the others of a collective group would wait for it."""
        if self.collective and self.ended is None:
            self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """Kill all workers at once; ``error`` says why."""
        self.ended = error or RuntimeError("it was closed")
        for rank in range(len(self)):
            self._kill(rank)

    def restart(self, rank: int) -> None:
        """Replace one worker by a fresh one in the same place; what it held is gone.

        Raises:
            RestartLimit: that happened too often (ray.max_restarts within a day).
            Unschedulable: its machine was lost, and the cluster has no other in time.
            WorkerTimeout: it takes too long.
        """
        assert not self.collective, "workers that wait for each other are replaced together: rebuild()"
        self._replace([rank])

    def rebuild(self) -> None:
        """Replace all workers by fresh ones in the same places, with a new rendezvous; raises as ``restart``."""
        self._replace(range(len(self)))

    def _replace(self, ranks: Sequence[int], *, restart: bool = True) -> None:
        while True:
            if restart:
                self._count_restart()
            for rank in ranks:
                self._kill(rank)
            machines = self.pool.machines()
            try:
                self._start(ranks)
                return
            except WorkerDied as error:
                log.warning("a fresh worker is replaced: %s", error)
                self.ended, restart = error, True
                if self.pool.lost(machines) and self._counted:
                    self._counted.pop()  # it was sent to a machine whose death Ray had not noticed yet

    def _count_restart(self) -> None:
        """Count one.

        Raises:
            RestartLimit: there were too many in the last day.
        """
        options, now = self.pool.options, time.monotonic()
        self.restarts += 1
        self._counted = [then for then in self._counted if now - then < DAY] + [now]
        if len(self._counted) > options.max_restarts:
            why = f"; the last time: {self.ended}" if self.ended else ""
            raise RestartLimit(
                f"workers of pool {self.name} had to be replaced {len(self._counted)} times "
                f"(ray.max_restarts={options.max_restarts}) within a day{why}; "
                "look for the cause in Ray's logs, and start the same command again to resume"
            )

    def _start(self, ranks: Sequence[int]) -> None:
        seconds, option = self.pool.options.start_timeout, "ray.start_timeout"
        for rank in ranks:
            actor = self._actor.options(scheduling_strategy=self.pool.strategy(rank), **self._options)
            self.handles[rank] = actor.remote(*self._build(rank)) if self.stateless else actor.remote()
        starts = {rank: self.handles[rank].start.remote() for rank in ranks}
        self._await_capacity(list(starts.values()))
        started = self._call("start", starts, seconds, option).results()
        for rank, (pid, _, _) in zip(ranks, started, strict=True):
            self.pids[rank] = pid
            if not self.stateless:
                self._lives[rank] = self.handles[rank].live.remote()
        if len(ranks) == len(self):
            _, self.address, self._port = started[0]
        built = {rank: self.handles[rank].build.remote(*self._build(rank)) for rank in ranks}
        self.ended = None
        self._call("__init__", built, seconds, option).results()

    def _build(self, rank: int) -> tuple[Any, ...]:
        """What a worker makes its object of."""
        rank_info = RankInfo(
            rank=rank,
            size=len(self),
            device=self.pool.need.device,
            address=self.address,
            port=self._port,
            directory="" if "working_dir" in self.pool.options.runtime_env else os.getcwd(),
        )
        return self.kind, rank_info, self.arguments[rank]

    def _await_capacity(self, pending: list[ray.ObjectRef[Any]]) -> None:
        """Wait until Ray has put the actors somewhere: after a machine was lost that may be never."""
        options, now = self.pool.options, time.monotonic()
        deadline, placed_by = now + options.start_timeout, now + options.placement_timeout
        while ray.wait(pending, num_returns=len(pending), timeout=POLL)[1]:
            now = time.monotonic()
            if self.pool.placed():
                placed_by = now + options.placement_timeout
            elif now > placed_by:
                raise self.pool.unschedulable()
            if now > deadline:
                raise WorkerTimeout(
                    f"timed out after {options.start_timeout:g} s (ray.start_timeout) waiting for the workers of pool "
                    f"{self.name} to start; check Ray's logs"
                )

    def _ask(self, rank: int, method: str, arguments: Sequence[Any], beside: bool, returns: int) -> Any:
        if self.ended is not None:
            raise WorkerDied(self.name, rank, f"the pool was ended: {self.ended}")
        if self.handles[rank] is None:
            raise WorkerDied(self.name, rank, "it has been ended")
        remote = self.handles[rank].call_beside if beside else self.handles[rank].call
        return remote.options(num_returns=returns, name=method).remote(method, *arguments)

    def _call(self, method: str, responses: dict[int, ray.ObjectRef[Any]], seconds: float | None, option: str) -> Call:
        if seconds is None:
            seconds, option = self.pool.options.call_timeout, "ray.call_timeout"
        return Call(group=self, method=method, responses=responses, seconds=seconds, option=option or "seconds")

    def _kill(self, rank: int) -> None:
        if self.handles[rank] is not None:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it is dead already
                ray.kill(self.handles[rank], no_restart=True)
            self.handles[rank] = None
            self._lives.pop(rank, None)


def _stored(argument: Any, workers: int) -> Any:
    """An argument of several workers, in the object store once; small ones travel with the call."""
    small = isinstance(argument, str | bytes | int | float | bool | type(None) | ray.ObjectRef)
    return argument if small or workers == 1 else ray.put(argument)
