import dataclasses

import pytest

from burnish.config import load
from burnish.config.complaints import section_class
from burnish.config.flow import FlowConfig
from burnish.config.load import find_recipe, recipe_names
from burnish.config.text import explanation, fields
from burnish.config.yaml_text import parse
from burnish.registry import lookup, names


def every_class():
    found = [FlowConfig, *(lookup(kind, name) for kind in ("flow algorithm", "flow reward") for name in names(kind))]
    for cls in found:
        for field in fields(cls).values():
            inner = section_class(field.annotation)
            if inner is not None and inner not in found:
                found.append(inner)
    return found


@pytest.mark.parametrize("cls", every_class(), ids=lambda cls: cls.__name__)
def test_every_option_is_explained(cls):
    for name in fields(cls):
        assert explanation(cls, name), f"{cls.__name__}.{name}"
    assert dataclasses.is_dataclass(cls)
    assert cls.__doc__


def shipped():
    for recipe in recipe_names():
        yield recipe, None
        for algorithm in parse(find_recipe(recipe).read_text()).get("variants") or {}:
            yield recipe, algorithm


@pytest.mark.parametrize(("recipe", "algorithm"), shipped())
def test_every_shipped_recipe_loads_with_every_algorithm_that_it_has_settings_for(recipe, algorithm):
    config = load(recipe, [f"algorithm={algorithm}"] if algorithm else [])
    assert algorithm in (None, config.algorithm.name)


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_shipped_recipe_says_what_it_is_and_writes_into_its_own_folder(recipe):
    assert find_recipe(recipe).read_text().startswith("# ")
    assert load(recipe).output_dir == f"runs/{recipe}"


@pytest.mark.parametrize(("recipe", "algorithm"), shipped())
def test_no_two_documented_commands_share_a_folder(recipe, algorithm):
    if algorithm and algorithm != load(recipe).algorithm.name:
        assert load(recipe, [f"algorithm={algorithm}"]).output_dir != load(recipe).output_dir
