"""What a command finds stays as it is: files of others, full and closed disks, links, paths that are none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.disks import fill, make_read_only, small_disk
from tests.support.optional import seldom
from tests.support.reports import Story, run_folder
from tests.support.tiny_run import burnish

ROOT = Path(__file__).parents[2]


def content(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def refuses(folder):
    before = content(folder.parents[1])
    return f"output_dir is {folder}" in burnish("train", "quickstart", f"output_dir={folder}", status=2).message and (
        content(folder.parents[1]) == before
    )


FOUND = {
    "a project": {"validation/thesis.txt": "years of work", "config.yaml": "mine: true\n"},
    "a description of code": {"validation/thesis.txt": "years of work", "code.json": "{}"},
    "a model": {"model_index.json": "{}"}, "pictures": {"cat.png": ""},
}  # fmt: skip


@pytest.mark.parametrize("name", ["a project", *seldom("a description of code", "a model", "pictures")])
def test_a_run_does_not_begin_among_files_of_others(tmp_path, name):
    folder = tmp_path / "there"
    for file, text in FOUND[name].items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    assert refuses(folder)


def test_a_run_does_not_begin_within_another(tmp_path):
    folder = run_folder(tmp_path / "there", Story(updates=0, guided=False, images=False)).path
    (folder / "checkpoints").mkdir()
    (tmp_path / "link").symlink_to(folder / "checkpoints")
    inside = ("checkpoints", "checkpoints/x", "samples", "validation/x", "../other/../there/checkpoints/x")
    for place in (*(folder / name for name in inside), tmp_path / "link" / "x"):
        assert refuses(place), place


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


@pytest.mark.parametrize(("way", "said"), [
    (fill, "no space is left for"), (make_read_only, "Read-only file system"),
], ids=["full", "read-only"])  # fmt: skip
def test_what_was_there_before_a_disk_was_full_is_there_afterwards(way, said, disk):
    folder = run_folder(disk / "run", Story(updates=0, guided=False, images=False))
    folder.report.write_text("old")
    way(disk)
    message = burnish("report", folder.path, status=2).message
    assert said in message
    assert str(folder.report) in message
    assert folder.report.read_text() == "old"


def test_nothing_is_written_through_a_link_that_somebody_left_in_a_folder(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = run_folder(tmp_path / "run", Story(updates=0, guided=False, images=False))
    inside = (".claim", "samples", "tensorboard/samples", "validation/000003/grid.png")
    for name in (".report.html.new", "report.html", *inside):
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).symlink_to(precious)
    burnish("report", folder.path)
    for name in inside:
        assert f"{folder.path / name} is a link" in burnish("train", folder.config, status=2).message
        (folder.path / name).unlink()
    assert precious.read_text() == "mine"
    assert not folder.report.is_symlink()


@pytest.mark.parametrize(("target", "code", "says"), [("/dev/full", 2, b"No space left"), (None, 1, b"")])
def test_output_that_nobody_takes_ends_without_a_traceback(target, code, says):
    reading, pipe = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "burnish", "recipes"]
    with open(target, "wb") if target else os.fdopen(pipe, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, cwd=ROOT, timeout=120)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    assert [says in line for line in done.stderr.splitlines()[1:]] == ([True] if says else [])
