"""Copies and exports beside a run: failures are said and counted, stop nothing, and are made good."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from burnish.checkpoint.remote import Remote
from burnish.commands.hooks import beside
from burnish.config import load
from burnish.config.run_folder import RunFolder
from burnish.utils import feed
from tests.support.checkpoints import check, make, save

pytestmark = pytest.mark.slow


def hook(run: Path, *options: str):
    (found,) = beside(load("quickstart", [f"output_dir={run}", *options]), RunFolder(run))
    return found


def counted(one, name: str) -> dict[str, float]:
    metrics: dict[str, float] = {}
    one(0, metrics)
    return {key.removeprefix(f"perf/{name}/"): value for key, value in metrics.items()}


def test_an_address_that_is_down_stops_nothing_and_gets_all_copies_later(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(feed, "FIRST_PAUSE", 0.2)
    run, there = tmp_path / "run", tmp_path / "there"
    there.write_text("a file where a folder should be")
    save(make(run / "checkpoints", keep_last=9), 1)
    one = hook(run, f"checkpoint.copy_to=file://{there}/run", "checkpoint.wait=20")
    one.start(0)
    deadline = time.monotonic() + 20
    while not counted(one, "checkpoint_copy")["failures"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert counted(one, "checkpoint_copy")["updates_behind"] == 1
    assert "checkpoint.copy_to: NotADirectoryError" in caplog.text
    assert "the run goes on, and it is tried again" in caplog.text
    there.unlink()
    save(make(run / "checkpoints", keep_last=9), 2)
    one(2, {})
    one.finish()
    one.close()
    assert sorted(Remote(f"file://{there}/run").updates()) == [1, 2]
    check(make(there / "run" / "checkpoints").latest(), 2)


@pytest.mark.parametrize(("finished", "seconds"), [(True, 600.0), (False, 10.0)])
def test_an_error_is_not_held_up_by_copies(finished, seconds, tmp_path, monkeypatch):
    one, waited = hook(tmp_path / "run", f"checkpoint.copy_to=file://{tmp_path}/there"), []
    monkeypatch.setattr("burnish.hooks.beside.end_all", lambda feeds, outcome, most: waited.append(most) or [])
    if finished:
        one.finish()
    one.close()
    assert waited == [seconds]
