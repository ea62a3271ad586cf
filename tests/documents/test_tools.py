"""Benchmarks run, and what they write can be read."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.shown import ROOT

BENCHMARKS = ["checkpoints", "flops", "flow_grpo_settings", "language", "loading", "overhead", "pipeline", "precision",
              "real_model", "scoring", "step_time"]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs_and_what_it_writes_can_be_read(name, tmp_path):
    output = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--smoke", "--output", str(output)],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert result["threads"] == 1
    assert all(row["name"] in done.stdout for row in result["rows"])
    numbers = [value for row in result["rows"] for value in row.values() if isinstance(value, float)]
    assert numbers
    assert all(0 <= value < float("inf") for value in numbers)
