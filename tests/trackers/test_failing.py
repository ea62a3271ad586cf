"""A tracker that hangs, is down or broken never stops or slows a run, and what it missed it gets later."""

import json
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from burnish.config.run_folder import RunFolder
from burnish.hooks.trackers import first_samples, sendable
from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun
from tests.support.tracked import validate

GIVEN = ["algorithm=grpo", "trackers.wandb.mode=offline", "trackers.samples=0", "checkpoint.every=1"]
KEY = "0123456789abcdef0123456789abcdef01234567"


def nothing() -> None:
    pass


def library(init: Callable[[], None], log: Callable[[], None]) -> Any:
    """A library of W&B's interface that does something before it opens a run, or before it logs."""

    def begin(dir: Path, **rest: Any) -> Any:
        init()

        def write(values: dict[str, float], step: int) -> None:
            log()
            with (dir / "rows.jsonl").open("a") as lines:
                lines.write(json.dumps([step, values.get("actor/loss")]) + "\n")

        return SimpleNamespace(url=None, log=write, finish=lambda exit_code: None)

    module = SimpleNamespace(init=begin, Settings=lambda **rest: None)
    module.__spec__ = ModuleSpec("wandb", None)
    return module


@pytest.fixture
def tracked(files, monkeypatch):
    """Make a run with such a library, or give it another one."""

    def make(*options: str, init: Callable[[], None] = nothing, log: Callable[[], None] = nothing) -> TinyRun:
        monkeypatch.setitem(sys.modules, "wandb", library(init, log))
        return TinyRun(files, "language", "llama", *GIVEN, *options, name="tracked")

    return make


def rows(run: TinyRun) -> list[list[Any]]:
    file = run.output / "trackers" / "wandb" / "rows.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def every(run: TinyRun) -> list[list[Any]]:
    return [[line["training/global_step"], line.get("actor/loss")] for line in run.metrics]


@pytest.mark.parametrize("where", ["log", *seldom("init")])
def test_a_tracker_that_hangs_delays_nothing_and_gets_all_with_the_same_command(tracked, caplog, where):
    run, begun = tracked("trackers.wait=0.5", **{where: lambda: time.sleep(3600)}), time.monotonic()
    run.train()
    assert time.monotonic() - begun < 30
    assert "trackers.wandb: 4 updates are not sent: it took longer than 0.5 s (trackers.wait)" in caplog.text
    tracked()
    run.options.remove("trackers.wait=0.5")
    run.train()
    assert rows(run) == every(run)


@pytest.mark.parametrize("where", ["init", *seldom("log")])
def test_one_that_failed_once_is_opened_again_and_gets_all(tracked, caplog, where):
    failures = [SystemExit(7)]

    def fail() -> None:
        if failures:
            raise failures.pop()

    run = tracked("trackers.wait=60", **{where: fail})
    run.train()
    assert caplog.text.count("SystemExit: 7; the run goes on, and it is tried again") == 1
    assert rows(run) == every(run)


def test_one_that_always_fails_says_so_once_and_at_the_end_and_shows_no_secret(tracked, caplog, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)

    def refuse() -> None:
        raise ValueError(f"{KEY} is refused by https://me:word@host/")

    run = tracked("trackers.wait=1", init=refuse)
    run.train()
    assert caplog.text.count("ValueError: *** is refused by https://***@host/; the run goes on") == 1
    assert "trackers.wandb: 4 updates are not sent: ValueError: ***" in caplog.text
    assert KEY not in caplog.text
    for file in run.output.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()


def test_samples_are_the_first_of_each_of_the_first_prompts_and_no_file_of_another_folder(tmp_path):
    folder = RunFolder(tmp_path)
    validate(folder, 9)
    place = folder.validation(9)
    records = [json.loads(text) for text in (place / "samples.jsonl").read_text().splitlines()]
    records = [records[0], records[0] | {"sample": 1, "response": "another"}, records[1] | {"images": ["../../x.png"]}]
    (tmp_path / "x.png").write_bytes(b"secret")
    (place / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    first, second = first_samples(place, 8)
    assert (first.response, [file.name for file in first.shown]) == ("**five** <b>0</b>", ["000-0.png"])
    assert sendable(second.shown) == []
