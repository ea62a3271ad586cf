"""The Ray cluster of a run and the pools on it: whether it can hold them, and how they are reserved."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import ray_constants
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from burnish.options.cluster import PoolOptions, PoolsOptions, RayOptions
from burnish.runtime.actor import environment
from burnish.runtime.calls import POLL, Unschedulable
from burnish.training.profiling import gpu_bytes
from burnish.utils.errors import UserError
from burnish.utils.terminal import counted

log = logging.getLogger(__name__)

LOCAL = "local"
ATTEMPTS = 3  # Ray gives its own helpers 15 seconds, whatever the machine is busy with
ANSWER = 10.0  # seconds that a machine may take to answer at all

HEAD_GONE = 15  # seconds after which Ray ends all processes of a run's own cluster whose head is gone: it stays gone


@dataclass(frozen=True)
class Need:
    """What a pool takes: N machines, all different, with N processes on each."""

    pool: str
    nodes: int
    processes: int  # on each machine
    cpus: float  # of each process
    gpus: float

    @classmethod
    def of(cls, pool: str, options: PoolOptions, *, gpus_there: bool) -> Need:
        """What a pool takes on a cluster that has GPUs, or has none."""
        cuda = options.device == "cuda" or bool(options.gpus)
        cuda |= options.device == "auto" and options.gpus is None and gpus_there
        gpus = options.gpus if options.gpus is not None else float(cuda)
        return cls(pool=pool, nodes=options.nodes, processes=options.processes, cpus=options.cpus, gpus=gpus)

    @property
    def device(self) -> str:
        """What its processes compute on: cpu or cuda."""
        return "cuda" if self.gpus else "cpu"

    @property
    def bundle(self) -> dict[str, float]:
        """Ray's resources on each machine."""
        every = {"CPU": self.cpus * self.processes, "GPU": self.gpus * self.processes}
        return {name: amount for name, amount in every.items() if amount}

    def __str__(self) -> str:
        where = f"{self.nodes} machines, each with" if self.nodes > 1 else "a machine with"
        return f"{where} {amounts(self.bundle)}"


@dataclass(frozen=True)
class Node:
    """A machine of the cluster and what it has, whoever uses it."""

    address: str
    cpus: float
    gpus: float

    def holds(self, need: Need) -> bool:
        """Whether it could hold its share of a pool if nothing else were there."""
        return self.cpus >= need.bundle.get("CPU", 0) and self.gpus >= need.bundle.get("GPU", 0)

    def __str__(self) -> str:
        return f"{self.address} with {amounts({'CPU': self.cpus, 'GPU': self.gpus})}"


def needs(pools: PoolsOptions, *, gpus_there: bool) -> list[Need]:
    """What every pool takes."""
    return [Need.of(name, options, gpus_there=gpus_there) for name, options in pools.by_name().items()]


def lacking(needed: Sequence[Need], nodes: Sequence[Node]) -> list[str]:
    """Why the pools can't all be on the machines, one sentence per reason; nothing if that is not certain."""
    complaints = []
    there = f"the cluster has {'; '.join(map(str, nodes)) or 'no machine'}"
    for need in needed:
        fitting = sum(node.holds(need) for node in nodes)
        if fitting < need.nodes:
            found = f"only {fitting} of {len(nodes)} machines {'has' if fitting == 1 else 'have'} that"
            complaints.append(
                f"pool {need.pool} needs {need}, but {found}: {there}; lower pools.{need.pool}.nodes, .processes, "
                ".cpus or .gpus, or let more machines join the cluster"
            )
    if complaints:
        return complaints
    for name, kept in (("CPU", "cpus"), ("GPU", "gpus")):
        parts = {need.pool: need.nodes * need.bundle.get(name, 0) for need in needed}
        total = sum(getattr(node, kept) for node in nodes)
        if sum(parts.values()) > total:
            each = ", ".join(f"{pool} {amount:g}" for pool, amount in parts.items() if amount)
            complaints.append(
                f"the pools need {amounts({name: sum(parts.values())})} together ({each}), but the cluster has "
                f"{total:g}; lower processes or {kept} of a pool, or let more machines join the cluster"
            )
    return complaints


def amounts(resources: dict[str, float]) -> str:
    """Resources in words."""
    return " and ".join(f"{value:g} {name}{'' if value == 1 else 's'}" for name, value in resources.items())


class Pool:
    """One bundle of resources per machine; ranks fill one machine after the other."""

    def __init__(self, need: Need, options: RayOptions, lacking: Callable[[], str]) -> None:
        """Ask for capacity.

        Args:
            need: what the pool takes.
            options: of the cluster.
            lacking: says why the pools can't be placed, where that is certain.
        """
        self.need, self.options = need, options
        self._lacking = lacking
        strategy = "STRICT_SPREAD" if need.nodes > 1 else "PACK"
        name = f"burnish-{need.pool}-{uuid.uuid4().hex[:8]}"  # shown by Ray, which wants it only once
        self._group = placement_group([need.bundle] * need.nodes, strategy=strategy, name=name)

    @property
    def name(self) -> str:
        """train, rollout or reward."""
        return self.need.pool

    @property
    def size(self) -> int:
        """Processes."""
        return self.need.nodes * self.need.processes

    def wait(self) -> None:
        """Return when all its machines are there.

        Raises:
            Unschedulable: they are not in time.
        """
        deadline = time.monotonic() + self.options.placement_timeout
        while not self._group.wait(POLL):
            if time.monotonic() > deadline:
                raise self.unschedulable()

    def placed(self) -> bool:
        """Whether all its machines are there now; one that was lost takes Ray seconds to notice."""
        return bool(placement_group_table(self._group)["state"] == "CREATED")

    def machines(self) -> set[str]:
        """Ids of its machines, as far as they are known now; see ``placed``."""
        return set(placement_group_table(self._group)["bundles_to_node_id"].values())

    def lost(self, machines: set[str]) -> bool:
        """Whether one of some machines is dead now."""
        return any(node["NodeID"] in machines and not node["Alive"] for node in ray.nodes())

    def unschedulable(self) -> Unschedulable:
        """The error of one that was not placed in time, with what the cluster lacks."""
        free = {name: value for name, value in ray.available_resources().items() if name in ("CPU", "GPU")}
        why = self._lacking() or f"others use what it needs: {amounts(free) or 'nothing'} of the whole cluster is free"
        return Unschedulable(
            f"timed out after {self.options.placement_timeout:g} s (ray.placement_timeout) waiting for the cluster to "
            f"place pool {self.name}, which needs {self.need}; {why}"
        )

    def gpu_memory(self) -> int | None:
        """Bytes of memory of a GPU of its first machine; None where it has none, or none that answers."""
        need = self.need
        if not need.gpus:
            return None
        asked = ray.remote(num_cpus=need.cpus, num_gpus=need.gpus, max_retries=0)(gpu_bytes).options(
            scheduling_strategy=self.strategy(0),
            runtime_env={"env_vars": environment(need.cpus, need.gpus, self.options.runtime_env)},
        )
        try:
            found: int | None = ray.get(asked.remote(), timeout=self.options.start_timeout)
        except RayError as error:
            log.warning("the memory of GPUs of pool %s is unknown: %s", self.name, str(error).strip().split("\n")[-1])
            return None
        return found

    def strategy(self, rank: int) -> PlacementGroupSchedulingStrategy:
        """Where a rank is to be."""
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank // self.need.processes)

    def close(self) -> None:
        """Give the capacity back; processes that still run there are killed."""
        remove_placement_group(self._group)


@contextmanager
def reserved(options: RayOptions, pools: PoolsOptions, *, started: bool) -> Iterator[dict[str, Pool]]:
    """Wait until the machines can hold the pools, as more may join a running cluster, and reserve that meanwhile.

    Raises:
        Unschedulable: they can't, in time; at once on a cluster of the run's own. Or others hold it for too long.
    """
    wanted: list[Need] = []

    def lack() -> str:
        nodes = [
            Node(node["NodeManagerAddress"], node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0))
            for node in ray.nodes()
            if node["Alive"]
        ]
        wanted[:] = needs(pools, gpus_there=any(node.gpus for node in nodes))
        return "; ".join(lacking(wanted, nodes))

    seconds = 0.0 if started else options.placement_timeout
    deadline, said = time.monotonic() + seconds, ""
    while why := lack():
        if time.monotonic() >= deadline:
            raise Unschedulable(why + (f" (waited {seconds:g} s: ray.placement_timeout)" if seconds else ""))
        if why != said:
            log.warning("waiting up to %g s (ray.placement_timeout) for machines to join: %s", seconds, why)
        said = why
        time.sleep(POLL)
    with ExitStack() as stack:
        opened = [Pool(need, options, lack) for need in wanted]
        for pool in opened:
            stack.callback(pool.close)
        for pool in opened:
            pool.wait()
        yield {pool.name: pool for pool in opened}


@contextmanager
def cluster(options: RayOptions, pools: PoolsOptions) -> Iterator[dict[str, Pool]]:
    """Connect to Ray and reserve capacity for the pools; at the end give everything back and stop what was started.

    Raises:
        UserError: there is no such cluster, or Ray refuses an argument.
        Unschedulable: it can't hold the pools.
    """
    if ray.is_initialized():
        raise UserError("this process is connected to a Ray cluster already; call ray.shutdown() before the run")
    address = options.address or os.environ.get("RAY_ADDRESS") or LOCAL
    with ExitStack() as stack:
        stack.callback(ray.shutdown)
        try:
            _reach(address)  # Ray itself takes a minute to find out that nobody is there
        except OSError as error:
            raise UserError(
                f"no Ray cluster at {address} (ray.address, or RAY_ADDRESS of the environment): {error}; start one "
                "with `ray start --head`, or give ray.address=local for one of the run's own"
            ) from None
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _connect(address, options, pools)
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray replaces it, but it is for a checkpoint and a clean end
        closed = threading.Event()
        stack.callback(closed.set)
        head = ray.get_runtime_context().gcs_address
        threading.Thread(target=_watch_head, args=(head, closed), name="ray-head", daemon=True).start()
        yield stack.enter_context(reserved(options, pools, started=address == LOCAL))


def _reach(address: str) -> None:
    """Connect to HOST:PORT.

    Raises:
        OSError: nobody is there.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():  # or auto, say, which Ray looks up
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()


def _watch_head(address: str, closed: threading.Event) -> None:
    """Report a head that is gone: Ray waits for another one without a word, and ends the process if none comes."""
    errors: list[OSError] = []  # in a row
    while len(errors) < 3 and not closed.wait(POLL):
        try:
            _reach(address)
            errors.clear()
        except OSError as error:
            errors.append(error)
    if not closed.is_set():
        log.error(
            "Ray's head at %s is gone: %s; unless it comes back, Ray ends this process (a cluster of the run's own "
            "after %d s, others after 60 s or their gcs_rpc_server_reconnect_timeout_s); then run the same command "
            "again to resume from the newest checkpoint", address, errors[-1], HEAD_GONE,
        )  # fmt: skip


def _connect(address: str, options: RayOptions, pools: PoolsOptions) -> None:
    arguments: dict[str, Any] = {"logging_level": logging.ERROR}
    if address == LOCAL:
        wanted = sum(pool.size * pool.cpus for pool in pools.by_name().values())
        # processes may share the CPUs of the run's own machine: what Ray counts is no more than a number there
        arguments["num_cpus"] = max(os.cpu_count() or 1, math.ceil(wanted))
        arguments["include_dashboard"] = False
        arguments["_system_config"] = {
            # one process per CPU that waits for tasks: workers are actors, and get processes of their own
            "prestart_worker_first_driver": False,
            "enable_worker_prestart": False,
            "worker_register_timeout_seconds": int(options.start_timeout),
            "gcs_rpc_server_reconnect_timeout_s": HEAD_GONE,
        }
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not sys.stdout.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # a log file gets plain lines of the workers
    arguments |= options.init
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _on_loopback() if address == LOCAL else nullcontext():
                ray.init(address=address, **arguments)
            return
        except (ConnectionError, ValueError, TypeError, RuntimeError) as error:
            given = f", ray.init={options.init}" if options.init else ""
            token = "; a cluster that asks for a token needs RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN here, too"
            raise UserError(
                f"Ray can't be reached or refuses (ray.address={address}{given}): {error}"
                + ("" if address == LOCAL or "RAY_AUTH_MODE" in os.environ else token)
            ) from error
        except Exception as error:  # Ray has no class of its own for a machine that was too slow
            ray.shutdown()
            if address != LOCAL or attempt == ATTEMPTS:
                raise UserError(
                    f"Ray did not start (ray.address={address}), {counted(attempt, 'times')}: {error}"
                ) from error
            log.warning("Ray did not start in time and is started again: %s", error)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray listens on every network, unless it believes that no other machine can join."""
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
