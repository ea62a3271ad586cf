"""What a run keeps as it goes, also where it is killed or something fails: metrics, groups, times, failures, copies."""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import burnish
from burnish.checkpoint.remote import Remote
from burnish.commands.hooks import beside
from burnish.config.run_folder import STEP, RunFolder
from burnish.hooks import recorded
from burnish.hooks.epochs import EPOCH, Epochs
from burnish.hooks.failures import Failures, NothingLearned
from burnish.hooks.metrics import MetricsLog, drop_after
from burnish.hooks.recorded import GroupLog, Timeline
from burnish.hooks.report import SHARE, ReportWriter
from burnish.hooks.validation import Validation
from burnish.options import StepOptions
from burnish.training.memory import PhaseMemory
from burnish.types.prompt import Prompt
from burnish.types.rollout import Rollouts, Scores, failures_of
from burnish.utils import feed
from burnish.utils.timer import Stopwatch
from tests.support.checkpoints import check, make, save
from tests.support.reports import Story, lines_of, report, run_folder

VALUES = {"actor/lr": 0.1 + 0.2, "critic/rewards/mean": 1e-300, "actor/loss": -0.0, "val-aux/naïve": 1 / 3}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


# metrics


def logged(folder, updates, resumed_at=None):
    hook = MetricsLog(folder, resumed_at=resumed_at)
    hook.start(resumed_at or 0)
    for update in updates:
        hook(update, {name: value * (update + 1) for name, value in VALUES.items()})
        assert folder.metrics.read_bytes().endswith(b"\n"), "a line is there as soon as its update is done"
    hook.close()
    return folder.metrics.read_bytes()


def test_after_a_kill_at_any_byte_metrics_are_those_of_a_run_without_one(folder):
    whole = logged(folder, range(6))
    for update, line in enumerate(whole.splitlines()):
        row = json.loads(line)
        assert next(iter(row)) == STEP
        assert row == {STEP: update} | {name: value * (update + 1) for name, value in VALUES.items()}
        assert math.copysign(1, row["actor/loss"]) == -1
    lines = whole.splitlines(keepends=True)
    kept = b"".join(lines[:4])
    for length in {*range(len(whole) - len(lines[-1]) - len(lines[-2]), len(whole), 7), len(whole) - 1, len(whole)}:
        folder.metrics.write_bytes(whole[:length])
        drop_after(folder, 3)
        assert folder.metrics.read_bytes() == kept
    assert logged(folder, range(4, 6), resumed_at=3) == whole
    folder.metrics.write_bytes(whole[:-1])
    assert logged(folder, [], resumed_at=5) == whole, "a line that only lacks its end is whole"
    folder.metrics.write_bytes(f'{{"{STEP}": 1}}\n{{"{STEP}": 2, "na\u00ef'.encode()[:-1])
    assert logged(folder, [], resumed_at=2).decode() == f'{{"{STEP}": 1}}\n'
    folder.metrics.unlink()
    assert json.loads(logged(folder, [8], resumed_at=7))[STEP] == 8
    hook = MetricsLog(folder, resumed_at=None)
    hook.start(0)
    hook(1, {f"actor/{value}": value for value in (math.nan, math.inf, -math.inf)})
    hook.close()
    assert set(json.loads(folder.metrics.read_text().splitlines()[-1]).values()) == {1, None}, "JSON has no NaN"


@pytest.mark.parametrize("recipe", ["quickstart", "vlm_quickstart"])
def test_validations_are_before_every_so_often_and_at_the_end_or_never(recipe, tmp_path):
    for given, due in (
        (["validation.every=2"], [0, 2, 4, 5]), (["validation.every=2", "validation.before=false"], [2, 4, 5]),
        (["validation.every=0"], [0, 5]), (["validation.every=0", "validation.before=false"], [5]),
        (["validation.every=null"], [0]), (["validation.every=null", "validation.before=false"], []),
    ):  # fmt: skip
        config, asked = burnish.load(recipe, "steps=5", "optimizer.schedule_updates=null", *given), []
        hook = Validation(
            config, RunFolder(tmp_path), lambda target, guidance, asked=asked: asked.append(target.name) or {}
        )
        for update in range(6):
            hook(update, metrics := {})
            assert ("timing_s/testing" in metrics) == (update in due)
        assert asked == [f"{update:06d}" for update in due]


def test_epochs_count_every_batch_and_a_resumed_run_goes_on(folder):
    def told(hook, update, **metrics):
        hook(update, metrics)
        return metrics.get(EPOCH)

    config = SimpleNamespace(batches_per_update=2, data=SimpleNamespace(train_batch_size=4))
    hook = Epochs(folder, config, lambda: 32)
    hook.start(0)
    assert [told(hook, 0), told(hook, 1), told(hook, 2, **{"train/num_gen_batches": 3.0})] == [None, 0.25, 1.0]
    folder.metrics.write_text(json.dumps({STEP: 2, EPOCH: 1.0}) + "\n")
    hook = Epochs(folder, config, lambda: 32)
    hook.start(2)
    assert told(hook, 2) == 1.0, "an update whose validation is made up for is no further one"
    assert told(hook, 3) == 1.25


# groups, times, reports


def batch(update: int, rewards: list[float], missing: tuple[int, ...] = (), faults: tuple[str, ...] = ()) -> Rollouts:
    """Two samples of each prompt."""
    count = len(rewards)
    scores = Scores(
        reward=torch.tensor(rewards), missing=torch.tensor([row in missing for row in range(count)]), names=("good",),
        components=torch.tensor(rewards)[:, None], weights=(1.0,), notes=["?"] * count,
        faults=list(faults) or [""] * count,
    )  # fmt: skip
    prompts = [Prompt(text=f"prompt {row // 2} " + "x" * 1000, where=f"data.jsonl:{row}") for row in range(count)]
    sample = torch.arange(count) % 2
    return Rollouts(
        prompts=prompts, group=torch.arange(count) // 2, sample=sample, scores=scores, update=update,
        version=update - 1, seed=0, failures=failures_of(prompts, sample, scores),
    )  # fmt: skip


def test_every_sample_has_its_reward_and_its_advantage_once(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run", Story(pictures=False, guided=False, updates=2))

    def log(done, updates, advantages=None):
        hook = GroupLog(folder, lambda: advantages)
        hook.start(done)
        for update in updates:
            hook.observe(update, batch(update, [1.0, 0.5, 0.25, 0.25], missing=(1,)))
            hook(update, {})
        hook.close()

    log(0, range(1, 3), [0.7, math.nan, 0.0, 0.0])
    data = report(folder).data
    first, second = data["groups"]["2"]["groups"]
    assert [(one["reward"], one["advantage"]) for one in first["samples"]] == [(1.0, 0.7), (None, None)]
    assert [one["reward"] for one in second["samples"]] == [0.25, 0.25]
    assert len(first["prompt"]) == recorded.LONGEST
    rows = {one["prompt"][:8]: one for one in data["trained"]["prompts"]}
    assert (rows["prompt 1"]["zero"], rows["prompt 1"]["never"]) == (1.0, True)
    assert rows["prompt 0"]["zero"] is None, "a single reward has no variance to speak of"
    log(2, range(3, 6))
    folder.groups.write_bytes(folder.groups.read_bytes()[:-20])
    log(3, range(4, 5))
    assert [line["update"] for line in lines_of(folder.groups)] == [1, 2, 3, 4]
    advantages = {
        sample["advantage"] for one in report(folder).data["groups"]["4"]["groups"] for sample in one["samples"]
    }
    assert advantages == {None}
    monkeypatch.setattr(recorded, "LARGEST", 2000)
    log(0, range(1, 50))
    assert folder.groups.stat().st_size < 5000


def test_processes_are_lanes_of_one_timeline_and_one_process_tells_its_memory(tmp_path):
    folder = run_folder(tmp_path / "run", Story(updates=2, pictures=False, guided=False))
    watch, memory = Stopwatch(), PhaseMemory()
    hook = Timeline(folder, watch, memory, local=False)
    hook.start(0)
    with watch("step"), watch("gen"):
        time.sleep(0.01)
    watch.add({}, {"train 0": [("update_actor", time.time(), 0.5)]})
    hook(1, metrics := {})
    hook.close()
    assert metrics == {}, "the controller's memory says nothing about training"
    driver, rank = report(folder).data["time"]["spans"]
    assert (driver["lane"], [one[0] for one in driver["spans"]]) == ("controller", ["gen"])
    assert driver["spans"][0][1] == 0.0
    assert 0.01 <= rank["spans"][0][1] < 5
    hook = Timeline(folder, Stopwatch(), memory, local=True)
    hook.start(1)
    with memory.during("step"), memory.during("gen"):
        pass
    hook(2, metrics := {})
    assert 0.01 < metrics["perf/max_cpu_memory_gb"] < 1000
    assert 0.01 < metrics["perf/cpu_memory_gb/gen"] <= metrics["perf/cpu_memory_gb/step"] < 1000
    hook(3, later := {})
    hook.close()
    assert "perf/cpu_memory_gb/gen" not in later


def test_the_report_is_written_during_the_run_and_takes_little_of_its_time(tmp_path):
    folder, now = run_folder(tmp_path / "run", Story(updates=2, pictures=False, guided=False)), [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    hook, validated = ReportWriter(folder, clock=clock), {"val-core/default/reward/mean@6": 0.5}
    hook(1, {"actor/loss": 1.0})
    assert not folder.report.exists(), "nothing has been validated"
    hook(2, validated)
    folder.report.unlink()
    hook(3, validated)
    assert not folder.report.exists()
    now[0] += 1 / SHARE
    hook(4, validated)
    assert folder.report.exists()


# rewards that are missing, and runs that learn nothing

EMPTY = {"actor/empty_updates": 1.0, "actor/skipped_updates": 1.0}
LEARNED = {"actor/empty_updates": 0.0, "actor/loss": 0.1}
TRACE = 'Traceback (most recent call last):\n  File "rewards.py", line 3, in score\nValueError: no'
FAULT = "mine: gave text"


def failing(folder, *, steps=100, done=0, **options):
    hook = Failures(folder, StepOptions(**options), steps=steps)
    hook.start(done)

    def update(number, metrics, *faults):
        hook.observe(
            number, batch(number, [0.0] * len(faults), tuple(i for i, one in enumerate(faults) if one), faults)
        )
        hook(number, dict(metrics))

    return hook, update


def test_a_missing_reward_is_named_kept_and_its_first_traceback_shown_once(folder, caplog):
    _, update = failing(folder)
    raised = f"mine: ValueError: no (rewards.py:3, in score)\n{TRACE}"
    with caplog.at_level(logging.WARNING):
        for number in (1, 2):
            update(number, LEARNED, "", raised, FAULT, FAULT)
    assert caplog.text.count("Traceback") == 1
    lines = lines_of(folder.path / "failures.jsonl")
    assert [(line["update"], line["count"]) for line in lines] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert (lines[0]["sample"], lines[0]["traceback"]) == (1, TRACE)
    assert lines[0]["why"] == "mine: ValueError: no (rewards.py:3, in score)"
    assert "data.jsonl:1" in lines[0]["prompt"]


def test_updates_in_a_row_without_rewards_end_the_run_with_the_cause(folder):
    hook, update = failing(folder, max_empty_updates=2)
    for number in (1, 2, 3, 4, 5):
        update(number, LEARNED if number == 3 else EMPTY, FAULT)  # only those in a row count
    with pytest.raises(NothingLearned, match=r"3 updates in a row .*trainer\.max_empty") as ended:
        update(6, EMPTY, FAULT)
    for words in (FAULT, "data.jsonl:0", str(folder.path / "failures.jsonl")):
        assert words in str(ended.value)
    assert "\n" not in str(ended.value)
    _, update = failing(folder, max_empty_updates=2)
    for number in range(1, 21):
        update(number, EMPTY, "")
    with pytest.raises(NothingLearned, match="equal"):  # which are borne ten times as long
        update(21, EMPTY, "")
    hook, _ = failing(folder, max_empty_updates=2)
    for number, missing in enumerate((1.0, 1.0, 0.5, 1.0, 1.0)):
        hook(number, LEARNED | {"val-aux/missing": missing})
    with pytest.raises(NothingLearned, match="3 validations"):
        hook(5, LEARNED | {"val-aux/missing": 1.0})


@pytest.mark.parametrize(("done", "updates", "ends"), [(0, 2, True), (2, 2, False), (0, 1, False)])
def test_a_short_run_that_never_learned_is_no_success(folder, done, updates, ends):
    hook, update = failing(folder, steps=done + 2, done=done)
    for number in range(done + 1, done + 1 + updates):
        update(number, EMPTY, FAULT)
    if ends:
        with pytest.raises(NothingLearned):
            hook.finish()
    else:
        hook.finish()  # earlier updates learned something, or it was asked to stop and is saved first


# copies beside a run


def copying(run: Path, there: Path, *options: str):
    given = [f"output_dir={run}", f"checkpoint.copy_to=file://{there}/run", *options]
    (found,) = beside(burnish.load("quickstart", *given), RunFolder(run))
    return found


def test_an_address_that_is_down_stops_nothing_and_gets_all_copies_later(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(feed, "FIRST_PAUSE", 0.2)
    run, there = tmp_path / "run", tmp_path / "there"
    there.write_text("a file where a folder should be")
    save(make(run / "checkpoints", keep_last=9), 1)
    hook = copying(run, there, "checkpoint.wait=20")
    hook.start(0)
    deadline, metrics = time.monotonic() + 20, {}
    while not metrics.get("perf/checkpoint_copy/failures"):
        hook(0, metrics)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert metrics["perf/checkpoint_copy/updates_behind"] == 1
    assert "checkpoint.copy_to: NotADirectoryError" in caplog.text
    there.unlink()
    save(make(run / "checkpoints", keep_last=9), 2)
    hook(2, {})
    hook.finish()
    hook.close()
    assert sorted(Remote(f"file://{there}/run").updates()) == [1, 2]
    check(make(there / "run" / "checkpoints").latest(), 2)
    there.rename(tmp_path / "elsewhere")
    there.write_text("")
    late = copying(run, there, "checkpoint.wait=0")
    late.start(2)
    late.finish()
    late.close()
    assert "checkpoint.copy_to: not done for all checkpoints up to update 2" in caplog.text


@pytest.mark.parametrize(("finished", "seconds"), [(True, 600.0), (False, 10.0)])
def test_an_error_is_not_held_up_by_copies(finished, seconds, tmp_path, monkeypatch):
    hook, waited = copying(tmp_path / "run", tmp_path / "there"), []
    monkeypatch.setattr("burnish.hooks.beside.end_all", lambda feeds, outcome, most: waited.append(most) or [])
    if finished:
        hook.finish()
    hook.close()
    assert waited == [seconds]
    assert beside(burnish.load("quickstart", f"output_dir={tmp_path}"), RunFolder(tmp_path)) == []
