"""A run's folder: what an attempt that goes on may find in it, and what it may not change."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import burnish
from burnish.config.run_folder import RunFolder


def begun(tmp_path, *options):
    folder = RunFolder(tmp_path / "run")
    folder.begin(burnish.load("quickstart", *options), resumed_at=None)
    return folder


def go_on(folder, *options, recipe="quickstart"):
    folder.refuse_other_configuration(burnish.load(recipe, *options))


def judged(folder, *updates):
    for update in updates:
        folder.validation(update).mkdir(parents=True)
        (folder.validation(update) / "samples.jsonl").write_text("{}\n")


def test_going_on_keeps_what_is_done_and_starting_anew_loses_nothing(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert not folder.has_run()
    assert folder.read_metrics() == []
    assert not folder.path.exists(), "asking where things are creates nothing"
    config = burnish.load("quickstart", "optimizer.lr=1e-3", f"output_dir={tmp_path / 'run'}")
    folder.begin(config, resumed_at=None)
    assert folder.has_run()
    assert burnish.load(str(folder.config)) == config, "the saved configuration is a recipe for the same run"
    judged(folder, 0, 10, 20)
    folder.metrics.write_text("first")
    folder.begin(config, resumed_at=10)
    assert folder.validations() == [0, 10]
    assert not (folder.path / "earlier").exists()
    for attempt in ("second", "third"):
        folder.begin(config, resumed_at=None)
        assert folder.validations() == []
        judged(folder, 0)
        folder.metrics.write_text(attempt)
    kept = sorted((folder.path / "earlier").glob("*/metrics.jsonl"))
    assert [file.read_text() for file in kept] == ["first", "second"]
    assert (folder.path / "earlier" / "2" / "validation" / "000000").is_dir()


@pytest.mark.parametrize(("option", "named"), [
    ("optimizer.lr=1e-3", "optimizer.lr"), ("seed=1", "seed"), ("algorithm.beta=0.25", "algorithm.beta"),
    ("steps=70", ""), ("trainer.micro_batch_size=8", ""), ("checkpoint.every=1", ""), ("resume=never", ""),
])  # fmt: skip
def test_options_that_change_weights_can_not_go_on_and_are_named(tmp_path, option, named):
    folder = begun(tmp_path, "optimizer.schedule=constant")
    if not named:
        return go_on(folder, "optimizer.schedule=constant", option)
    with pytest.raises(ValueError, match=named):
        go_on(folder, "optimizer.schedule=constant", option)
    folder.config.write_bytes(folder.config.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"config\.yaml(.|\n)*remove it"):  # torn
        go_on(folder)
    return None


@pytest.mark.parametrize("schedule", ["optimizer.schedule=cosine", "optimizer.warmup_ratio=0.1"])
def test_steps_decide_weights_where_the_learning_rate_depends_on_them(tmp_path, caplog, schedule):
    folder = begun(tmp_path, schedule, "steps=40")
    for steps, length in ((61, 61), (20, 40)):
        with pytest.raises(ValueError, match=rf"optimizer\.schedule_updates={length}$"):
            go_on(folder, schedule, f"steps={steps}")
    for steps, length in ((61, 61), (61, 80), (20, 40)):
        go_on(folder, schedule, f"steps={steps}", f"optimizer.schedule_updates={length}")
        assert f"null -> {length}" in caplog.text
    folder.begin(burnish.load("quickstart", schedule, "steps=61", "optimizer.schedule_updates=80"), resumed_at=1)
    caplog.clear()
    go_on(folder, schedule, "steps=15", "optimizer.schedule_updates=80")
    assert not caplog.text


def test_the_critics_learning_rate_counts_too(tmp_path):
    ppo = ["algorithm=ppo", "optimizer.schedule=constant", "critic.optimizer.schedule=linear"]
    folder = RunFolder(tmp_path / "run")
    folder.begin(burnish.load("vlm_quickstart", *ppo, "steps=20"), resumed_at=None)
    with pytest.raises(ValueError, match=r"critic\.optimizer\.schedule_updates=21$"):
        go_on(folder, *ppo, "steps=21", recipe="vlm_quickstart")
    go_on(folder, *ppo, "steps=21", "critic.optimizer.schedule_updates=21", recipe="vlm_quickstart")


OTHER = """
import sys
from burnish.config.run_folder import RunFolder
assert "torch" not in sys.modules
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
        with pytest.raises(ValueError, match=rf"process {other.pid} on"):
            folder.claim()
    finally:
        other.kill()  # which lets go
        other.communicate(timeout=30)
    folder.claim()
    folder.claim()
    with pytest.raises(ValueError, match="another process"):
        RunFolder(tmp_path).claim()
    folder.close()
    RunFolder(tmp_path).claim()


def test_a_run_that_goes_on_says_which_of_the_users_functions_changed(tmp_path, caplog):
    code, folder = tmp_path / "rewards.py", RunFolder(tmp_path / "run")
    given = [f"rewards.{one}={{name: function, path: '{code}:{one}'}}" for one in ("a", "b")]

    def begin(at, functions=given):
        caplog.clear()
        folder.begin(burnish.load("quickstart", *functions), resumed_at=at)
        return caplog.text

    code.write_text("def a(): ...\ndef b(): ...\n")
    assert begin(None) == begin(3) == ""
    code.write_text("def a(): ...\ndef b(): return 1\n")
    assert f"rewards.a ({code}:a), rewards.b ({code}:b)" in begin(5)
    assert begin(6) == "", "it is said once"
    assert begin(7, given[1:]) == "", "options that change are compared elsewhere"
    folder.code.write_text("{")
    assert "damaged" in begin(8)


def test_a_moved_run_goes_on_where_it_is_told_to_and_never_refuses_a_folder_that_has_one(recipe, tmp_path):
    from tests.support.tiny_run import burnish as command

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    said = command("train", recipe, "resume=never", status=2).message
    assert "resume is never" in said
    assert str(tmp_path / "run") in said
    from burnish.config import dump

    config = dump(burnish.load("quickstart", "output_dir=runs/a"))
    for place in ("runs/a", "runs/b", "mine"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.yaml").write_text(config)
        if place != "mine":  # a recipe that happens to have that name
            (tmp_path / place / "metrics.jsonl").write_text(json.dumps({"training/global_step": 0}) + "\n")
    said = command("train", "runs/b/config.yaml", "steps=9", status=2).message
    assert "runs/b" in said
    assert "output_dir=runs/b" in said
    for words in (["runs/a/config.yaml"], ["runs/b/config.yaml", "output_dir=runs/c"], ["mine/config.yaml"]):
        # which end at the model, a stand-in
        assert "output_dir" not in command("train", *words, "model.path=nowhere", status=2).message
