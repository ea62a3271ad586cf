"""CPU time of a command and of everything that it started, from Linux's /proc."""

import os
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


class Processes:
    """A process and its descendants, whether they still live or not; ask often enough to see those that come and go."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._seconds: dict[int, float] = {}  # as each was seen last

    def cpu_seconds(self) -> float:
        """User and system time of all that were seen so far."""
        found = _all()
        family = {self.pid}
        while more := {pid for pid, (parent, _) in found.items() if parent in family} - family:
            family |= more
        for pid in family & found.keys():
            self._seconds[pid] = found[pid][1]
        return sum(self._seconds.values())


def _all() -> dict[int, tuple[int, float]]:
    """Parent and CPU seconds of every process of this machine."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:  # it has ended
                continue
            fields = text.rpartition(")")[2].split()  # a name may have spaces and brackets in it
            found[int(entry.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICK
    return found
