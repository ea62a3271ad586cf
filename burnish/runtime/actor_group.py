"""Workers of one kind in a pool: plain Ray actors, called together or one by one, and replaced when they die."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import ray

from burnish.runtime.actor import BESIDE, LIFE, RankInfo, WorkerProcess, directory, environment
from burnish.runtime.calls import LOOK, Call
from burnish.runtime.faults import RestartLimit, WorkerDied, WorkerTimeout
from burnish.runtime.pools import Pool

log = logging.getLogger(__name__)

# Ray's own restarts would run a call again on a fresh object without the state of the old one
ONCE: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "concurrency_groups": {BESIDE: 1, LIFE: 1}}
ACTOR: Any = ray.remote(**ONCE)(WorkerProcess)


class ActorGroup:
    """One actor per rank of a pool. A method is called by its name; ``part.method`` is one of an attribute.

    Every wait has a deadline (ray.call_timeout, or what a call is given) and ends at once when a worker dies. In a
    collective group, whose workers wait for each other, one that dies, raises or is late ends the others too: then
    ``rebuild`` starts all again. Otherwise the others go on, and ``restart`` replaces the one.
    """

    def __init__(
        self,
        pool: Pool,
        kind: Callable[..., Any],
        arguments: Sequence[Sequence[Any]] | None = None,
        *,
        collective: bool,
        nsight: Mapping[str, str] | None = None,
    ) -> None:
        """Start the workers and wait until all have made their object.

        Args:
            pool: where they are.
            kind: makes what answers calls, from its ``RankInfo`` and the arguments of its rank.
            arguments: one row per rank; None gives none.
            collective: whether the workers wait for each other.
            nsight: options of Nsight Systems, under which the workers are to run; None leaves it alone.

        Raises:
            Unschedulable, Late: they are not there in time.
            RestartLimit: they die too often (ray.max_restarts).
            Exception: what making an object raised.
        """
        self.pool, self.kind, self.collective = pool, kind, collective
        self._nsight = {"nsight": dict(nsight)} if nsight is not None else {}
        self.arguments = [tuple(row) for row in (arguments or [()] * pool.size)]
        assert len(self.arguments) == pool.size, f"{len(self.arguments)} rows of arguments, {pool.size} workers"
        self.restarts = 0
        self.ended: BaseException | None = None  # why nobody works any more
        self._hosts: list[Any] = [None] * pool.size
        self._lives: dict[int, ray.ObjectRef[Any]] = {}  # by rank: ready when it is dead
        self.pids = [0] * pool.size  # on their machines
        self.address, self._port = "", 0  # where torch.distributed meets, on rank 0's machine
        try:
            try:
                self._start(range(pool.size))
            except WorkerDied as error:
                log.warning("a fresh worker is replaced: %s", error)
                self.ended = error
                self._again(range(pool.size))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.pool.size

    @property
    def name(self) -> str:
        """Of the pool."""
        return self.pool.name

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all workers with the same arguments: their answers, in the order of ranks."""
        return self.submit(method, *arguments).results()

    def call_each(self, method: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Call a method of all workers, each with its own arguments."""
        return self.submit_each(method, arguments).results()

    def call_one(self, rank: int, method: str, *arguments: Any) -> Any:
        """Call a method of one worker."""
        return self.submit_one(rank, method, *arguments).result()

    def submit(
        self, method: str, *arguments: Any, beside: bool = False, seconds: float | None = None, option: str = ""
    ) -> Call:
        """Like ``call``, without waiting; see ``submit_each``. Arguments are sent to Ray's store only once."""
        shared = [_stored(argument, len(self)) for argument in arguments]
        return self.submit_each(method, [shared] * len(self), beside=beside, seconds=seconds, option=option)

    def submit_each(
        self,
        method: str,
        arguments: Sequence[Sequence[Any]],
        *,
        beside: bool = False,
        seconds: float | None = None,
        option: str = "",
    ) -> Call:
        """Like ``call_each``, without waiting.

        Args:
            method: of the workers.
            arguments: one row per rank. A reference to a stored object arrives as that object.
            beside: run it while another call goes on, not after it. The method has to stand that.
            seconds: deadline; None is ray.call_timeout.
            option: where the user sets that deadline, for messages.
        """
        assert len(arguments) == len(self), f"{len(arguments)} rows of arguments, {len(self)} workers"
        answers = {rank: self._ask(rank, method, row, beside, 1) for rank, row in enumerate(arguments)}
        return self._call(method, answers, seconds, option)

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
        """Like ``call_one``, without waiting; see ``submit_each``.

        Args:
            rank: of the worker.
            method: of the worker.
            arguments: of the method.
            keep: the method gives a pair. Its second half stays in the object store, as ``kept[rank]`` of the
                call, where it outlives the worker; only the first half is the answer.
            beside: see ``submit_each``.
            seconds: see ``submit_each``.
            option: see ``submit_each``.
        """
        found = self._ask(rank, method, arguments, beside, 2 if keep else 1)
        answer, kept = found if keep else (found, None)
        call = self._call(method, {rank: answer}, seconds, option)
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
        """A worker died, raised or is late; the others of a collective group would wait for it."""
        if self.collective and self.ended is None:
            self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """Kill all workers at once; ``error`` says why."""
        self.ended = error or RuntimeError("it was closed")
        for rank in range(len(self)):
            self._kill(rank)

    def close(self) -> None:
        """End the workers."""
        self.end()

    def restart(self, rank: int) -> None:
        """Replace one worker by a fresh one in the same place; what it held is gone.

        Raises:
            RestartLimit: that happened too often in this run (ray.max_restarts).
            Unschedulable: its machine was lost, and the cluster has no other in time.
            Late: it takes too long.
        """
        assert not self.collective, "workers that wait for each other are replaced together: rebuild()"
        self._again([rank])

    def rebuild(self, arguments: Sequence[Sequence[Any]] | None = None) -> None:
        """Replace all workers by fresh ones in the same places, with a new meeting point; what they held is gone.

        Args:
            arguments: one row per rank; None takes the former ones.

        Raises:
            RestartLimit, Unschedulable, Late: see ``restart``.
        """
        if arguments is not None:
            self.arguments = [tuple(row) for row in arguments]
        self._again(range(len(self)))

    def _again(self, ranks: Sequence[int]) -> None:
        while True:
            self.restarts += 1
            limit = self.pool.options.max_restarts
            if self.restarts > limit:
                why = f"; the last time: {self.ended}" if self.ended else ""
                raise RestartLimit(
                    f"workers of pool {self.name} had to be replaced {self.restarts} times "
                    f"(ray.max_restarts={limit}){why}; look for the cause in Ray's logs, and start the same command "
                    "again to resume"
                )
            for rank in ranks:
                self._kill(rank)
            machines = self.pool.machines()
            try:
                self._start(ranks)
                return
            except WorkerDied as error:
                log.warning("a fresh worker is replaced: %s", error)
                self.ended = error
                if self.pool.lost(machines):
                    self.restarts -= 1  # it was sent to a machine whose death Ray had not noticed yet

    def _start(self, ranks: Sequence[int]) -> None:
        pool, cpus = self.pool, self.pool.need.cpus
        runtime_env = {"env_vars": environment(cpus, pool.options.runtime_env)} | self._nsight
        for rank in ranks:
            self._hosts[rank] = ACTOR.options(
                num_cpus=cpus,
                num_gpus=pool.need.gpus,
                scheduling_strategy=pool.strategy(rank),
                runtime_env=runtime_env,
            ).remote()
        starts = {rank: self._hosts[rank].start.remote() for rank in ranks}
        self._await_room(starts)
        seconds, option = pool.options.start_timeout, "ray.start_timeout"
        for rank, pid in zip(ranks, self._call("start", starts, seconds, option).results(), strict=True):
            self.pids[rank], self._lives[rank] = pid, self._hosts[rank].live.remote()
        if len(ranks) == len(self):
            first = {0: self._hosts[0].meeting_point.remote()}
            self.address, self._port = self._call("meeting_point", first, seconds, option).result()
        built = {}
        for rank in ranks:
            place = RankInfo(
                pool=self.name,
                rank=rank,
                size=len(self),
                local_rank=rank % pool.need.processes,
                local_size=pool.need.processes,
                device=pool.need.device,
                address=self.address,
                port=self._port,
                directory=directory(pool.options.runtime_env),
            )
            built[rank] = self._hosts[rank].build.remote(self.kind, place, self.arguments[rank])
        self.ended = None
        self._call("__init__", built, seconds, option).results()

    def _await_room(self, starts: dict[int, ray.ObjectRef[Any]]) -> None:
        """Wait until Ray has put the actors somewhere: after a machine was lost that may be never."""
        waiting = self.pool.options.placement_timeout
        deadline = time.monotonic() + self.pool.options.start_timeout
        room = time.monotonic() + waiting
        pending = list(starts.values())
        while ray.wait(pending, num_returns=len(pending), timeout=LOOK)[1]:
            now = time.monotonic()
            if self.pool.placed():
                room = now + waiting
            elif now > room:
                raise self.pool.no_room()
            if now > deadline:
                raise WorkerTimeout(
                    f"workers of pool {self.name} did not start in "
                    f"ray.start_timeout={self.pool.options.start_timeout:g} seconds"
                )

    def _ask(self, rank: int, method: str, arguments: Sequence[Any], beside: bool, returns: int) -> Any:
        if self.ended is not None:
            raise WorkerDied(self.name, rank, f"the pool was ended: {self.ended}")
        if self._hosts[rank] is None:
            raise WorkerDied(self.name, rank, "it is not there any more")
        asked = self._hosts[rank].call_beside if beside else self._hosts[rank].call
        return asked.options(num_returns=returns, name=method).remote(method, *arguments)

    def _call(self, method: str, answers: dict[int, ray.ObjectRef[Any]], seconds: float | None, option: str) -> Call:
        if seconds is None:
            seconds, option = self.pool.options.call_timeout, "ray.call_timeout"
        return Call(group=self, method=method, answers=answers, seconds=seconds, option=option or "seconds")

    def _kill(self, rank: int) -> None:
        if self._hosts[rank] is not None:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it is dead already
                ray.kill(self._hosts[rank], no_restart=True)
            self._hosts[rank] = None
            self._lives.pop(rank, None)


def _stored(argument: Any, workers: int) -> Any:
    """An argument of several workers, in the object store once; small ones travel with the call."""
    small = isinstance(argument, str | bytes | int | float | bool | type(None) | ray.ObjectRef)
    return argument if small or workers == 1 else ray.put(argument)
