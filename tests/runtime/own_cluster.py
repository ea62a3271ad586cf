"""Starts a cluster, uses and stops it; writes what was seen, as JSON."""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from burnish.options.ray import PoolOptions, PoolsOptions, RayOptions
from burnish.runtime.cluster import cluster
from burnish.runtime.group import ActorGroup
from tests.runtime.toys import Toy

LISTENS = "0A"


def listening(processes: list[int]) -> set[str]:
    """Addresses on which some processes listen for TCP."""
    held = set()
    for process in processes:
        with suppress(OSError):  # it has ended, or a file of it is closed meanwhile
            for file in os.listdir(f"/proc/{process}/fd"):
                with suppress(OSError):
                    held.add(os.readlink(f"/proc/{process}/fd/{file}"))
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[3] == LISTENS and f"socket:[{fields[9]}]" in held:
                    raw = fields[1].split(":")[0][-8:]
                    found.add(".".join(str(byte) for byte in bytes.fromhex(raw)[::-1]))
    return found


def children() -> list[int]:
    """Processes that this one started, or that were started by those."""
    parents = {}
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as stat:
                parents[int(name)] = int(stat.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found, todo = [], [os.getpid()]
    while todo:
        one = todo.pop()
        below = [pid for pid, parent in parents.items() if parent == one]
        found += below
        todo += below
    return found


def stop(*_: object) -> None:
    """The handler of a signal."""


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    options = RayOptions(
        address="local", init={"object_store_memory": 100_000_000, "log_to_driver": False}, timeline=sys.argv[2]
    )
    with cluster(options, PoolsOptions(train=PoolOptions(cpus=0.5))) as found:
        with ActorGroup(found.pools["train"], Toy, collective=True) as group:
            group.call("sleep", 0.01)
            time.sleep(2.0)  # Ray hands events on once a second
            started = children()
            own = sorted(listening([os.getpid(), *started]))
    deadline = time.monotonic() + 60
    while (left := [pid for pid in started if os.path.exists(f"/proc/{pid}")]) and time.monotonic() < deadline:
        time.sleep(0.2)
    kept = signal.getsignal(signal.SIGTERM) is stop
    Path(sys.argv[1]).write_text(json.dumps({"handler kept": kept, "listening": own, "alive": left}))


if __name__ == "__main__":
    main()
