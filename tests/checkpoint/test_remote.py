"""Copies of checkpoints at an address: complete or not there, verified, and fetched only as far as they say."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support.checkpoints import TENSORS, forge, kept, run_of
from tests.support.tiny_run import TinyRun


def told(run: TinyRun) -> list[dict[str, float]]:
    return [{name: value for name, value in line.items() if "checkpoint_copy" not in name} for line in run.metrics]


@pytest.fixture(scope="module")
def copied(files: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyRun, Path]:
    there = tmp_path_factory.mktemp("there") / "run"
    run = run_of(files, "whole", f"checkpoint.copy_to=file://{there}")
    run.train()
    assert kept(there) == [1, 2, 3]
    return run, there


@pytest.fixture
def there(copied: tuple[TinyRun, Path], tmp_path: Path) -> Path:
    """The copies, to be damaged."""
    return Path(shutil.copytree(copied[1], tmp_path / "20260131"))  # a name like that of a checkpoint


def test_a_run_goes_on_from_its_copies_on_another_machine_and_from_the_newer_of_both(copied, there, files):
    other = run_of(files, "other", f"resume=file://{there}", "steps=4")
    other.train()
    assert told(other)[:4] == told(copied[0])
    assert kept(other.output) == [3, 4]
    for path in (other.output / "checkpoints").iterdir():
        shutil.rmtree(path)
    shutil.copytree(there / "checkpoints" / "00000002", other.output / "checkpoints" / "00000002")
    before = other.metrics
    other.train()  # 3 is there, and 2 is here
    assert other.metrics == before
    assert kept(other.output) == [2, 3, 4]
    other.options.remove("steps=4")
    other.train("steps=5")  # 4 is only here
    assert kept(other.output) == [2, 3, 4, 5]
    one = run_of(files, "one", f"resume=file://{there}/checkpoints/00000002")
    one.train()
    assert told(one) == told(copied[0])


def damage(newest: Path, how: str, aside: Path) -> None:
    file = newest / TENSORS
    raw = file.read_bytes()
    if how == "unfinished":
        (newest / "manifest.json").unlink()
    elif how == "manifest":
        (newest / "manifest.json").write_text("{")
    elif how == "renamed":
        shutil.copytree(newest.with_name("00000002"), newest, dirs_exist_ok=True)
    elif how == "escaping":  # its own hash is right
        shutil.copy(newest / "state.json", newest.parents[1] / "evil.safetensors")
        forge(newest, files={"../../evil.safetensors": {}, TENSORS: {}})
    elif how in ("missing", "pipe", "link"):
        file.rename(aside)
        if how == "link":
            file.symlink_to(aside)
        elif how == "pipe":
            os.mkfifo(file)
    else:
        file.write_bytes({"shorter": raw[:-1], "longer": raw + b"x", "other": raw[:-1] + b"x"}[how])


DAMAGES = ["unfinished", "manifest", "renamed", "escaping", "missing", "pipe", "link", "shorter", "longer", "other"]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_copy_is_skipped_for_the_one_before(how, copied, there, tmp_path, files, caplog):
    damage(there / "checkpoints" / "00000003", how, tmp_path / "aside")
    other = run_of(files, f"damaged-{how}", f"resume=file://{there}")
    other.train()
    assert ("checkpoint skipped" in caplog.text) == (how != "unfinished")
    assert told(other) == told(copied[0])
    assert kept(other.output) == [2, 3]


def test_an_unfinished_copy_is_completed_unless_what_is_copied_is_damaged(there, files, tmp_path, caplog):
    manifests = {file: file.read_bytes() for file in there.glob("checkpoints/*/manifest.json")}
    (there / "checkpoints" / "00000002" / "manifest.json").unlink()
    (there / "checkpoints" / "00000003" / "manifest.json").write_text("{")
    run = run_of(files, "completed", f"checkpoint.copy_to=file://{there}")
    run.train()
    assert {file: file.read_bytes() for file in there.glob("checkpoints/*/manifest.json")} == manifests
    damage(run.output / "checkpoints" / "00000001", "other", tmp_path)
    shutil.rmtree(there / "checkpoints" / "00000001")
    run.train()
    assert not (there / "checkpoints" / "00000001" / "manifest.json").exists()
    assert f"00000001/{TENSORS} is damaged" in caplog.text


@pytest.mark.parametrize("write", ["put_file", "pipe_file"])  # of files, of manifests
def test_a_copy_that_is_not_kept_as_it_was_written_is_none(write, tmp_path, files, monkeypatch, caplog):
    def spoil(_, one, other):
        Path(other if write == "put_file" else one).write_bytes(b"x")

    monkeypatch.setattr(f"fsspec.implementations.local.LocalFileSystem.{write}", spoil)
    run_of(files, "lost", f"checkpoint.copy_to=file://{tmp_path}", "checkpoint.wait=1", "steps=1").train()
    assert "was not kept as it was written" in caplog.text


@pytest.mark.parametrize("target", ["config.yaml", "checkpoints/00000001/state.json"])
def test_a_link_on_a_shared_disk_is_not_written_through(target, tmp_path, files, caplog):
    place, theirs = tmp_path / "there" / target, tmp_path / "theirs"
    theirs.write_text("precious")
    place.parent.mkdir(parents=True)
    place.symlink_to(theirs)
    run_of(files, "linked", f"checkpoint.copy_to=file://{tmp_path / 'there'}", "checkpoint.wait=1").train()
    assert str(place) in caplog.text
    assert theirs.read_text() == "precious"


def test_an_address_without_a_checkpoint_starts_only_the_run_whose_copies_go_there(tmp_path, files):
    nothing = f"file://{tmp_path / 'nothing'}"
    refused = run_of(files, "nothing", f"resume={nothing}")
    assert "which has no complete checkpoint" in refused.train(status=2).message
    assert not refused.output.exists()
    run_of(files, "begun", f"resume={nothing}", f"checkpoint.copy_to={nothing}").train()
