"""Wall time by name, for the timing metrics, and when each began, for the timeline."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

EMPTY: Mapping[str, Any] = MappingProxyType({})
MOST_SPANS = 2000  # that are remembered until they are read

Span = tuple[str, float, float]  # name, when it began in Unix seconds, and how many it took


class Stopwatch:
    """Accumulates seconds by name until they are read."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)
        self._lanes: dict[str, list[Span]] = defaultdict(list)  # of other processes
        self._parts = threading.local()  # seconds of parts of what is open, by thread
        self.mark: Callable[[str], AbstractContextManager[Any]] = nullcontext  # range of a profiler
        self.memory: Callable[[str], AbstractContextManager[Any]] = nullcontext  # measures what is held meanwhile

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start, began = time.perf_counter(), time.time()
        around, self._parts.seconds = getattr(self._parts, "seconds", 0.0), 0.0
        try:
            with self.mark(name), self.memory(name):
                yield
        finally:
            took = time.perf_counter() - start
            self._seconds[name] += took - self._parts.seconds
            self._parts.seconds = around
            self._spans.append((name, began, took))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure a part of what is being measured, whose own seconds then are those of the rest."""
        start = time.perf_counter()
        try:
            with self(name):
                yield
        finally:
            self._parts.seconds += time.perf_counter() - start

    def add(self, seconds: Mapping[str, float], lanes: Mapping[str, Sequence[Span]] = EMPTY) -> None:
        """Add seconds that were measured elsewhere, and the spans of other processes by their names."""
        for name, value in seconds.items():
            self._seconds[name] += value
        for name, spans in lanes.items():
            self._lanes[name] = [*self._lanes[name], *spans][-MOST_SPANS:]

    def drain(self) -> dict[str, float]:
        """Seconds since the last call, by name."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        return dict(seconds)

    def take_spans(self) -> list[Span]:
        """What this process measured since the last call, in order of its ends."""
        spans, self._spans = self._spans, deque(maxlen=MOST_SPANS)
        return list(spans)

    def take_lanes(self) -> dict[str, list[Span]]:
        """What other processes measured since the last call."""
        lanes, self._lanes = self._lanes, defaultdict(list)
        return dict(lanes)
