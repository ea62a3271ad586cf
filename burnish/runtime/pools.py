"""A pool: capacity of the cluster that is reserved for processes of one kind."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from burnish.options.cluster import RayOptions
from burnish.runtime.actor import environment
from burnish.runtime.capacity import Need, amounts
from burnish.runtime.faults import Unschedulable
from burnish.training.profiling import gpu_bytes

log = logging.getLogger(__name__)

POLL = 1.0  # seconds between checks, so that Ctrl-C is heard


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
