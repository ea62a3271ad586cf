"""CPU time and peak memory of training steps, each taken when it is asked for. Both sides use it, so no imports."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "FIGURES"
STATUS = Path("/proc/self/status")


class Meter:
    """Answers every line on standard input with the figures of one step; the end of the input ends the process."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.start = self.in_rollout = 0.0
        self.at_rest: int | None = None

    def wait(self) -> None:
        """Wait for the next word: ``time`` or ``memory``."""
        word = sys.stdin.readline().strip()
        if not word:
            sys.exit()
        self.at_rest = None
        if word == "memory":
            # what an allocator holds on to is no more part of the model than what a step will need
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now
            self.at_rest = _kilobytes("VmRSS")
        self.in_rollout, self.start = 0.0, time.process_time()

    @contextmanager
    def rollout(self) -> Iterator[None]:
        """What runs within is the rollout, the rest of the step the update."""
        start = time.process_time()
        yield
        self.in_rollout += time.process_time() - start

    def done(self, tokens: float) -> None:
        """The step is over, in which responses had so many tokens on average."""
        whole = time.process_time() - self.start
        figures = {"samples": self.samples, "tokens": tokens, "rollout": self.in_rollout, "step": whole}
        if self.at_rest is not None:
            figures["memory_mb"] = (_kilobytes("VmHWM") - self.at_rest) / 1000
        print(MARK, json.dumps(figures), flush=True)


def _kilobytes(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
