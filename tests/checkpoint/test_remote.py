"""Copies of checkpoints at an address: complete or not there, verified, and fetched only as far as they say."""

import contextlib
import io
import json
import logging
import os
import shutil
import threading
from types import SimpleNamespace

import pytest

from burnish.checkpoint import manifest
from burnish.checkpoint.copying import copy
from burnish.checkpoint.remote import Damaged, Remote
from burnish.commands.fetching import fetched
from burnish.config import load
from burnish.utils.errors import UserError
from tests.support.checkpoints import TENSORS, check, leftovers, make, save, updates


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"training/global_step": 0}\n')
    return tmp_path / "run"


@pytest.fixture
def there(tmp_path):
    return f"file://{tmp_path / 'there'}"


def copied(run, there, *, keep=None, best=True) -> list[dict]:
    """What the process says while it copies all that a finished run has."""
    said, ended = [], SimpleNamespace(outcome="finished", changed=threading.Event())
    copy({"run": str(run), "address": there, "keep": keep, "best": best}, ended, lambda **one: said.append(one))
    return said


def kept(there) -> list[int]:
    return sorted(Remote(there).updates())


def test_a_copy_is_what_was_saved_and_comes_back_on_another_machine(run, there, tmp_path):
    for update in (1, 2):
        save(make(run / "checkpoints", keep_last=9), update, score=update / 4)
    assert copied(run, there)[-1] == {"step": 2}
    assert kept(there) == [1, 2]
    other = tmp_path / "other" / "checkpoints"
    other.mkdir(parents=True)
    assert Remote(there).fetch(2, other) == other / "00000002"
    check(make(other).latest(), 2)
    assert make(other).latest().score == 0.5
    assert (other / "00000002" / manifest.NAME).read_bytes() == (
        run / "checkpoints/00000002/manifest.json"
    ).read_bytes()
    assert leftovers(other) == []
    Remote(there).fetch_records(other.parent)
    assert (other.parent / "metrics.jsonl").read_text() == (run / "metrics.jsonl").read_text()


def test_a_file_system_that_is_none_of_this_machine_will_do(run, tmp_path):
    there = f"memory://{tmp_path.name}/run"
    for update, score in [(1, 0.5), (2, 0.1), (3, 0.2)]:
        save(make(run / "checkpoints", keep_last=9), update, score=score)
        copied(run, there, keep=1)
    assert kept(there) == [1, 3]
    other = tmp_path / "other"
    other.mkdir()
    Remote(there).fetch(3, other)
    check(make(other).latest(), 3)


def test_the_newest_copies_are_kept_and_the_best(run, there):
    for update, score in [(1, 0.1), (2, 0.9), (3, 0.2), (4, 0.3)]:
        save(make(run / "checkpoints", keep_last=9), update, score=score)
        copied(run, there, keep=1)
    assert kept(there) == [2, 4]
    (run / "checkpoints" / "00000004").rename(run / "aside")  # the run went back to an earlier update
    copied(run, there, keep=1, best=False)
    assert kept(there) == [3, 4]


def test_an_unfinished_copy_is_none_and_is_completed(run, there, tmp_path, monkeypatch):
    save(make(run / "checkpoints"), 1)
    whole = Remote._copy_file

    def fails(self, file, place, about):
        if file.suffix == ".safetensors":
            raise OSError("the line is dead")
        whole(self, file, place, about)

    monkeypatch.setattr(Remote, "_copy_file", fails)
    with pytest.raises(OSError, match="the line is dead"):
        copied(run, there)
    assert list((tmp_path / "there").rglob("state.json"))
    assert kept(there) == []
    monkeypatch.undo()
    copied(run, there)
    assert kept(there) == [1]


def test_what_is_not_kept_as_it_was_sent_is_no_copy(run, there, monkeypatch):
    save(make(run / "checkpoints"), 1)
    remote = Remote(there)
    opened = remote.fs.open
    monkeypatch.setattr(
        type(remote.fs), "open",
        lambda self, path, mode, **rest: io.BytesIO(b"other") if mode == "rb" else opened(path, mode, **rest),
    )  # fmt: skip
    with pytest.raises(OSError, match="was not kept as it was written"):
        copied(run, there)
    monkeypatch.undo()
    assert kept(there) == []


@pytest.mark.parametrize("how", ["shorter", "longer", "other", "manifest", "escaping", "missing", "pipe", "link"])
def test_a_damaged_copy_is_skipped_for_the_one_before(how, run, there, tmp_path, caplog):
    for update in (1, 2):
        save(make(run / "checkpoints", keep_last=9), update)
    copied(run, there)
    newest = tmp_path / "there/checkpoints/00000002"
    file = newest / TENSORS
    raw = file.read_bytes()
    if how == "manifest":
        (newest / "manifest.json").write_text("{")
    elif how == "escaping":  # its own hash is right
        content = json.loads((newest / "manifest.json").read_bytes())
        content.pop("sha256")
        content["files"]["../../evil.safetensors"] = content["files"].pop("state.json")
        (newest / "manifest.json").write_bytes(manifest.render(content))
    elif how in ("missing", "pipe", "link"):
        aside = file.rename(tmp_path / "aside")
        if how == "link":
            file.symlink_to(aside)
        elif how == "pipe":
            os.mkfifo(file)
    else:
        file.write_bytes({"shorter": raw[:-1], "longer": raw + b"x", "other": raw[:-1] + b"x"}[how])
    config = load("quickstart", [f"resume={there}", f"output_dir={tmp_path / 'other'}"])
    with caplog.at_level(logging.WARNING):
        assert fetched(config).resume == "auto"
    assert "checkpoint skipped" in caplog.text
    assert updates(tmp_path / "other" / "checkpoints") == [1]
    assert leftovers(tmp_path / "other" / "checkpoints") == []


@pytest.mark.parametrize("target", ["config.yaml", "checkpoints/00000001/state.json"])
def test_a_link_on_a_shared_disk_is_not_written_through(target, run, there, tmp_path):
    save(make(run / "checkpoints"), 1)
    (run / "config.yaml").write_text("steps: 1\n")
    place, theirs = tmp_path / "there" / target, tmp_path / "theirs"
    place.parent.mkdir(parents=True)
    place.symlink_to(theirs)
    for precious in (None, "precious"):
        if precious:
            theirs.write_text(precious)
        with contextlib.suppress(Damaged):  # of config.yaml: the feed tries again
            warned = [one["warning"] for one in copied(run, there) if "warning" in one]
            assert str(place) in warned[0]
        assert (theirs.read_text() if theirs.exists() else None) == precious


def test_a_run_goes_on_from_the_newer_of_here_and_there(run, there, tmp_path):
    def resumed(address):
        return fetched(load("quickstart", [f"resume={address}", f"output_dir={run}"])).resume

    save(make(run / "checkpoints", keep_last=9), 1)
    save(make(run / "checkpoints", keep_last=9), 2)
    copied(run, there)
    shutil.rmtree(run / "checkpoints" / "00000002")
    save(make(run / "checkpoints", keep_last=9), 3)
    assert (resumed(there), updates(run / "checkpoints")) == ("auto", [1, 3])
    shutil.rmtree(run / "checkpoints" / "00000003")
    assert (resumed(there), updates(run / "checkpoints")) == ("auto", [1, 2])
    (run / "checkpoints" / "00000001" / TENSORS).write_bytes(b"damaged")
    assert resumed(f"{there}/checkpoints/00000001") == str(run / "checkpoints" / "00000001")
    check(make(run / "checkpoints").open(run / "checkpoints" / "00000001"), 1)


def test_an_address_without_a_checkpoint_starts_only_the_run_whose_copies_go_there(there, tmp_path):
    options = [f"resume={there}", f"output_dir={tmp_path / 'new'}"]
    assert fetched(load("quickstart", [*options, f"checkpoint.copy_to={there}/"])).resume == "auto"
    with pytest.raises(UserError, match="which has no complete checkpoint"):
        fetched(load("quickstart", options))
    with pytest.raises(UserError, match="which has no complete checkpoint"):
        fetched(load("quickstart", [f"resume={there}/checkpoints/00000003", options[1]]))
    assert not (tmp_path / "new").exists()


def test_a_disk_without_room_is_told_before_anything_is_read(run, there, tmp_path, monkeypatch):
    save(make(run / "checkpoints"), 1)
    copied(run, there)
    monkeypatch.setattr("burnish.checkpoint.remote.shutil.disk_usage", lambda path: SimpleNamespace(free=5))
    with pytest.raises(UserError, match=r"has room for 0\.00 GB; free some"):
        Remote(there).fetch(1, run)
    with pytest.raises(Damaged, match="is missing"):
        Remote(there).fetch(7, run)
