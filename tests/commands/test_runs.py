"""``burnish runs`` and ``burnish compare``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli import main
from burnish.config import dump, load
from burnish.config.run_folder import check_place
from burnish.utils.errors import UserError
from tests.support.reports import Story, run_folder


def made(root: Path, seed: int, **story: object) -> Path:
    overrides = (f"seed={seed}", "optimizer.schedule=constant")
    return run_folder(root / f"[b]seed{seed}", Story(overrides=overrides, pictures=False, **story)).path  # type: ignore[arg-type]


def test_runs_are_listed_with_what_they_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made(tmp_path, 0)
    made(tmp_path, 1, updates=10)
    assert main(["runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines[1:]}
    assert rows["[b]seed0"][1:6] == ["finished", "30/30", "0.965", "30", "0.965"]
    assert rows["[b]seed1"][1:3] == ["stopped", "10/30"]


def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = [str(made(tmp_path, seed)) for seed in (0, 1)]
    assert main(["compare", *runs]) == 0
    text = capsys.readouterr().out
    assert text.count("0.772 → 0.965") == 2
    assert "seed" in text.partition("Options that differ:")[2]


def test_options_of_one_run_alone_are_listed_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = [
        str(run_folder(tmp_path / name, Story(overrides=(f"algorithm={name}",), pictures=False)).path)
        for name in ("diffusion_nft", "flow_grpo")
    ]
    assert main(["compare", *runs]) == 0
    shared, *alone = capsys.readouterr().out.replace("\n", "").partition("Options that differ:")[2].split("Only in ")
    assert "algorithm.name" in shared
    assert "–" not in shared
    assert [one.split(":")[0].split("/")[-1] for one in alone] == ["diffusion_nft", "flow_grpo"]
    assert "algorithm.noise_level=" in " ".join(alone[1].split())


@pytest.mark.parametrize(
    ("argv", "words"),
    [(["runs", "no_such"], "no folder"), (["compare", "no_such", "other"], "not the folder of a run")],
)
def test_what_is_no_run_is_refused(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]):
    assert main(argv) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_an_empty_folder_and_a_run_with_itself_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["runs", str(tmp_path)]) == 2
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 2


def test_the_package_is_a_program():
    done = subprocess.run([sys.executable, "-m", "burnish", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("burnish ")


def test_the_configuration_of_a_moved_run_goes_on_where_it_is_told_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load("quickstart", ["output_dir=runs/a"])
    for place in ("runs/a", "runs/b", "mine"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.yaml").write_text(dump(config))
        if place != "mine":  # a recipe that happens to have that name
            (tmp_path / place / "metrics.jsonl").touch()
    for recipe, given in (("runs/a", []), ("runs/b", ["output_dir=runs/c"]), ("mine", [])):
        check_place(load(f"{recipe}/config.yaml", given))
    with pytest.raises(UserError, match=r"the run in runs/b, but its output_dir is runs/a.*give output_dir=runs/b"):
        check_place(load("runs/b/config.yaml", ["steps=9"]))
    monkeypatch.chdir(tmp_path / "mine")
    with pytest.raises(UserError, match=r"another folder from here; give output_dir=\.\./runs/a"):
        check_place(load("../runs/a/config.yaml"))
