"""Wall time by name, for the timing metrics."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


class Stopwatch:
    """Accumulates seconds by name until they are read."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self.mark: Callable[[str], AbstractContextManager[Any]] = nullcontext  # range of a profiler

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            with self.mark(name):
                yield
        finally:
            self._seconds[name] += time.perf_counter() - start

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add seconds that were measured elsewhere."""
        for name, value in seconds.items():
            self._seconds[name] += value

    def drain(self) -> dict[str, float]:
        """Seconds since the last call, by name."""
        seconds = dict(self._seconds)
        self._seconds.clear()
        return seconds
