"""Benchmarks and tools for developers: their statistics and tables, what they run, and what they call equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as suite
from benchmarks.gpu import models
from benchmarks.gpu import table as figures
from benchmarks.gpu.meter import SAMPLE, UPDATE
from tests.support.shown import ROOT
from tests.support.time_columns import is_time_column

sys.path.insert(0, str(ROOT / "tools"))

import same_numbers

BENCHMARKS = ["checkpoints", "flops", "flow_grpo_settings", "language", "loading", "overhead", "pipeline", "precision",
              "scoring", "step_time"]  # fmt: skip
MODELS = {model.name: model for model in models.MODELS}
MACHINE = {"cards": 1, "device": "a card", "torch": "2", "python": "3"}


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


# one-sided 5 % points of Student's t, from tables


@pytest.mark.parametrize(
    "name", [next(iter(MODELS)), *(pytest.param(name, marks=pytest.mark.thorough) for name in list(MODELS)[1:])]
)
def test_tiny_models_go_the_way_of_real_ones(name, tmp_path):
    row = models.measure(MODELS[name], "cpu", smoke=True)
    for phase in (SAMPLE, UPDATE):
        assert row[f"{phase} per s"] > 0
        assert 0 < row[f"{phase} share"] < 1
    assert 0 < row["load GiB"] < row["update GiB"] < 0.5
    assert figures.figures({"rows": {name: [row]}, "skipped": {}, "failed": {}, "machine": MACHINE}).count(name) == 1


def test_a_part_that_fails_hangs_or_lacks_something_leaves_the_others_alone(monkeypatch, capsys):
    def part(name, *arguments, seconds=30.0, missing=""):
        run = lambda one, folder: [{"name": one.command(*arguments).strip()}]  # noqa: E731
        return suite.Part(name, run, seconds, lambda _: missing)

    parts = [
        part("well", "platform", "--terse"),
        part("broken", "no_such_module"),
        part("hanging", "http.server", "0", "--bind", "127.0.0.1", seconds=1.5),
        part("elsewhere", "platform", missing="it needs a card"),
        part("unasked", "platform"),
    ]
    monkeypatch.setattr(suite, "PARTS", parts)
    found = suite.run_all(suite.Suite(cards=0), [one.name for one in parts[:-1]], 60)
    assert list(found["rows"]) == ["well"]
    assert found["skipped"] == {"elsewhere": "it needs a card"}
    assert "No module named no_such_module" in found["failed"]["broken"]
    assert found["failed"]["hanging"].startswith("timed out after")
    assert "elsewhere: skipped: it needs a card" in capsys.readouterr().out
    assert list(suite.run_all(suite.Suite(cards=0), ["well"], 0)["skipped"]) == ["well"]
    assert (suite.Suite(cards=0).smoke, suite.Suite(cards=2).smoke) == (True, False)


def test_runs_that_differ_in_time_alone_are_equal_and_every_other_difference_is_told(tmp_path):
    def written(name: str, *rows: dict[str, float | None]) -> Path:
        (tmp_path / name).mkdir()
        lines = [json.dumps({same_numbers.STEP: update} | row) + "\n" for update, row in enumerate(rows)]
        (tmp_path / name / "metrics.jsonl").write_text("".join(lines))
        return tmp_path / name

    one = written("one", {"actor/loss": 0.0, "perf/time": 1.0}, {"actor/loss": 1.0}, {})
    two = written("two", {"actor/loss": 0.0, "perf/time": 2.0}, {"actor/loss": 1.0, "timing_s/gen": 1.0}, {})
    assert same_numbers.report(one, two, everything=True) == same_numbers.EQUAL
    other = written("other", {"actor/loss": -0.0, "new": 2.0}, {"actor/loss": 1.0 + 2**-52})
    assert same_numbers.report(one, other, everything=True).splitlines() == [
        "differs",
        "  update 0: actor/loss 0.0 -> -0.0",
        "  update 0: new is only after (2.0)",
        "  update 1: actor/loss 1.0 -> 1.0000000000000002 (by 2.2e-16, 2.2e-16 of it)",
        "  update 2 is only before",
    ]
    assert all(map(is_time_column, same_numbers.TIME_COLUMNS))
