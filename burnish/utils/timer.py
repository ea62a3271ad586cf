"""Seconds by name, for the timing metrics of a step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


class Stopwatch:
    """Adds up wall time per name until it is read."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self.mark: Callable[[str], AbstractContextManager[Any]] = nullcontext  # what a profiler makes of a name

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            with self.mark(name):
                yield
        finally:
            self._seconds[name] += time.perf_counter() - start

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what somebody else has measured."""
        for name, value in seconds.items():
            self._seconds[name] += value

    def drain(self) -> dict[str, float]:
        """What was measured since the last call."""
        seconds = dict(self._seconds)
        self._seconds.clear()
        return seconds
