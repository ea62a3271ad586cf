"""What both sides of a comparison use, so it imports nothing: CPU time and memory of steps, and a reward on sums."""

from __future__ import annotations

import ctypes
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def right(text: str, answer: str) -> bool:
    """Whether the last number of a response is the answer."""
    return re.findall(r"\d+", text)[-1:] == [answer]


def sums(prompts: list[Any], completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """0.9 for the right number, 0.1 for a response that is a number, or the sum with it, and nothing else."""
    texts = [said if isinstance(said, str) else said[0]["content"] for said in completions]
    return [
        0.9 * right(text, known) + 0.1 * bool(re.fullmatch(r"[\d +=]*\d\.?", text.strip()))
        for text, known in zip(texts, answer, strict=True)
    ]
