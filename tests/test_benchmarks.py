"""Benchmarks run, and what they write can be read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


LONG = [
    pytest.param(name, marks=pytest.mark.thorough)
    for name in (
        "precision",
        "overhead",
        "flops",
        "step_time",
        "flow_grpo_settings",
        "scoring",
        "language",
        "pipeline",
        "checkpoints",
        "loading",
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_smoke(name, tmp_path):
    output = tmp_path / "result.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--smoke", "--output", str(output)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert result["threads"] == 1
    assert all(row["name"] in done.stdout for row in result["rows"])
    numbers = [value for row in result["rows"] for value in row.values() if isinstance(value, float)]
    assert numbers
    assert all(0 <= value < float("inf") for value in numbers)
