"""The README is short, and what it says of recipes and memory is so."""

from __future__ import annotations

import re

import pytest

from burnish.config import load
from burnish.config.load import hardware_of, recipe_names
from tests.support.shown import ROOT
from tools.hardware_table import needs

README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| `(\w+)/\*` \| (\d+) \| (.+?) \| (.+?) \|$", README, re.M)


def test_it_is_short():
    assert len(README.splitlines()) <= 110
    assert len(README.split()) <= 900


@pytest.mark.parametrize(("model", "folder", "algorithms", "gpus", "needed"), ROWS, ids=[row[1] for row in ROWS])
def test_the_table_of_support_is_that_of_the_recipes(model, folder, algorithms, gpus, needed):
    recipes = [name for name in recipe_names() if name.startswith(f"{folder}/")]
    chosen = {load(name).algorithm.name for name in recipes}
    assert len(chosen) == int(algorithms), chosen
    stated = [hardware_of(name)[0] for name in recipes]
    assert {one.memory_gb for one in stated} == {80}
    assert gpus == " or ".join(map(str, sorted({one.gpus for one in stated})))
    figures = [needs()[name] for name in recipes if name in needs()]
    assert needed == f"{round(min(figures))}–{round(max(figures))}"


def test_its_figures_of_the_quickstart_are_those_of_its_page():
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    ends = []
    for row in ("before", "after 60 updates of DiffusionNFT"):
        seeds = re.search(rf"^\| {row} \| \**([\d./ ]+)", page, re.M)[1].split("/")
        shares = [round(100 * float(share)) for share in seeds]
        assert len(shares) == 3
        ends.append(f"{min(shares)}–{max(shares)} %")
    assert f"rise from {ends[0]} to {ends[1]} (three seeds)" in " ".join(README.split())


def test_its_figures_of_the_real_model_are_those_of_its_page():
    page = (ROOT / "docs" / "real_model.md").read_text(encoding="utf-8")
    seeds = re.findall(r"^\| \d.*?\| (\d+ %) \| (\d+ %) \|", page, re.M)
    before, after = zip(*seeds, strict=True)
    assert len(seeds) == 3
    assert f"| before | {' | '.join(before)} |" in README
    assert f"| after 30 updates | {' | '.join(after)} |" in README


def test_the_table_is_there():
    assert len(ROWS) == README.count("/*` |")
    assert len(ROWS) > 8
