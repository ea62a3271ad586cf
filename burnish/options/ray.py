"""Options of a run beyond one process: who works where, and the cluster that they work on."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from burnish.options.shared import NonNegative, Positive, Seconds, Threads, Whole
from burnish.registry import options

STARTED = ("num_cpus", "num_gpus", "resources", "labels", "object_store_memory")  # of a cluster that ray.init starts


@options
class PoolOptions:
    """Processes that do one kind of work, and what each of them takes of its machine."""

    nodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Machines, all different, that the processes are on."""
    processes: Threads = 1
    """Processes on each machine."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What they compute on; auto takes GPUs where the cluster has any."""
    cpus: Positive = 1.0
    """CPUs of each process, as Ray counts them; parts of one are allowed."""
    gpus: NonNegative | None = None
    """GPUs of each process: a whole number, or a part of one that is shared; null is 1 on cuda and 0 on cpu."""

    @model_validator(mode="after")
    def _device_and_gpus_agree(self) -> Self:
        if self.gpus and self.device == "cpu":
            raise ValueError(f"gpus is {self.gpus:g}, but device is cpu; leave one of them out")
        if self.gpus == 0 and self.device == "cuda":
            raise ValueError("gpus is 0, but device is cuda; leave one of them out")
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if value is not None and value > 1 and value != int(value):
                raise ValueError(f"{name} is {value:g}; above 1 it must be a whole number")
        return self

    @property
    def size(self) -> int:
        """Processes on all machines together."""
        return self.nodes * self.processes


@options
class PoolsOptions:
    """Who works where, with runtime=ray."""

    train: PoolOptions = Field(default_factory=PoolOptions)
    """Ranks that train as one."""
    rollout: PoolOptions | None = None
    """Workers that sample; null lets the ranks that train sample too, in turns."""
    reward: PoolOptions | None = None
    """Workers that score; null scores where samples are made."""

    def by_name(self) -> dict[str, PoolOptions]:
        """The pools that there are."""
        every = {"train": self.train, "rollout": self.rollout, "reward": self.reward}
        return {name: pool for name, pool in every.items() if pool is not None}


@options
class WeightSyncOptions:
    """How trained weights get to a rollout pool of its own."""

    carrier: Literal["auto", "store", "broadcast"] = "auto"
    """store: through Ray's object store; broadcast: through a process group of trainer and rollout workers, NCCL on
    GPUs and gloo on CPUs; auto: the store for what fits into two buckets, such as adapters, and broadcast for more."""
    bucket_mb: Positive = 64.0
    """MiB of weights that travel at a time."""
    timeout: Seconds = 600.0
    """Seconds that one publication may take."""


@options
class RayOptions:
    """The Ray cluster that a run works on, with runtime=ray."""

    address: str | None = None
    """HOST:PORT of a running cluster, or local for one that the run starts, on this machine alone, and stops; null
    takes the environment's RAY_ADDRESS if that is set, and local otherwise."""
    init: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of ray.init, by name."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Ray's runtime environment of every worker: env_vars, working_dir, pip and so on."""
    timeline: str | None = None
    """File that gets Ray's timeline of the run at its end, for chrome://tracing or Perfetto; null writes none."""
    placement_timeout: Seconds = 300.0
    """Seconds that a running cluster gets to have room for the pools: at the start, and after it lost a machine."""
    start_timeout: Seconds = 900.0
    """Seconds that workers may take to start and to load what they need."""
    call_timeout: Seconds = 3600.0
    """Seconds that anything asked of a worker may take."""
    max_restarts: Whole = 3
    """How often workers of a pool that died are replaced in a run before it stops."""
    publication: WeightSyncOptions = Field(default_factory=WeightSyncOptions)
    """How trained weights get to a rollout pool of its own."""

    @model_validator(mode="after")
    def _arguments_are_free(self) -> Self:
        own = {"address": "ray.address", "runtime_env": "ray.runtime_env"}
        for name in self.init:
            if name in own:
                raise ValueError(f"init.{name} is given; use {own[name]} for that")
        if self.address is not None and self.address != "local":
            if self.address.startswith("ray://"):
                raise ValueError(
                    f"address is {self.address}, which is Ray Client; start the run on a machine of the cluster, "
                    "or with `ray job submit`, and give HOST:PORT"
                )
            started = [name for name in self.init if name in STARTED]
            if started:
                raise ValueError(
                    f"init.{started[0]} is given, but a running cluster ({self.address}) has its own; leave it out"
                )
        return self
