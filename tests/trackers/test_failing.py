"""A tracker that is slow, down or broken never stops or slows a run, and what it missed it gets later."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun

FAKE = """
import json, os, pathlib, time
class Table:
    def __init__(self, **rest): pass
    def add_data(self, *row): pass
Image = Video = Settings = lambda *rest, **more: None
class Run:
    url = None
    def __init__(self, file): self.file = file
    def log(self, values, step):
        {log}
        with self.file.open("a") as lines:
            lines.write(json.dumps([step, values.get("actor/loss")]) + "\\n")
    def alert(self, **rest): pass
    def finish(self, exit_code): pass
def init(dir, **rest):
    first = not (pathlib.Path(dir) / "tried").exists()
    (pathlib.Path(dir) / "tried").touch()
    {init}
    return Run(pathlib.Path(dir) / "rows.jsonl")
"""
GIVEN = ["algorithm=grpo", "trackers.wandb.mode=offline", "trackers.samples=0", "checkpoint.every=1"]
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def tracked(files, tmp_path, monkeypatch):
    """Make a run, and a library of W&B's name that does something before it opens a run, or before it logs."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(*options: str, init: str = "pass", log: str = "pass") -> TinyRun:
        (tmp_path / "wandb.py").write_text(FAKE.format(init=init, log=log))
        return TinyRun(files, "language", "llama", *GIVEN, *options, name="tracked")

    return make


def rows(run: TinyRun) -> list[list[Any]]:
    file = run.output / "trackers" / "wandb" / "rows.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def every(run: TinyRun) -> list[list[Any]]:
    return [[line["training/global_step"], line.get("actor/loss")] for line in run.metrics]


@pytest.mark.parametrize("where", ["log", *seldom("init")])
def test_a_tracker_that_hangs_delays_nothing_and_gets_all_with_the_same_command(tracked, tmp_path, caplog, where):
    run, begun = tracked("trackers.wait=0.5", **{where: "time.sleep(60)"}), time.monotonic()
    run.train()
    assert time.monotonic() - begun < 30
    assert "trackers.wandb: 4 updates are not sent: it took longer than 0.5 s (trackers.wait)" in caplog.text
    (tmp_path / "wandb.py").write_text(FAKE.format(init="pass", log="pass"))
    run.options.remove("trackers.wait=0.5")
    run.train()
    assert rows(run) == every(run)


def test_one_that_dies_is_started_again(tracked, caplog):
    run = tracked("trackers.wait=60", init="\n    if first: os._exit(7)")
    run.train()
    assert caplog.text.count("the run goes on, and it is tried again") == 1
    assert rows(run) == every(run)


def test_one_that_always_fails_says_so_once_and_at_the_end_and_shows_no_secret(tracked, caplog, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    refusal = "raise ValueError(f'{os.environ[\"WANDB_API_KEY\"]} is refused by https://me:word@host/')"
    run = tracked("trackers.wait=1", init=refusal)
    run.train()
    assert caplog.text.count("ValueError: *** is refused by https://***@host/; the run goes on") == 1
    assert "trackers.wandb: 4 updates are not sent: ValueError: ***" in caplog.text
    assert KEY not in caplog.text
    for file in run.output.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()


def die(samples: list[Any], prompts: list[Any], folder: str) -> list[float]:
    """The process is killed in its third update."""
    metrics = Path(folder) / "metrics.jsonl"
    if metrics.exists() and metrics.read_bytes().count(b"\n") == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return [0.0] * len(samples)


def test_what_a_killed_run_has_told_is_still_sent(tracked):
    run = tracked(init="time.sleep(1)")
    reward = (
        f"{{name: function, path: 'tests.trackers.test_failing:die', arguments: {{folder: {run.output}}}, weight: 0}}"
    )
    child = os.fork()
    if child == 0:
        run.train(f"rewards.deadly={reward}")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    deadline = time.monotonic() + 60
    while rows(run) != every(run):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(rows(run)) == 3
