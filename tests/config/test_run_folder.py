"""A run's folder: what is where, and what an attempt that goes on may find in it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from burnish.config import load
from burnish.config.run_folder import STEP, RunFolder, write_atomically
from burnish.utils.errors import UserError


def config(*overrides: str):
    return load("quickstart", list(overrides))


def judged(folder: RunFolder, *updates: int) -> None:
    for update in updates:
        folder.validation(update).mkdir(parents=True)
        (folder.validation(update) / "samples.jsonl").write_text("{}\n")


def test_asking_where_things_are_creates_nothing(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert folder.validation(10) == tmp_path / "run" / "validation" / "000010"
    assert not folder.has_run()
    assert folder.validations() == []
    assert folder.read_metrics() == []
    assert not folder.path.exists()


def test_the_saved_configuration_is_a_recipe_for_the_same_run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    given = config("optimizer.lr=1e-3", f"output_dir={tmp_path / 'run'}")
    folder.begin(given, resumed_at=None)
    assert folder.has_run()
    assert load(str(folder.config), []) == given


def test_going_on_keeps_what_is_done_and_removes_what_will_be_repeated(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin(config(), resumed_at=None)
    judged(folder, 0, 10, 20)
    folder.metrics.write_text("{}\n")
    folder.begin(config(), resumed_at=10)
    assert folder.validations() == [0, 10]
    assert folder.metrics.exists()
    assert not (folder.path / "earlier").exists()


def test_starting_anew_loses_nothing_of_an_earlier_attempt(tmp_path):
    folder = RunFolder(tmp_path / "run")
    for attempt in (1, 2):
        folder.begin(config(), resumed_at=None)
        assert folder.validations() == []
        assert not folder.metrics.exists()
        judged(folder, 0)
        folder.metrics.write_text(f"attempt {attempt}")
    folder.begin(config(), resumed_at=None)
    kept = sorted((folder.path / "earlier").glob("*/metrics.jsonl"))
    assert [file.read_text() for file in kept] == ["attempt 1", "attempt 2"]
    assert (folder.path / "earlier" / "1" / "validation" / "000000").is_dir()


@pytest.mark.parametrize(
    ("override", "option"),
    [("optimizer.lr=1e-3", "optimizer.lr"), ("seed=1", "seed"), ("algorithm.beta=0.5", "algorithm.beta")],
)
def test_other_options_can_not_go_on_and_are_named(tmp_path, override, option):
    folder = RunFolder(tmp_path / "run")
    folder.begin(config(), resumed_at=None)
    with pytest.raises(UserError, match=option):
        folder.refuse_other_configuration(config(override))


def test_a_torn_configuration_is_told_from_one_with_errors_of_the_user(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin(config(), resumed_at=None)
    folder.config.write_bytes(folder.config.read_bytes()[:200])
    with pytest.raises(UserError, match=r"config.yaml, the options of the run .* can't be read: (.|\n)*remove it"):
        folder.refuse_other_configuration(config())


@pytest.mark.parametrize("override", ["steps=60", "trainer.micro_batch_size=8", "checkpoint.every=1", "resume=never"])
def test_options_that_change_no_weight_may_change(tmp_path, override):
    folder = RunFolder(tmp_path / "run")
    folder.begin(config(), resumed_at=None)
    folder.refuse_other_configuration(config(override))


@pytest.mark.parametrize("schedule", ["optimizer.schedule=cosine", "optimizer.warmup_ratio=0.1"])
def test_steps_decide_weights_where_the_learning_rate_depends_on_them(tmp_path, schedule):
    folder = RunFolder(tmp_path / "run")
    folder.begin(config(schedule, "steps=40"), resumed_at=None)
    with pytest.raises(UserError, match=r"steps: 40 -> 61(.|\n)*give the same(.|\n)* optimizer.schedule_updates=61$"):
        folder.refuse_other_configuration(config(schedule, "steps=61"))
    with pytest.raises(UserError, match=r"optimizer\.schedule_updates=40$"):
        folder.refuse_other_configuration(config(schedule, "steps=20"))


@pytest.mark.parametrize(("steps", "length"), [(61, 61), (61, 80), (20, 40)])
def test_a_falling_learning_rate_takes_another_length_where_that_is_said(tmp_path, caplog, steps, length):
    folder = RunFolder(tmp_path / "run")
    folder.begin(config("optimizer.schedule=cosine", "steps=40"), resumed_at=None)
    other = config("optimizer.schedule=cosine", f"steps={steps}", f"optimizer.schedule_updates={length}")
    folder.refuse_other_configuration(other)
    assert f"of another length: optimizer.schedule_updates: null -> {length}" in caplog.text
    folder.begin(other, resumed_at=1)
    caplog.clear()
    folder.refuse_other_configuration(
        config("optimizer.schedule=cosine", "steps=15", f"optimizer.schedule_updates={length}")
    )
    assert not caplog.text


def test_the_critics_learning_rate_counts_too(tmp_path):
    ppo = ["algorithm=ppo", "optimizer.schedule=constant", "critic.optimizer.schedule=linear"]

    def of(*overrides):
        return load("vlm_quickstart", [*ppo, f"output_dir={tmp_path / 'run'}", *overrides])

    folder = RunFolder(tmp_path / "run")
    folder.begin(of("steps=20"), resumed_at=None)
    with pytest.raises(UserError, match=r"critic\.optimizer\.schedule_updates=21$"):
        folder.refuse_other_configuration(of("steps=21"))
    folder.refuse_other_configuration(of("steps=21", "critic.optimizer.schedule_updates=21"))


def test_metrics_are_read_without_the_line_that_was_torn(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(f'{{"{STEP}": 0}}\n{{"{STEP}": 1, "a": 0.1}}\n{{"{STEP}": 2, "a"')
    assert folder.read_metrics() == [{STEP: 0}, {STEP: 1, "a": 0.1}]


def test_a_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    target = tmp_path / "file"
    write_atomically(target, b"old")
    monkeypatch.setattr("os.fsync", lambda number: (_ for _ in ()).throw(OSError("disk is full")))
    with pytest.raises(OSError, match="full"):
        write_atomically(target, b"new and longer")
    assert target.read_bytes() == b"old"


def test_the_folder_needs_no_torch():
    code = "import sys, json, burnish.config.run_folder; print(json.dumps('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout) is False


OTHER = """
import sys
from burnish.config.run_folder import RunFolder
folder = RunFolder(sys.argv[1])
folder.claim()
print("claimed", flush=True)
sys.stdin.read()
"""


def test_one_process_at_a_time_trains_in_a_folder(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = RunFolder(tmp_path)
    try:
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(UserError, match=rf"which another process is training in \(process {other.pid} on"):
            folder.claim()
    finally:
        other.kill()  # which lets go
        other.wait(timeout=30)
    folder.claim()
    folder.claim()
    with pytest.raises(UserError, match="another process is training"):
        RunFolder(tmp_path).claim()
    folder.close()
    RunFolder(tmp_path).claim()


def test_a_run_that_goes_on_says_which_of_the_users_functions_changed(tmp_path, caplog):
    code = tmp_path / "rewards.py"
    given = [f"rewards.{one}={{name: function, path: '{code}:{one}'}}" for one in ("a", "b")]
    folder = RunFolder(tmp_path / "run")
    code.write_text("def a(): ...\ndef b(): ...\n")
    folder.begin(config(*given), resumed_at=None)
    folder.begin(config(*given), resumed_at=3)
    assert not caplog.messages
    code.write_text("def a(): ...\ndef b(): return 1\n")
    folder.begin(config(*given), resumed_at=5)
    assert [message for message in caplog.messages if f"rewards.a ({code}:a), rewards.b ({code}:b)" in message]
    assert "the run continues with the new code" in caplog.text
    caplog.clear()
    folder.begin(config(*given), resumed_at=6)
    assert not caplog.messages, "it is said once"
    folder.begin(config(*given[1:]), resumed_at=7)
    assert not caplog.messages, "options that change are compared elsewhere"
    folder.code.write_text("{")
    folder.begin(config(*given), resumed_at=8)
    assert "damaged" in caplog.text
