"""A cluster of a head and two machines, simulated on this one; machines go and come. Writes what was seen, as JSON."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray takes that to mean: no other machine, all on loopback
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from ray.cluster_utils import Cluster

from burnish.options.cluster import PoolOptions, PoolsOptions, RayOptions
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.cluster import cluster
from burnish.runtime.faults import Unschedulable, WorkerDied
from tests.support.toy_workers import Toy

SLOW = 120.0


def main() -> None:
    nodes = Cluster(shutdown_at_exit=True)
    noticing = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}  # a dead machine, in two seconds
    nodes.add_node(num_cpus=0, include_dashboard=False, object_store_memory=100_000_000, _system_config=noticing)
    others = [nodes.add_node(num_cpus=2, object_store_memory=100_000_000) for _ in range(2)]
    options = RayOptions(
        address=nodes.address, max_restarts=2, init={"log_to_driver": False}, placement_timeout=SLOW, call_timeout=SLOW
    )
    pools = PoolsOptions(train=PoolOptions(cpus=0.1), rollout=PoolOptions(nodes=2))
    try:
        with cluster(options, pools) as found:
            with ActorGroup(found.pools["rollout"], Toy, collective=False) as group:
                Path(sys.argv[1]).write_text(json.dumps(story(nodes, others, group)))
    finally:
        nodes.shutdown()


def story(nodes: Cluster, others: list, group: ActorGroup) -> dict:
    machines = group.call("machine")
    lost = next(node for node in others if node.node_id == machines[1])
    call = group.submit_one(1, "sleep", 600.0)
    nodes.remove_node(lost, allow_graceful=False)
    try:
        call.result()
        died = "nobody"
    except WorkerDied as error:
        died = str(error)
    found = {"machines": len(set(machines)), "died": died, "others": group.call_one(0, "add", 0)}
    with ThreadPoolExecutor(1) as beside:  # Ray starts a machine in the main thread only
        replaced = beside.submit(group.restart, 1)
        fresh = nodes.add_node(num_cpus=2, object_store_memory=100_000_000)
        replaced.result(SLOW)
    found |= {"again": group.call("add", 0), "machines again": len(set(group.call("machine")))}
    group.pool.options.placement_timeout = 5.0
    nodes.remove_node(fresh, allow_graceful=False)
    try:
        group.restart(1)
        found["lacking"] = "nothing"
    except Unschedulable as error:
        found["lacking"] = str(error)
    return found


if __name__ == "__main__":
    main()
