"""A tracker that is slow, down or broken never stops or slows a run, and what it missed it gets later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.utils import feed
from burnish.utils.feed import Timing
from tests.support.tracked import settled, track

pytestmark = pytest.mark.slow

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
WANDB = ["trackers.wandb.mode=offline", "trackers.samples=0"]
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Make a library of W&B's name that does something before it opens a run, or before it logs."""

    def make(init="pass", log="pass"):
        (tmp_path / "wandb.py").write_text(FAKE.format(init=init, log=log))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(feed, "FIRST_PAUSE", 0.0)
        return tmp_path / "run"

    return make


def rows(run):
    return [json.loads(line) for line in (run / "trackers" / "wandb" / "rows.jsonl").read_text().splitlines()]


EVERY = [[update, update / 8] for update in range(6)]


@pytest.mark.parametrize("where", ["init", "log"])
def test_a_tracker_that_hangs_for_a_minute_delays_nothing(library, caplog, where):
    run, begun = library(**{where: "time.sleep(60)"}), time.monotonic()
    track(run, range(6), WANDB, wait=0.5)
    assert time.monotonic() - begun < 30
    assert "trackers.wandb: 6 updates are not sent: it took longer than 0.5 s (trackers.wait)" in caplog.text
    library()
    track(run, range(6, 6), WANDB, resumed_at=5)  # the same command once more
    assert rows(run) == EVERY


def test_one_that_hangs_is_started_again(library, caplog):
    run = library(init="time.sleep(3600 if first else 0)")
    track(run, range(6), WANDB, timing=Timing(stall=3.0), settles=True)
    assert "trackers.wandb: it has got nowhere for 3 s; the run goes on, and it is tried again" in caplog.text
    assert rows(run) == EVERY


HOW = ["os._exit(7)", "raise SystemExit", *(pytest.param(how, marks=pytest.mark.thorough) for how in
       ("os.kill(os.getpid(), 11)", "1 / 0"))]  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_one_that_dies_is_started_again(library, caplog, how):
    run = library(init=f"\n    if first: {how}")
    track(run, range(6), WANDB, settles=True)
    assert caplog.text.count("the run goes on, and it is tried again") == 1
    assert rows(run) == EVERY


def test_one_that_always_fails_says_so_once_and_at_the_end(library, caplog):
    run = library(init="raise ValueError('no such project')")
    track(run, range(6), WANDB)
    assert caplog.text.count("trackers.wandb: ValueError: no such project; the run goes on") == 1
    assert "trackers.wandb: 6 updates are not sent: ValueError: no such project; the same command" in caplog.text


def test_no_message_shows_a_secret(library, caplog, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    run = library(init="raise ValueError(f'{os.environ[\"WANDB_API_KEY\"]} is refused by https://me:word@host/')")
    track(run, range(3), WANDB)
    assert "ValueError: *** is refused by https://***@host/" in caplog.text
    assert KEY not in caplog.text
    for file in run.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()


def test_media_that_no_library_takes_cost_the_samples_of_that_update_alone(library, caplog):
    run = library(log="assert 'val/generations' not in values or step != 3, 'no such format'")
    track(run, range(6), WANDB[:1])
    assert "trackers.wandb: samples of update 3: AssertionError: no such format" in caplog.text
    assert [row for row in rows(run) if row[1] is not None] == EVERY


def test_what_a_killed_run_has_told_is_still_sent(library):
    run = library(init="time.sleep(1)")
    code = (
        f"import os, sys; sys.path[:] = {sys.path!r}\n"
        "from tests.support import tracked\n"
        "tracked.Trackers.finish = lambda self: os.kill(os.getpid(), 9)\n"
        f"tracked.track(tracked.Path({str(run)!r}), range(6), {WANDB!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], env=os.environ, timeout=120)
    assert done.returncode == -9
    settled(run, "wandb", 5)
    assert rows(run) == EVERY
