"""Which addresses processes listen on, as psutil tells it, which comes with peft."""

import ipaddress
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

LOOK = 0.05  # seconds


def listening(processes: list[int]) -> set[str]:
    """Addresses and ports on which some processes listen for TCP, as ``127.0.0.1:80``."""
    found = []
    for process in processes:
        with suppress(psutil.Error):  # it has ended
            found += psutil.Process(process).net_connections("tcp")
    own = [one.laddr for one in found if one.status == psutil.CONN_LISTEN]
    return {f"{address.ip.removeprefix('::ffff:')}:{address.port}" for address in own}


def reached_from_outside(found: set[str]) -> list[str]:
    """Those that are not on loopback."""
    return sorted(one for one in found if not ipaddress.ip_address(one.rpartition(":")[0]).is_loopback)


def descendants(process: int) -> list[int]:
    """Processes that one has started, and that were started by those."""
    try:
        return [one.pid for one in psutil.Process(process).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


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
