"""Benchmarks and tools for developers: their statistics and tables, what they run, and what they call equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import burnish
from benchmarks.algorithms import Member, collect, paired_t, table, train, write_docs
from benchmarks.gpu import __main__ as suite
from benchmarks.gpu import models
from benchmarks.gpu import table as figures
from benchmarks.gpu.meter import SAMPLE, UPDATE, Meter, peak
from burnish.config import dump
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
@pytest.mark.parametrize(("freedom", "t"), [(1, 6.314), (2, 2.920), (4, 2.132), (9, 1.833)])
def test_paired_t_against_tables(freedom, t):
    gains = torch.arange(freedom + 1, dtype=torch.float64)
    shift = t * float(gains.std()) / len(gains) ** 0.5 - float(gains.mean())
    assert paired_t((gains + shift).tolist()) == pytest.approx(0.05, abs=2e-4)
    assert paired_t((-gains - shift).tolist()) == pytest.approx(0.95, abs=2e-4)
    assert (paired_t([0.1, 0.1, 0.1]), paired_t([0.0, 0.0])) == (0, 1)  # equal gains are certain


def row(step, reward, seconds=None):
    found = {"training/global_step": step, "val-core/numbers/reward/mean@4": reward, "val-aux/variety": 0.06}
    return found if seconds is None else found | {"timing_s/step": seconds, "perf/total_num_images": 8.0}


def member(folder, algorithm, seed, rows, more=()):
    """A run that is finished if its rows go to the end."""
    found = Member("quickstart", algorithm, seed, folder / algorithm / str(seed), ("steps=2", *more))
    found.folder.mkdir(parents=True)
    (found.folder / "config.yaml").write_text(dump(found.config))
    (found.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))
    return found


def finished(gain, seconds):
    return [row(0, 0.5), {"timing_s/step": seconds, "training/global_step": 1}, row(2, 0.5 + gain, seconds)]


def members(folder):
    runs = [("awm", 0, 0.30, 10.0), ("awm", 1, 0.32, 8.0), ("flow_grpo", 0, 0.40, 5.0), ("flow_grpo", 1, -0.40, 6.0)]
    found = [member(folder, algorithm, seed, finished(gain, seconds)) for algorithm, seed, gain, seconds in runs]
    return [*found, member(folder, "crd", 0, finished(0.2, 5.0)[:1])]


def test_finished_runs_become_lines_the_best_first_and_the_docs_get_them(tmp_path):
    lines = collect(members(tmp_path / "runs"))
    assert [line.algorithm for line in lines] == ["awm", "flow_grpo"]
    assert lines[0].rise() == "p = .010"
    assert lines[1].rise().startswith("no, p = .500")
    assert (lines[0].seconds(), lines[0].samples()) == (16.0, 8)
    shown = table(lines, links=True).splitlines()
    assert shown[2] == "| [awm](awm.md) | 0.500 → 0.810 ± 0.014 | 0.060 → 0.060 ± 0.000 | 8 | 16 | p = .010 |"
    (tmp_path / "awm.md").write_text("# AWM\n\nText.\n")
    for _ in range(2):
        write_docs(lines, "quickstart", [0, 1], tmp_path)
    page = (tmp_path / "awm.md").read_text()
    assert page.startswith("# AWM\n\nText.\n\n<!-- result quickstart: begin -->\n**On the quickstart** (2 updates")
    assert page.count("0.500 → 0.810 ± 0.014") == 1
    assert "| [flow_grpo](flow_grpo.md) |" in (tmp_path / "README.md").read_text()


def test_only_runs_that_are_not_finished_are_trained_and_none_with_other_options_is_taken(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(Member, "train", lambda self: trained.append(self.algorithm) or True)
    assert train(members(tmp_path), jobs=2)
    assert trained == ["crd"]
    other = member(tmp_path / "other", "awm", 0, finished(0.3, 1.0), more=("rollout.n=4",))
    with pytest.raises(ValueError, match=r"rollout.n: 4 -> 12"):
        Member("quickstart", "awm", 0, other.folder, ("steps=2",)).finished()


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


@pytest.mark.parametrize("name", MODELS)
def test_real_sizes_are_those_of_the_recipes_own_models(name, tmp_path):
    model = MODELS[name]
    config = burnish.load(model.recipe, *models.options_of(model, tmp_path, "cuda", "bfloat16", smoke=False))
    shipped = burnish.load(model.recipe)
    config.check()
    assert shipped.model.path == model.published or "3B" in model.published
    assert json.loads((tmp_path / "model" / config.model_index).read_text())
    assert config.model.lora is not None
    if not model.sees:
        assert (config.rollout.height, config.rollout.num_inference_steps) == (512, shipped.rollout.num_inference_steps)


def test_memory_time_and_operations_count_for_the_inner_phase():
    meter = Meter(torch.device("cpu"))
    with meter.watching(), meter.during("gen"):
        held = torch.zeros(2**18)
        with meter.during("reward"):
            big = torch.zeros(2**20)
        del big
        meter.counts = True
        with meter.during("update_actor"):
            other = torch.ones(64, 32) @ torch.ones(32, 16)
    assert held.numel() + other.numel()
    assert meter.peaks[SAMPLE] == 4 * (2**18 + 2**20)
    assert meter.peaks[UPDATE] < meter.peaks[SAMPLE]
    assert set(meter.seconds) == {SAMPLE, UPDATE}
    assert meter.operations[UPDATE] == 2 * 64 * 32 * 16
    assert peak(torch.device("cpu"), torch.float32, rounds=1) > 1e6


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
