"""What a run keeps as it goes, also where it is killed or something fails: metrics, validations, groups, copies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.reports import lines_of, report
from tests.support.tiny_run import TinyRun


def run_of(files: Path, name: str, *options: str) -> TinyRun:
    given = {one.partition("=")[0]: one for one in ("validation.max_prompts=1", "checkpoint.every=2", *options)}
    return TinyRun(files, "language", "llama", "algorithm=grpo", *given.values(), name=f"kept/{name}")


@pytest.fixture(scope="module")
def whole(files: Path) -> TinyRun:
    run = run_of(files, "whole", "checkpoint.keep_last=9")
    run.train()
    return run


@pytest.mark.parametrize("cut", ["nothing", "one byte", "half a line", "a line"])
def test_after_a_kill_at_any_byte_metrics_are_those_of_a_run_without_one(whole, cut, files):
    """It goes on from the checkpoint of update 2, whatever had been written since."""
    run = run_of(files, "killed", "checkpoint.keep_last=9")
    shutil.copytree(whole.output, run.output)
    shutil.rmtree(run.output / "checkpoints" / "00000003")
    file = run.output / "metrics.jsonl"
    text = file.read_bytes()
    last = len(text.splitlines(keepends=True)[-1])
    file.write_bytes(text[: len(text) - {"nothing": 0, "one byte": 1, "half a line": last // 2, "a line": last}[cut]])
    run.train()
    assert run.metrics == whole.metrics
    assert [line["update"] for line in lines_of(run.output / "groups.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "due"),
    [
        (["validation.every=2"], [0, 2, 3]), (["validation.every=2", "validation.before=false"], [2, 3]),
        (["validation.every=0"], [0, 3]), (["validation.every=null"], [0]),
    ],
)  # fmt: skip
def test_validations_are_before_every_so_often_and_at_the_end_or_never(options, due, files):
    run = run_of(files, "validated", *options)
    run.train()
    assert [line["training/global_step"] for line in run.metrics if "val-aux/missing" in line] == due
    assert sorted(path.name for path in (run.output / "validation").glob("*")) == [f"{one:06d}" for one in due]
    assert (run.output / "report.html").exists()


def test_every_sample_has_its_reward_and_its_advantage_once(whole):
    data = report(whole.output).data
    groups = data["groups"]["3"]["groups"]
    assert [len(group["samples"]) for group in groups] == [4, 4]
    for group in groups:
        rewards = [sample["reward"] for sample in group["samples"]]
        advantages = [sample["advantage"] for sample in group["samples"]]
        assert sum(advantages) == pytest.approx(0.0, abs=1e-4)
        assert max(rewards) == rewards[advantages.index(max(advantages))]
    (process,) = data["time"]["spans"]
    assert {"gen", "update_actor"} <= {name for name, *_ in process["spans"]}
    for line in lines_of(whole.output / "metrics.jsonl")[1:]:
        assert 0.01 < line["perf/cpu_memory_gb/gen"] <= line["perf/cpu_memory_gb/step"] < 1000


def test_an_address_that_is_down_stops_nothing_and_gets_all_copies_later(files, tmp_path, caplog):
    there = tmp_path / "there"
    there.write_text("a file where a folder should be")
    run = run_of(files, "copied", f"checkpoint.copy_to=file://{there}/run", "checkpoint.keep_last=9")
    run.train("checkpoint.wait=0")
    assert "checkpoint.copy_to: not done for all checkpoints up to update 3" in caplog.text
    there.unlink()
    run.train("steps=4", "checkpoint.wait=60")
    kept = there / "run" / "checkpoints"
    assert {"00000002", "00000003", "00000004"} <= {path.name for path in kept.iterdir()}
    again = run_of(files, "elsewhere", f"checkpoint.copy_to=file://{there}/run", "steps=4")
    shutil.rmtree(run.output)
    again.train()
    assert json.loads((again.output / "metrics.jsonl").read_text().splitlines()[-1])["training/global_step"] == 4
