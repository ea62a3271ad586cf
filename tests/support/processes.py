"""Whether processes run, and whether what this one does comes to an end."""

import signal
import time
from collections.abc import Callable, Iterable

import pytest


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has collected yet does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(*pids: int, within: float = 20.0) -> bool:
    until = time.monotonic() + within
    while any(alive(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def holds_nothing_up(work: Callable[[str], object], texts: Iterable[str], seconds: int = 30) -> None:
    """Work that takes a fraction of a second is done with each text, however busy the machine is."""
    text = ""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"{text!r} takes too long"))
    try:
        for text in texts:
            signal.alarm(seconds)
            work(text)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
