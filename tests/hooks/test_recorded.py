"""What a run records for the board: groups with advantages, and who did what when."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
import torch

from burnish.config.run_folder import RunFolder
from burnish.hooks import recorded
from burnish.hooks.recorded import GroupLog, Timeline
from burnish.hooks.report import SHARE, ReportWriter
from burnish.report.trained import groups, time_data, trained_prompts
from burnish.training.memory import PhaseMemory
from burnish.types.prompt import Prompt
from burnish.types.rollout import Rollouts, Scores
from burnish.utils.timer import Stopwatch
from tests.support.reports import Story, run_folder


def batch(update: int, rewards: list[float], missing: tuple[int, ...] = ()) -> Rollouts:
    """Two samples of each prompt."""
    count = len(rewards)
    absent = torch.tensor([row in missing for row in range(count)])
    scores = Scores(
        reward=torch.tensor(rewards), missing=absent, components=torch.tensor(rewards)[:, None], names=("good",),
        weights=(1.0,), notes=[""] * count,
    )  # fmt: skip
    prompts = [Prompt(text=f"prompt {row // 2} " + "x" * 1000) for row in range(count)]
    return Rollouts(
        prompts=prompts, group=torch.arange(count) // 2, sample=torch.arange(count) % 2, scores=scores, update=update,
        version=update - 1, seed=0,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def log(folder: RunFolder, done: int, updates: range, advantages: list[float] | None) -> None:
    hook = GroupLog(folder, lambda: advantages)
    hook.start(done)
    for update in updates:
        hook.observe(update, batch(update, [1.0, 0.5, 0.25, 0.25], missing=(1,)))
        hook(update, {})
    hook.close()


def test_every_sample_has_its_reward_and_its_advantage(folder: RunFolder):
    log(folder, 0, range(1, 3), [0.7, math.nan, 0.0, 0.0])
    found = groups(folder)
    assert found["updates"] == [1, 2]
    first, second = found["groups"]
    assert [(one["reward"], one["advantage"]) for one in first["samples"]] == [(1.0, 0.7), (None, None)]
    assert [one["reward"] for one in second["samples"]] == [0.25, 0.25]
    assert len(first["prompt"]) == recorded.LONGEST
    rows = {one["prompt"][:8]: one for one in trained_prompts(folder)["prompts"]}
    assert rows["prompt 1"]["zero"] == 1.0
    assert rows["prompt 1"]["never"]
    assert rows["prompt 0"]["zero"] is None, "a single reward has no variance to speak of"


def test_a_resumed_run_has_every_update_once(folder: RunFolder):
    log(folder, 0, range(1, 6), None)
    folder.groups.write_bytes(folder.groups.read_bytes()[:-20])
    log(folder, 3, range(4, 5), None)
    assert [json.loads(line)["update"] for line in folder.groups.read_text().splitlines()] == [1, 2, 3, 4]


def test_the_file_stays_small(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorded, "LARGEST", 2000)
    log(folder, 0, range(1, 50), None)
    assert folder.groups.stat().st_size < 5000


def test_processes_are_lanes_of_one_timeline(tmp_path: Path):
    folder = run_folder(tmp_path / "run", Story(updates=2, pictures=False, guided=False))
    watch = Stopwatch()
    hook = Timeline(folder, watch, PhaseMemory(), local=False)
    hook.start(0)
    with watch("step"), watch("gen"):
        time.sleep(0.01)
    watch.add({}, {"train 0": [("update_actor", time.time(), 0.5)]})
    metrics: dict[str, float] = {}
    hook(1, metrics)
    hook(2, metrics)
    hook.close()
    (driver, rank) = time_data(folder, _summary(folder), 1)["spans"]
    assert (driver["lane"], [one[0] for one in driver["spans"]]) == ("controller", ["gen"])
    assert driver["spans"][0][1] == 0.0
    assert 0.01 <= rank["spans"][0][1] < 5
    assert time_data(folder, _summary(folder), 2)["spans"] == [{"lane": "controller", "spans": []}]
    assert metrics == {}, "the controller's memory says nothing about training"


def test_one_process_tells_its_memory(folder: RunFolder):
    memory = PhaseMemory()
    hook = Timeline(folder, Stopwatch(), memory, local=True)
    hook.start(0)
    with memory.during("step"), memory.during("gen"):
        pass
    metrics: dict[str, float] = {}
    hook(1, metrics)
    assert 0.01 < metrics["perf/max_cpu_memory_gb"] < 1000
    assert 0.01 < metrics["perf/cpu_memory_gb/gen"] <= metrics["perf/cpu_memory_gb/step"] < 1000
    hook(2, (later := {}))
    hook.close()
    assert "perf/cpu_memory_gb/gen" not in later


def _summary(folder: RunFolder):
    from burnish.report.summary import Summary

    return Summary.read(folder)


def test_the_report_is_written_during_the_run_and_takes_little_of_its_time(tmp_path: Path):
    folder, now = run_folder(tmp_path / "run", Story(updates=2, pictures=False, guided=False)), [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    hook = ReportWriter(folder, clock=clock)
    hook(1, {"actor/loss": 1.0})
    assert not folder.report.exists(), "nothing has been validated"
    hook(2, {"val-core/default/reward/mean@6": 0.5})
    assert folder.report.exists()
    folder.report.unlink()
    hook(3, {"val-core/default/reward/mean@6": 0.5})
    assert not folder.report.exists()
    now[0] += 1 / SHARE
    hook(4, {"val-core/default/reward/mean@6": 0.5})
    assert folder.report.exists()
