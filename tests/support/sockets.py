"""Which addresses processes listen on, as Linux tells it."""

import ipaddress
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LISTENS = "0A"
LOOK = 0.05  # seconds


def listening(processes: list[int]) -> set[str]:
    """Addresses and ports on which some processes listen for TCP, as ``127.0.0.1:80``."""
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
                    address, port = fields[1].split(":")
                    found.add(f"{_address(address)}:{int(port, 16)}")
    return found


def _address(raw: str) -> str:
    """An address as the kernel shows it: words of 32 bits, the bytes of each the other way round."""
    words = bytes.fromhex(raw)
    address = ipaddress.ip_address(b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4)))
    return str(getattr(address, "ipv4_mapped", None) or address)


def reached_from_outside(found: set[str]) -> list[str]:
    """Those that are not on loopback."""
    return sorted(one for one in found if not ipaddress.ip_address(one.rpartition(":")[0]).is_loopback)


def descendants(process: int) -> list[int]:
    """Processes that one has started, and that were started by those."""
    parents = {}
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as stat:
                parents[int(name)] = int(stat.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found, todo = [], [process]
    while todo:
        one = todo.pop()
        below = [pid for pid, parent in parents.items() if parent == one]
        found += below
        todo += below
    return found


@contextmanager
def watched(*roots: int) -> Iterator[Callable[[], set[str]]]:
    """Looks again and again what processes and their descendants listen on: all of it since the beginning."""
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK):
            seen.update(listening([pid for root in roots for pid in (root, *descendants(root))]))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: set(seen)
    finally:
        done.set()
        thread.join()
