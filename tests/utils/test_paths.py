"""What a command finds in the folder that it is to write stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.cli import main
from burnish.config import load
from burnish.config.disk import check_disk
from burnish.config.run_folder import RunFolder
from burnish.utils.errors import UserError


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def project(folder: Path) -> Path:
    """A user's own folder, with names that a run uses as well."""
    (folder / "validation").mkdir(parents=True)
    (folder / "validation" / "thesis.txt").write_text("years of work")
    (folder / "config.yaml").write_text("mine: true\n")
    return folder


def model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model_index.json").write_text("{}")
    return folder


def pictures(folder: Path) -> Path:
    folder.mkdir()
    (folder / "cat.png").write_bytes(b"")
    return folder


def commented(folder: Path) -> Path:
    """A user's own folder, with a description of their code."""
    (project(folder) / "code.json").write_text("{}")
    (folder / "config.yaml").unlink()
    return folder


def inside(*names: str) -> Callable[[Path], Path]:
    """A folder in that of another run, not there yet."""

    def made(folder: Path) -> Path:
        RunFolder(folder).begin(load("quickstart"), resumed_at=None)
        return folder.joinpath(*names)

    return made


def linked(folder: Path) -> Path:
    """Leads to a checkpoint of another run."""
    there = inside("checkpoints")(folder)
    there.mkdir()
    (link := folder.parent / "link").symlink_to(there)
    return link / "x"


@pytest.mark.parametrize(
    "made",
    [
        project, model, pictures, commented, linked, inside("checkpoints"), inside("checkpoints", "x"),
        inside("samples"), inside("validation", "x"), inside("..", "other", "..", "there", "checkpoints", "x"),
    ],
)  # fmt: skip
def test_a_run_does_not_begin_among_files_of_others(tmp_path, made):
    folder = made(tmp_path / "there")
    before = content(tmp_path)
    config = load("quickstart", [f"output_dir={folder}"])
    for refused in (lambda: check_disk(config), RunFolder(folder).claim):
        with pytest.raises(UserError, match=rf"output_dir is {folder}.* give a new folder"):
            refused()
    assert content(tmp_path) == before


def test_a_run_begins_in_a_folder_that_has_only_its_log(tmp_path):
    for name in ("train.log", "burnish-17.out", ".gitkeep"):
        (tmp_path / name).touch()
    config = load("quickstart", [f"output_dir={tmp_path}"])
    for _ in range(2):  # and again: it is the run's from then on
        check_disk(config)
        RunFolder(tmp_path).begin(config, resumed_at=None)
        (tmp_path / "notes.md").touch()


@pytest.mark.parametrize(
    "command",
    [
        ["sample", "quickstart", "the number 472", "--output"],
        ["eval", "quickstart", "--output"],
        ["eval", "quickstart", "--suite", "quickstart", "--output"],
        ["export", "quickstart", "--output"],
        ["tiny", "sana", "--force"],
    ],
    ids=" ".join,
)
def test_no_command_writes_among_files_of_others(tmp_path, capsys, monkeypatch, command):
    for name in ("model_index.json", "samples.jsonl", "records.jsonl"):
        (tmp_path / name).write_text("mine\n")

    def loads(*_: object, **__: object) -> None:
        raise AssertionError("refused before anything is loaded")

    monkeypatch.setattr("burnish.tasks.assemble", loads)
    before = content(tmp_path)
    assert main([*command, str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert str(tmp_path) in said
    assert "give a new folder" in said
    assert content(tmp_path) == before


def test_pairs_go_into_a_folder_of_their_own(tmp_path, capsys):
    run, target = tmp_path / "run", tmp_path / "target"
    (run / "samples").mkdir(parents=True)
    target.mkdir()
    (target / "pairs.csv").write_text("mine\n")
    assert main(["pairs", str(run), "--output", str(target)]) == 2
    assert "give a new folder" in capsys.readouterr().err
    assert content(target) == {"pairs.csv": b"mine\n"}
