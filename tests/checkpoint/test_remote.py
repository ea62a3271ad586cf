"""Copies of checkpoints at an address: complete or not there, verified, and fetched only as far as they say."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.checkpoint.conftest import moved
from tests.checkpoint.test_foreign import MANIFEST, TENSORS
from tests.checkpoint.test_store import scores
from tests.support.checkpoints import leftovers, updates
from tests.support.foreign_checkpoints import forge
from tests.support.runs import last_state
from tests.support.tiny_run import TinyRun


def copying(run: TinyRun, *more: str) -> TinyRun:
    """The run with copies in the folder ``there`` beside it."""
    place = run.output.with_name("there")
    return moved(run, run.output, f"checkpoint.copy_to=file://{place}", "checkpoint.wait=60", *more)


def kept(run: TinyRun) -> list[int]:
    """Of the copies that are complete."""
    folder = run.output.with_name("there") / "checkpoints"
    return [number for number in updates(folder) if (folder / f"{number:08d}" / MANIFEST).exists()]


def elsewhere(run: TinyRun, what: str = "") -> TinyRun:
    """The same run on another machine, which has only the copies."""
    output = run.output.with_name("other")
    return moved(run, output, f"resume=file://{run.output.with_name('there')}{what}")


def test_a_copy_is_what_was_saved_and_a_run_goes_on_from_it_on_another_machine(run, trained):
    copying(run).train("steps=4")
    assert kept(run) == [1, 2, 3, 4]
    other = elsewhere(run)
    other.train("steps=5")
    run.train("steps=5")
    assert last_state(other.output) == last_state(run.output)
    assert other.metrics == run.metrics
    assert leftovers(other.output / "checkpoints") == []
    shutil.rmtree(other.output / "checkpoints" / "00000005")
    other.train("steps=5")  # the newer of here and there
    assert other.metrics == run.metrics


def test_only_what_differs_is_sent_and_the_newest_and_the_best_are_kept(run):
    copying(run).train()
    file = run.output.with_name("there") / "checkpoints" / "00000003" / TENSORS
    written = file.stat().st_mtime_ns
    shutil.rmtree(file.parents[2] / "00000002")
    (run.output / "checkpoints" / "00000001" / TENSORS).write_bytes(b"damaged")
    shutil.rmtree(file.parents[2] / "00000001")
    copying(run).train()
    assert kept(run) == [2, 3], "what is damaged here is not copied and stops no other"
    assert file.stat().st_mtime_ns == written
    copying(run, "checkpoint.copy_keep=1").train("steps=4")
    found = scores(run)
    assert kept(run) == sorted({4, max((2, 3, 4), key=lambda update: (found[update], update))})


@pytest.mark.parametrize("how", ["unfinished", "other", "escaping", *(
    pytest.param(how, marks=pytest.mark.thorough) for how in ("longer", "manifest", "pipe", "link")
)])  # fmt: skip
def test_a_damaged_or_unfinished_copy_is_skipped_for_the_one_before(how, run, tmp_path, caplog):
    there = Path(shutil.copytree(run.output, tmp_path / "there"))
    shutil.rmtree(there / "checkpoints" / "00000001")
    newest = there / "checkpoints" / "00000003"
    file = newest / TENSORS
    raw = file.read_bytes()
    if how == "unfinished":
        (newest / MANIFEST).unlink()
    elif how == "manifest":
        (newest / MANIFEST).write_text("{")
    elif how == "escaping":
        files = json.loads((newest / MANIFEST).read_bytes())["files"]
        (newest / "evil").mkdir()
        shutil.copy(file, there / "evil.safetensors")
        forge(newest, files={"../../evil.safetensors": {}} | files)
    elif how in ("pipe", "link"):
        aside = file.rename(tmp_path / "aside")
        os.mkfifo(file) if how == "pipe" else file.symlink_to(aside)
    else:
        file.write_bytes({"longer": raw + b"x", "other": raw[:-1] + b"x"}[how])
    other = elsewhere(run)
    other.train()
    assert how == "unfinished" or "checkpoint skipped" in caplog.text
    assert updates(other.output / "checkpoints") == [2, 3]
    assert other.metrics == run.metrics, "update 3 is trained again"
    assert not list(other.output.rglob("evil*"))


def test_links_on_a_shared_disk_are_not_written_through(run, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    place = tmp_path / "there" / "checkpoints" / "00000003" / "state.json"
    place.parent.mkdir(parents=True)
    place.symlink_to(theirs)
    copying(run).train()
    assert theirs.read_text() == "precious"
    assert kept(run)[:2] == [1, 2]


def test_an_address_without_a_checkpoint_starts_only_the_run_whose_copies_go_there(run, tmp_path):
    for what in ("", "/checkpoints/00000003"):
        new = elsewhere(run, what)
        assert "no complete checkpoint" in new.train(status=2).message
    assert not new.output.exists()
    own = moved(
        new, new.output, f"resume=file://{tmp_path / 'there'}", f"checkpoint.copy_to=file://{tmp_path / 'there'}"
    )
    own.train("steps=1")
    assert kept(run) == [1]


def test_an_address_that_is_down_stops_nothing_and_gets_all_copies_later(run, tmp_path, caplog):
    there = tmp_path / "there"
    there.write_text("a file where a folder should be")
    moved(copying(run), run.output, "checkpoint.wait=0.5").train("steps=4")
    assert "checkpoint.copy_to: " in caplog.text
    there.unlink()
    copying(run).train("steps=4")
    assert kept(run) == [1, 2, 3, 4]
