"""A Ray cluster whose machines are simulated on this one, on loopback; it ends when its standard input does.

It reads one JSON object a line: {"cpus": 2} lets a machine join, {"lost": id of a machine} takes one away at once. It
answers with one JSON line: {"address": of the cluster, "machine": id}.
"""

import json
import os
import sys

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray takes that to mean: no other machine, all on loopback
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
STORE = 100_000_000  # bytes of a machine's object store
LEAN = {"prestart_worker_first_driver": False, "enable_worker_prestart": False, "worker_register_timeout_seconds": 300}
NOTICING = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}  # a dead machine, in two seconds


def main() -> None:
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Ray says
    nodes = Cluster(shutdown_at_exit=True)
    try:
        for line in sys.stdin:
            order = json.loads(line)
            if "lost" in order:
                node = next(node for node in nodes.list_all_nodes() if node.node_id == order["lost"])
                nodes.remove_node(node, allow_graceful=False)
            else:
                first = {} if nodes.head_node else {"include_dashboard": False, "_system_config": LEAN | NOTICING}
                node = nodes.add_node(num_cpus=order["cpus"], object_store_memory=STORE, **first)
            print(json.dumps({"address": nodes.address, "machine": node.node_id}), file=answers, flush=True)
    finally:
        nodes.shutdown()


if __name__ == "__main__":
    main()
