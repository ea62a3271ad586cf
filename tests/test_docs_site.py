"""The documents as a site: every page is made, nothing on it is broken, and nothing is fetched from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from burnish import __version__
from burnish.config.flow import FlowConfig
from burnish.config.language import LanguageConfig
from burnish.config.load import hardware_of, recipe_names
from tests.support.options import options_of
from tools import recipe_curves

ROOT = Path(__file__).parents[1]
pytest.importorskip("mkdocs", reason="needs mkdocs: pip install 'burnish[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / __version__
    earlier = folder.parent / "0.0.1"
    earlier.mkdir()
    (earlier / "index.html").write_text("an earlier one")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_it_is_built_without_a_warning_and_fetches_nothing(site):
    pages = [page.relative_to(site).as_posix() for page in site.rglob("*.html")]
    assert {"index.html", "changelog.html", "papers.html", "recipes.html", "reference/options.html"} <= set(pages)
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(https?://[^\"' >]+)", page.read_text()
        )
        assert not fetched, f"{page.name} fetches {fetched[0]}"


@pytest.mark.slow
def test_versions_lie_beside_each_other_and_the_newest_is_opened(site):
    listed = json.loads((site.parent / "versions.json").read_text())
    assert [one["version"] for one in listed] == [__version__, "0.0.1"]
    assert f"url={__version__}/index.html" in (site.parent / "index.html").read_text()


@pytest.mark.slow
def test_every_option_recipe_and_function_has_its_place(site):
    options = (site / "reference/options.html").read_text()
    for path in options_of(FlowConfig) | options_of(LanguageConfig):
        assert f"<code>{path}</code>" in options, path
    recipes = (site / "recipes.html").read_text()
    for name in recipe_names():
        folder, _, last = name.rpartition("/")
        part = recipes.partition(f"<code>{folder}/*</code>")[2].partition("</table>")[0] if folder else recipes
        assert f"<code>{last}</code>" in part, name
    assert "burnish.losses.policy" in (site / "reference/mathematics.html").read_text()


def test_curves_are_of_recipes_whose_model_ships():
    """A real model's recipe has none, for nobody ran it to its end."""
    names = {picture.stem for picture in (ROOT / "docs" / "images" / "recipes").glob("*.svg")}
    assert {"quickstart", "vlm_quickstart"} <= names <= {name for name in recipe_names() if not hardware_of(name)}


def test_a_curve_is_drawn_of_what_runs_measured(tmp_path, monkeypatch):
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        rows = [{"training/global_step": 0, "val-core/a/reward/mean@2": 0.5, "val-core/b/reward/mean@2": 0.7}]
        rows += [{"training/global_step": update, "critic/rewards/mean": 0.1 * update} for update in (1, 2)]
        rows[-1]["val-core/a/reward/mean@2"] = 0.9
        (tmp_path / str(seed) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out, training = recipe_curves.measured(tmp_path / "0")
    assert held_out == [(0, pytest.approx(0.6)), (2, 0.9)]
    assert training == [(1, 0.1), (2, 0.2)]
    monkeypatch.setattr(recipe_curves, "FOLDER", tmp_path / "pictures")
    drawn = recipe_curves.draw("some/recipe", [tmp_path / "0", tmp_path / "1"])
    assert drawn.name == "some_recipe.svg"
    assert drawn.read_bytes() == recipe_curves.draw("some/recipe", [tmp_path / "0", tmp_path / "1"]).read_bytes()
