"""Recipes are what their sources say: the table of sources against the resolved recipes."""

from __future__ import annotations

from typing import Any

from burnish.config import load
from burnish.config.load import find_recipe, recipe_names
from burnish.config.yaml_text import parse
from burnish.utils.paths import RECIPES
from tests.support import language_recipe_sources, pipeline_recipe_sources, recipe_sources
from tests.support.recipe_sources import OPERATIONAL

SOURCES = recipe_sources.SOURCES | pipeline_recipe_sources.SOURCES | language_recipe_sources.SOURCES
PUBLISHED = [name for name in recipe_names() if "/" in name]


def value_of(config: Any, option: str) -> Any:
    """A dotted option of a resolved recipe; of a section that is not there, None."""
    for name in option.split("."):
        if config is None:
            return None
        if isinstance(config, dict):
            config = config[name]
        else:
            config = config[int(name)] if name.isdigit() else getattr(config, name)
    return config


def options_in(tree: Any, prefix: str = "") -> list[str]:
    """Dotted names of what a recipe's file says."""
    if isinstance(tree, list) and tree and isinstance(tree[0], dict):
        tree = {str(i): one for i, one in enumerate(tree)}
    if not isinstance(tree, dict) or prefix.rstrip(".") in OPERATIONAL:
        return [prefix.rstrip(".")]
    return [name for key, value in tree.items() for name in options_in(value, f"{prefix}{key}.")]


def words_of(recipe: str) -> str:
    """The comments of a recipe and of the base that it extends, on one line."""
    texts = [find_recipe(recipe).read_text(), (RECIPES / recipe.split("/")[0] / "base.yaml").read_text()]
    comments = (line.partition("#")[2] for text in texts for line in text.splitlines())
    return " ".join(" ".join(comments).split())


def test_every_published_recipe_has_a_source():
    assert set(SOURCES) == set(PUBLISHED)
    assert all(source.where for source in SOURCES.values())


def test_a_recipe_has_the_values_of_its_source_and_says_why_it_deviates():
    for recipe in PUBLISHED:
        source, config = SOURCES[recipe], load(recipe)
        found = {option: value_of(config, option) for option in source.values}
        wrong = {option: (found[option], value) for option, value in source.values.items() if found[option] != value}
        assert not wrong, f"{recipe} differs from {source.where}: {wrong}"
        for option, (ours, theirs, words) in source.differs.items():
            assert value_of(config, option) == ours != theirs, (recipe, option)
            assert words in words_of(recipe), f"{recipe} does not say why {option} is {ours} and not {theirs}"


def test_whatever_a_recipe_sets_is_in_the_table():
    for recipe in PUBLISHED:
        source, base = SOURCES[recipe], find_recipe(recipe.split("/")[0] + "/base")
        told = {*source.values, *source.differs, *source.ours, "steps"}
        trees = [parse(file.read_text()) for file in (find_recipe(recipe), base)]
        stated = {option for tree in trees for option in options_in(tree) if not option.startswith(OPERATIONAL)}
        unknown = {one for one in stated if not any(one == name or one.startswith(f"{name}.") for name in told)}
        assert not unknown, f"{recipe}: where are these from? {sorted(unknown)}"


def test_rewards_that_the_user_has_to_write_are_said_to_be():
    lines = [line for recipe in PUBLISHED for line in find_recipe(recipe).read_text().splitlines()]
    for line in lines:
        if "rewards.py:" in line:
            name = line.partition("rewards.py:")[2].partition('"')[0]
            assert f"# yours: def {name}(images, prompts) in ./rewards.py" in line
