"""What is told where a disk is full, read-only or gone: one message that names the path and the way out."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.checkpoint.store import CheckpointStore
from burnish.cli import main
from burnish.config import load
from burnish.config.run_folder import RunFolder
from burnish.hooks.metrics import MetricsLog, ScalarWriter
from burnish.report import write_report
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from tests.support.checkpoints import NEWEST, save
from tests.support.disks import fill, make_read_only, small_disk
from tests.support.reports import Story, run_folder

ROOT = Path(__file__).parents[2]
FULL, CLOSED = r"no space is left (for|in) {}", r"{}.* can't be written: Read-only file system"


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as folder:
        yield folder


def begin(folder: RunFolder) -> None:
    folder.begin(load("quickstart"), resumed_at=None)


def log(folder: RunFolder) -> None:
    hook = MetricsLog(folder, resumed_at=None)
    hook.start(0)
    try:
        for update in range(2000):
            hook(update, {"actor/loss": 0.5})
    finally:
        hook.close()


WRITERS: dict[str, Callable[[RunFolder], object]] = {
    "beginning a run": begin,
    "metrics": log,
    "tensorboard": lambda folder: ScalarWriter(folder.tensorboard, None).add(1, {"a": 1.0}),
    "a checkpoint": lambda folder: save(CheckpointStore(folder.checkpoints, NEWEST), 1),
    "the claim": lambda folder: folder.claim(),
    "a file": lambda folder: write_atomically(folder.report, b"0" * 2_000_000),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("way", ["full", "read-only"])
def test_a_disk_that_refuses_is_named(disk, writer, way):
    folder = RunFolder(disk)
    (fill if way == "full" else make_read_only)(disk)
    with pytest.raises(UserError, match=(FULL if way == "full" else CLOSED).format(disk)) as refused:
        WRITERS[writer](folder)
    ways_out = ("free some space", "another folder", "run the same command to resume")
    assert any(way in str(refused.value) for way in ways_out)
    folder.close()


def test_what_was_there_before_is_there_afterwards(disk):
    file = disk / "file"
    write_atomically(file, b"old")
    fill(disk)
    with pytest.raises(UserError):
        write_atomically(file, b"new" * 10_000)
    assert file.read_bytes() == b"old"
    assert sorted(path.name for path in disk.iterdir()) == [".filler", "file"]


def test_nothing_is_written_through_a_link_that_somebody_left_in_a_folder(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = run_folder(tmp_path / "run", Story(updates=0, guided=False, pictures=False))
    for name in (".report.html.new", "report.html", ".claim"):
        (folder.path / name).symlink_to(precious)
    write_report(folder)
    with pytest.raises(UserError, match="can't be written"):
        folder.claim()
    assert precious.read_text() == "mine"
    assert not folder.report.is_symlink()


def test_the_command_line_says_it_once(disk, capsys):
    folder = run_folder(disk / "run", Story(updates=0, guided=False, pictures=False))
    fill(disk)
    assert main(["report", str(folder.path)]) == 2
    doing, said = capsys.readouterr().err.splitlines()
    assert doing == f"Reading {folder.path}"
    assert said.startswith(f"burnish: error: no space is left for {folder.report}; free some space")


@pytest.mark.parametrize(("target", "code", "says"), [("/dev/full", 2, b"No space left"), (None, 1, b"")])
def test_output_that_nobody_takes_ends_without_a_traceback(target, code, says):
    reading, pipe = os.pipe()
    os.close(reading)
    with open(target, "wb") if target else os.fdopen(pipe, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "burnish.cli", "recipes"], stdout=out, stderr=subprocess.PIPE, cwd=ROOT, timeout=120
        )
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    doing, *said = done.stderr.splitlines()
    assert doing == b"Reading the recipes"
    assert [says in line for line in said] == ([True] if says else [])


def test_only_what_the_system_said_is_a_refusal(tmp_path):
    for error in (OSError("no picture"), ValueError("else")):
        with pytest.raises(type(error), match=str(error)) as passed, writing(tmp_path):
            raise error
        assert passed.value is error
    with pytest.raises(UserError, match="check its disk"), writing(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_safetensors_words_it_otherwise(disk):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    with pytest.raises(UserError, match=f"no space is left for {disk}"), writing(disk):
        save_file({"a": torch.zeros(1_000_000)}, disk / "a.safetensors")


def test_where_there_are_no_locks_of_unix_training_is_refused_and_reading_is_not(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run", Story(updates=1, guided=False, pictures=False))
    monkeypatch.setitem(sys.modules, "fcntl", None)
    for name in [name for name in sys.modules if name.startswith("burnish.config.run_folder")]:
        monkeypatch.delitem(sys.modules, name)
    from burnish.config.run_folder import RunFolder as Fresh

    assert len(Fresh(folder.path).read_metrics()) == 2
    with pytest.raises(UserError, match="needs Linux or macOS"):
        Fresh(folder.path).claim()
