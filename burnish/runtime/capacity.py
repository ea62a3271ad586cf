"""Whether a cluster has the capacity for the pools: Ray itself waits for ever for what can't be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.options.cluster import PoolOptions, PoolsOptions


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
