"""A run's folder: what an attempt that goes on may find in it, and what it may not change."""

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun

CODE = yaml.safe_load(Path(__file__).with_name("wrong_code.yaml").read_text())
EVERY = ["checkpoint.every=1", "validation.every=1"]


def begun(files, name, *options, steps=2, algorithm="grpo"):
    run = TinyRun(files, "language", "llama", f"algorithm={algorithm}", *EVERY, *options, name=name)
    run.train(f"steps={steps}")
    return run


def validations(run):
    return sorted(int(place.name) for place in (run.output / "validation").iterdir())


def test_going_on_keeps_what_is_done_and_starting_anew_loses_nothing(files):
    run = begun(files, "again")
    before = run.metrics
    shutil.rmtree(run.output / "checkpoints" / "00000002")
    run.train("steps=2")
    assert validations(run) == [0, 1, 2]
    assert run.metrics == before
    assert not (run.output / "earlier").exists()
    shutil.rmtree(run.output / "checkpoints")
    (run.output / "earlier" / "1").mkdir(parents=True)
    run.train("steps=1")
    assert (validations(run), len(run.metrics)) == ([0, 1], 2)
    earlier = run.output / "earlier" / "2"
    assert (earlier / "validation" / "000002").is_dir()
    assert len((earlier / "metrics.jsonl").read_text().splitlines()) == 3
    assert "resume is never" in run.train("resume=never", status=2).message


def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


def test_options_that_change_weights_can_not_go_on_and_are_named(files, monkeypatch, caplog):
    run = begun(files, "other", "optimizer.schedule=constant", steps=1)
    for option in ("optimizer.lr=1e-3", "seed=1", "algorithm.clip=0.25"):
        assert option.partition("=")[0] in run.train("steps=2", option, status=2).message
    (run.output / "code.json").write_text("[")
    monkeypatch.setattr("fcntl.flock", no_locks)
    run.train("steps=2", "trainer.micro_batch_tokens=9000")
    assert "can't be locked against other processes: No locks available" in caplog.text
    assert "code.json is damaged" in caplog.text
    config = run.output / "config.yaml"
    config.write_bytes(config.read_bytes()[:200])
    torn = run.train("steps=3", status=2).message
    assert "config.yaml" in torn
    assert "remove it" in torn


@pytest.mark.parametrize(("algorithm", "options", "section"), [
    *seldom(
        ("grpo", ["optimizer.schedule=cosine"], "optimizer"), ("grpo", ["optimizer.warmup_steps=0.5"], "optimizer")
    ),
    ("ppo", ["critic.warmup_updates=0", "optimizer.schedule=constant", "critic.optimizer.schedule=linear"],
     "critic.optimizer"),
])  # fmt: skip
def test_steps_decide_weights_where_the_learning_rate_depends_on_them(files, algorithm, options, section):
    run = begun(files, "scheduled", *options, algorithm=algorithm)
    for steps, length in ((4, 4), (1, 2)):
        assert f"{section}.schedule_updates={length}" in run.train(f"steps={steps}", status=2).message
    run.train("steps=3", f"{section}.schedule_updates=4")


def test_one_process_at_a_time_trains_in_a_folder(files):
    run = begun(files, "claimed", steps=1)
    other = subprocess.Popen(
        [sys.executable, "-c", CODE["claims"], str(run.output)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout.readline() == "claimed\n"
        assert f"process {other.pid} on" in run.train("steps=2", status=2).message
    finally:
        other.kill()  # which lets go
        other.communicate(timeout=30)
    run.train("steps=2")


def test_a_run_that_goes_on_says_which_of_the_users_functions_changed(files, tmp_path, caplog):
    code = tmp_path / "rewards.py"
    code.write_text((files / "rewards.py").read_text())
    own, moved = tmp_path / "own.py", tmp_path / "moved" / "own.py"
    own.write_text(CODE["class"])
    options = [f"rewards.odd.path={code}:odd", f"rewards.own.name={own}:Own"]
    run = begun(files, "functions", *options, steps=1)
    code.write_text(code.read_text() + "# other\n")
    run.train("steps=2")
    assert f"rewards.odd ({code}:odd)" in caplog.text
    caplog.clear()
    moved.parent.mkdir()
    own.rename(moved)
    run.options = [option.replace(str(own), str(moved)) for option in run.options]
    run.train("steps=3")
    assert "rewards.o" not in caplog.text, "it is said once, and a class is the same where its file lies now"
