"""What golden runs left when they were recorded, and how what they leave now differs.

On the kind of machine that recorded them they are equal to the last bit. Elsewhere kernels round otherwise, which later
draws another token here and there: there the first update of runs in float32 is compared, within bounds.
"""

import json
import os
import platform
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden.runs import HALVES, Found

FILE = Path(__file__).parent / "recorded.jsonl"
DIGITS = 6
# what float32 runs differed by between AVX2 and AVX-512 in their first update, and a margin
RELATIVE, ABSOLUTE = 2e-2, 2e-3
COMPARED = ("critic/rewards/mean", "actor/loss", "actor/grad_norm", "actor/pg_loss", "critic/advantages/max")
# variables that make this CPU compute as another
HOLDING = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")

Record = dict[str, Any]


def machine() -> str:
    """What numbers depend on beside the code: kind of CPU, and libraries that compute."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if Path("/proc/cpuinfo").exists() else []
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    kind = {key.strip(): value.strip() for key, value in told.items()}
    cpu = [kind.get(key, "") for key in ("model name", "cpu family", "model", "stepping")]
    flags = sha256(" ".join(sorted(kind.get("flags", "").split())).encode()).hexdigest()[:8]  # a hypervisor hides some
    libraries = [f"{name} {version(name)}" for name in ("torch", "diffusers", "transformers", "numpy")]
    held = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name in HOLDING]
    return ", ".join([*cpu, flags, platform.machine(), torch.backends.cpu.get_cpu_capability(), *libraries, *held])


@cache
def recorded() -> dict[tuple[str, str], Record]:
    """By half and name."""
    lines = [json.loads(line) for line in FILE.read_text().splitlines()]
    return {(line["half"], line["name"]): line for line in lines}


def record_of(half: str, name: str, found: Found) -> Record:
    """A line of the file. Metrics that are always 0 are in the digest alone."""
    metrics = {
        name: [_rounded(value) for value in values] for name, values in sorted(found.metrics.items()) if any(values)
    }
    return {"half": half, "name": name, "machine": machine(), "digest": found.digest, "metrics": metrics}


def write(records: dict[tuple[str, str], Record]) -> None:
    lines = (json.dumps(records[key], separators=(",", ":")) for key in sorted(records))
    FILE.write_text("".join(line + "\n" for line in lines))


def check(half: str, name: str, found: Found) -> None:
    """Compare a run with what was recorded of it.

    Raises:
        AssertionError: it differs; the message names metrics with their values before and now.
    """
    before, after = recorded()[half, name], record_of(half, name, found)
    if before["machine"] == after["machine"]:
        told = f"if that is meant to be, 'python -m tests.golden {half}/{name!r}' records it anew"
        assert before["digest"] == after["digest"], "\n".join([*moved(before, after), told])
        return
    # other tokens may all have the same reward, which nothing goes together with
    assert {name for name in before["metrics"] if not name.endswith("_correlation")} <= found.metrics.keys()
    if "model.dtype=bfloat16" in HALVES[half][name][1]:
        return
    for column in COMPARED:
        for was, now in zip(before["metrics"].get(column, [])[:2], after["metrics"].get(column, [])[:2], strict=True):
            assert now == (was if was is None else pytest.approx(was, rel=RELATIVE, abs=ABSOLUTE)), column


def moved(before: Record, after: Record) -> Iterator[str]:
    """Each metric that differs, in as many digits as the file has."""
    for column in sorted(before["metrics"].keys() | after["metrics"].keys()):
        was, now = before["metrics"].get(column), after["metrics"].get(column)
        if was != now:
            yield f"{column}: {was} -> {now}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
