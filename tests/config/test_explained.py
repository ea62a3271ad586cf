import dataclasses

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


def test_every_option_is_explained():
    classes = every_class()
    assert not [f"{cls.__name__}.{name}" for cls in classes for name in fields(cls) if not explanation(cls, name)]
    assert not [cls for cls in classes if not (dataclasses.is_dataclass(cls) and cls.__doc__)]


def shipped():
    for recipe in recipe_names():
        yield recipe, None
        for algorithm in parse(find_recipe(recipe).read_text()).get("variants") or {}:
            yield recipe, algorithm


def test_every_shipped_recipe_loads_with_every_algorithm_that_it_has_settings_for_into_its_own_folder():
    configs = {}
    for recipe, algorithm in shipped():
        configs[recipe, algorithm] = load(recipe, [f"algorithm={algorithm}"] if algorithm else [])
        assert algorithm in (None, configs[recipe, algorithm].algorithm.name)
    for (recipe, algorithm), config in configs.items():
        own = configs[recipe, None]
        assert own.output_dir == f"runs/{recipe}"
        if algorithm not in (None, own.algorithm.name):
            assert config.output_dir != own.output_dir, (recipe, algorithm)


def test_every_shipped_recipe_says_what_it_is():
    assert not [recipe for recipe in recipe_names() if not find_recipe(recipe).read_text().startswith("# ")]
