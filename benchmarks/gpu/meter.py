"""What the phases of a run take: seconds, floating-point operations, and the most memory at once."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils.flop_counter import FlopCounterMode

from burnish.plan.counter import LiveBytes

LOAD, SAMPLE, LOGPROBS, UPDATE = "load", "sample", "log-probs", "update"
NAMED = {"load": LOAD, "gen": SAMPLE, "old_log_prob": LOGPROBS, "update_actor": UPDATE}  # a run's own names for them
SIDES = (1024, 2048, 4096, 8192)  # of the matrices whose product is the device's peak
SMALL_SIDES = (128, 256)


class Meter:
    """Follows a run by the marks of its stopwatch; what it does between two marks counts for the inner one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)  # of every time that a phase ran
        self.operations: Counter[str] = Counter()  # of the times that were counted
        self.counts = False  # whether operations are counted, which takes time
        self.peaks: Counter[str] = Counter()  # bytes
        self._phases: list[str] = []
        self._live = LiveBytes()  # where there is no allocator to ask

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count memory in this context."""
        if self.device.type == "cuda":
            yield
            return
        with self._live:
            yield
        self.peaks.update({name: peak.total for name, peak in self._live.peaks.items()})

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """A phase, by the name that a run has for it; other names are part of the phase around them."""
        phase = NAMED.get(name)
        if phase is None or phase in self._phases:
            yield
            return
        with self._counted(phase), self._flops(phase):
            self._wait()
            start = time.perf_counter()
            yield
            self._wait()
            self.seconds[phase].append(time.perf_counter() - start)

    @contextmanager
    def _flops(self, phase: str) -> Iterator[None]:
        if not self.counts:
            yield
            return
        with FlopCounterMode(display=False) as counter:
            yield
        self.operations[phase] += counter.get_total_flops()

    @contextmanager
    def _counted(self, phase: str) -> Iterator[None]:
        self._note()
        self._phases.append(phase)
        try:
            with self._live.phase(phase):
                yield
        finally:
            self._note()
            self._phases.pop()

    def _note(self) -> None:
        """The most that the allocator has given since the last time belongs to the phase that ends or is left."""
        if self.device.type != "cuda":
            return
        if self._phases:
            most = torch.cuda.max_memory_allocated(self.device)
            self.peaks[self._phases[-1]] = max(self.peaks[self._phases[-1]], most)
        torch.cuda.reset_peak_memory_stats(self.device)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def peak(device: torch.device, dtype: torch.dtype, rounds: int = 10) -> float:
    """FLOP/s of the fastest matrix product among a few shapes: what a run's share is a share of."""
    best = 0.0
    for side in SIDES if device.type == "cuda" else SMALL_SIDES:
        a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        _ = a @ b
        for _ in range(3):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            start = time.perf_counter()
            for _ in range(rounds):
                _ = a @ b
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = max(best, 2 * side**3 * rounds / (time.perf_counter() - start))
    return best
