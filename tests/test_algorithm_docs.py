"""Every algorithm that draws is documented, runs on the quickstart by its name, and has the published settings."""

import dataclasses
import re
from pathlib import Path

import pytest

from burnish.config import load
from burnish.config.load import find_recipe, recipe_names
from burnish.config.yaml_text import parse
from burnish.registry import lookup, names

DOCS = Path(__file__).parents[1] / "docs"
PAGES = DOCS / "algorithms"
ALGORITHMS = names("flow algorithm")
EVERYWHERE = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))


def new_options(cls: type) -> list[str]:
    """Options that a class has and none of its bases: those that it only gives another default are theirs."""
    bases = [base for base in (*cls.__mro__[1:], *getattr(cls, "parts", {}).values()) if dataclasses.is_dataclass(base)]
    inherited = {field.name for base in bases for field in dataclasses.fields(base)}
    return [field.name for field in dataclasses.fields(cls) if field.name not in inherited]


def shared_bases() -> list[type]:
    """Classes that several algorithms inherit options from."""
    found = {base for name in ALGORITHMS for base in lookup("flow algorithm", name).__mro__[1:]}
    return sorted((base for base in found if dataclasses.is_dataclass(base)), key=lambda base: base.__name__)


def is_named(option: str, text: str) -> bool:
    return re.search(rf"`[^`]*\b{option}\b[^`]*`", text) is not None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_its_page_names_its_own_options(algorithm):
    text = (PAGES / f"{algorithm}.md").read_text()
    assert text.startswith("# ")
    assert f"algorithm={algorithm}" in text
    assert [option for option in new_options(lookup("flow algorithm", algorithm)) if not is_named(option, text)] == []


@pytest.mark.parametrize("base", shared_bases(), ids=lambda base: base.__name__)
def test_options_that_algorithms_share_are_named_somewhere(base):
    assert [option for option in new_options(base) if not is_named(option, EVERYWHERE)] == []


@pytest.mark.parametrize("kind", ["advantage", "surrogate"])
def test_the_page_of_parts_has_a_line_for_each_with_its_options(kind):
    text = (PAGES / "parts.md").read_text().split(f"\n## {kind.capitalize()}s\n")[1].split("\n## ")[0]
    for name in names(kind):
        (line,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        own = vars(lookup(kind, name)).get("__annotations__", {}).keys() - {"name"}
        assert [option for option in own if not is_named(option, line)] == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_overview_leads_to_it(algorithm):
    assert f"[`{algorithm}`]({algorithm}.md)" in (PAGES / "README.md").read_text()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_quickstart_has_settings_for_it(algorithm):
    recipe = parse(find_recipe("quickstart").read_text())
    assert algorithm in (recipe["algorithm"]["name"], *recipe["variants"])
    assert load("quickstart", [f"algorithm={algorithm}"]).algorithm.name == algorithm


@pytest.mark.parametrize("folder", ["sd35", "flux"])
def test_published_settings_are_there_for_every_algorithm_and_nothing_else(folder):
    found = {name.removeprefix(f"{folder}/") for name in recipe_names() if name.startswith(f"{folder}/")}
    assert found == set(ALGORITHMS)


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_what_a_page_links_to_is_there(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
