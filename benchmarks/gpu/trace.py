"""What the trace of an update says of a GPU: the share of each phase in which it works, and what bounds the phase.

    python -m benchmarks.gpu.trace RUN/profiles/update-00000003/local-0.json.gz

The bound has the names that ``burnish plan`` gives it: matrix products are bound by operations, other kernels by
memory, and a GPU that waits by launches. Collectives count where nothing else runs beside them. Without a GPU,
operations of PyTorch stand in for kernels.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

PHASES = ("gen", "old_log_prob", "update_actor", "update_weights")  # as ``timing_s/*`` names them
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
NETWORK = re.compile(r"nccl|gloo", re.IGNORECASE)
PRODUCTS = re.compile(r"gemm|gemv|xmma|nvjet|cutlass|conv|flash|fmha|attention|::(add|b|badd)?mm\b", re.IGNORECASE)
Span = tuple[float, float]  # begin and end, in microseconds


def covered(spans: Iterable[Span], window: Span) -> float:
    """Length of what spans cover of a window together."""
    begin, end = window
    total = 0.0
    for left, right in sorted(spans):
        left, right = max(left, begin), min(right, end)
        if right > left:
            total, begin = total + right - left, right
    return total


def shares(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By phase the shares of its time in operations, memory, network and launches, which add up to 1.

    Args:
        events: of a trace in Chrome's format.
    """
    timed = [event for event in events if event.get("ph") == "X"]
    on_gpu = [event for event in timed if event.get("cat") in ON_GPU]
    work = [(_span(event), event["name"]) for event in on_gpu or timed if on_gpu or event.get("cat") == "cpu_op"]
    own = [(span, name) for span, name in work if not NETWORK.search(name)]
    found = {}
    for phase in PHASES:
        windows = [_span(event) for event in timed if event["name"] == phase and event.get("cat") == "user_annotation"]
        if full := sum(end - begin for begin, end in windows):
            busy, computing, products = (
                sum(covered(spans, window) for window in windows) / full
                for spans in (
                    [span for span, _ in work],
                    [span for span, _ in own],
                    [span for span, name in own if PRODUCTS.search(name)],
                )
            )
            found[phase] = {
                "operations": products, "memory": computing - products, "network": busy - computing,
                "launches": 1 - busy,
            }  # fmt: skip
    return found


def of_run(folder: Path) -> dict[str, dict[str, float]]:
    """Shares of the newest trace of a run's first process; none if it has no trace."""
    files = sorted(file for name in ("local", "trainer") for file in folder.glob(f"profiles/*/{name}-0.json.gz"))
    return shares(_events(files[-1])) if files else {}


def _span(event: Mapping[str, Any]) -> Span:
    return event["ts"], event["ts"] + event["dur"]


def _events(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        yield from json.load(opened)["traceEvents"]


if __name__ == "__main__":
    print(json.dumps(shares(_events(Path(sys.argv[1]))), indent=1))
