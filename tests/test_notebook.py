"""The notebook is one that Jupyter opens, and its cells run from top to bottom."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import burnish

ROOT = Path(__file__).parents[1]
FILE = ROOT / "examples" / "quickstart.ipynb"
NOTEBOOK: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
TEXTS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "markdown"]
MAGIC = re.compile(r"^(\s*)%.*$", re.MULTILINE)


def program(**given: int) -> str:
    """The code cells as one program; what only a notebook knows is left out."""
    text = "\n\n".join(MAGIC.sub(r"\1pass", cell) for cell in CELLS)
    for name, value in given.items():
        text, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1, name
    return f"display = print\n{text}"


def run(folder: Path, **given: int) -> str:
    env = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program(**given)], cwd=folder, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_it_has_the_form_that_jupyter_reads():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) >= (4, 5)
    assert NOTEBOOK["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in NOTEBOOK["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), "save it without outputs"
    ast.parse(program())


def test_what_it_links_to_exists():
    links = [link for text in TEXTS for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert links
    assert not [link for link in links if not (FILE.parent / link).exists()]


def test_its_runs_are_ones_that_can_begin(tmp_path, monkeypatch):
    """Their configurations, without the training, which ``make thorough`` does."""
    monkeypatch.chdir(tmp_path)
    begun = []

    def train(config):
        config.check()
        begun.append(config)
        return SimpleNamespace(metrics=[{"critic/dark/mean": 0.5}])

    monkeypatch.setattr(burnish, "train", train, raising=False)
    found = {"burnish": burnish}
    for cell in CELLS:
        if "burnish.load(" in cell:
            exec(cell, found)
    assert [one.steps for one in begun] == [found["STEPS"], 1]
    assert begun[1].rewards["dark"].path == "object:dark"


@pytest.mark.thorough
def test_its_cells_run(tmp_path):
    said = run(tmp_path, STEPS=1, PROMPTS=2)
    assert re.search(r"held-out numbers: [\d.]+ before, [\d.]+ after 1 updates", said)
    assert "weights" in said.splitlines()[-1]
    assert (tmp_path / "my_model" / "model_index.json").exists()
    assert (tmp_path / "runs" / "notebook" / "report.html").exists()


@pytest.mark.thorough
def test_it_learns_as_it_stands(tmp_path):
    before, after = re.search(r"held-out numbers: ([\d.]+) before, ([\d.]+) after", run(tmp_path)).groups()
    assert float(after) > float(before) + 0.03
