"""Starts a cluster, uses and stops it; writes what was seen, as JSON."""

import json
import os
import signal
import sys
from pathlib import Path

from burnish.options.cluster import PoolOptions, PoolsOptions, RayOptions
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.cluster import cluster
from tests.support.processes import alive, gone
from tests.support.sockets import descendants, watched
from tests.support.toy_workers import Toy


def stop(*_: object) -> None:
    """The handler of a signal."""


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    options = RayOptions(address="local", init={"object_store_memory": 100_000_000, "log_to_driver": False})
    with (
        watched(os.getpid()) as seen,
        cluster(options, PoolsOptions(train=PoolOptions(cpus=0.5))) as found,
        ActorGroup(found["train"], Toy, collective=True) as group,
    ):
        group.call("sleep", 0.01)
        started = descendants(os.getpid())
    gone(*started, within=60.0)
    kept = signal.getsignal(signal.SIGTERM) is stop
    Path(sys.argv[1]).write_text(
        json.dumps({"handler kept": kept, "listening": sorted(seen()), "alive": [*filter(alive, started)]})
    )


if __name__ == "__main__":
    main()
