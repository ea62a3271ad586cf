"""The most memory that is held during each phase of an update, on this process's GPU and in its RAM."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

STATUS = Path("/proc/self/statm")  # pages: size, resident, ...
GPU = ("memory_allocated_gb", "memory_reserved_gb")


class PhaseMemory:
    """Looks at the beginning and at the end of every phase; a phase within another one counts for both."""

    def __init__(self) -> None:
        self._most: dict[str, float] = {}  # of the run so far
        self._phases: dict[str, dict[str, float]] = {}  # since they were read
        self._open: list[dict[str, float]] = []

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A phase by its name."""
        self._note()
        self._open.append(found := self._phases.setdefault(phase, {}))
        if _on_gpu():
            torch.cuda.reset_peak_memory_stats()
        try:
            yield
        finally:
            self._note()
            self._open = [one for one in self._open if one is not found]

    def metrics(self) -> dict[str, float]:
        """In GB: the peaks of the run so far, and of each phase since the last call."""
        self._note()
        found = {"perf/max_cpu_memory_gb": _most_resident() / 1e9}
        found |= {f"perf/max_{name}": value for name, value in self._most.items()}
        for phase, values in self._phases.items():
            found |= {f"perf/{name}/{phase}": value for name, value in values.items()}
        self._phases = {}
        return found

    def _note(self) -> None:
        """What was held since the last time belongs to the phases that are open."""
        now = {"cpu_memory_gb": resident() / 1e9}
        if _on_gpu():
            peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            on_gpu = {name: value / 1e9 for name, value in zip(GPU, peaks, strict=True)}
            now |= on_gpu
            _raise(self._most, on_gpu)
        for phase in self._open:
            _raise(phase, now)


def resident() -> int:
    """Bytes of RAM that this process holds now; an upper bound where the system doesn't tell."""
    try:
        return int(STATUS.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return _most_resident()


def _most_resident() -> int:
    """The most bytes of RAM that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _raise(most: dict[str, float], values: dict[str, float]) -> None:
    for name, value in values.items():
        most[name] = max(most.get(name, 0.0), value)


def _on_gpu() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def gpu_bytes() -> int | None:
    """Memory of the GPU that this process computes on; None without one."""
    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None
