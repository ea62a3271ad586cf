"""From a recipe and the command line to a checked configuration.

Defaults, then what the recipe ``extends``, then the recipe, each with its ``variants`` for the chosen algorithm, then
the command line; last, defaults that depend on what these say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pydantic

from burnish.config.complaints import Context, complain, unknown, wrong_choice
from burnish.config.derived import with_derived
from burnish.config.overrides import merge, nest, read_overrides
from burnish.config.run import RunConfig
from burnish.config.tasks import TASKS, config_class, owner, task_of
from burnish.config.text import fields
from burnish.config.yaml_text import parse, show
from burnish.registry import known, lookup, names
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.paths import RECIPES
from burnish.utils.reading import checked_path, read_text

BASE = "base"  # name of a file in a folder of recipes that the others extend
Layers = list[tuple[str, dict[str, Any]]]  # recipes by their files, the uppermost first
LABEL = re.compile(r"[A-Za-z_][\w-]*")  # what the command line can reach


def load(recipe: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe, lay the command line over it and check every option.

    Args:
        recipe: a recipe that ships with Burnish, by name, or the path of a .yaml file.
        overrides: ``a.b.c=value``; the value is YAML, and null removes a reward or a section.

    Raises:
        ConfigError: with every complaint, one a line.
    """
    layers = _layers(find_recipe(recipe))
    given = read_overrides(overrides)
    tree = nest(given)
    trees = [tree, *(layer for _, layer in layers)]
    task = config_class(task_of(trees))
    chosen = next((name for one in trees if (name := _algorithm(one)) is not None), None)
    layers = _for_algorithm(layers, chosen, names(task.algorithm_kind))
    if chosen is not None and known(task.algorithm_kind, chosen):
        layers = _for_parts(tree, layers, lookup(task.algorithm_kind, chosen).parts)
    below: dict[str, Any] = {}
    for _, layer in reversed(layers):
        below = merge(below, layer)
    _removals(given, below)
    tree = with_derived(merge(below, tree), task)
    sections, complaints = _sections(tree, Context(layers, given, tree, task))
    if complaints:
        raise ConfigError(complaints)
    config = task(**sections)
    config.check(given)
    return config


def recipe_names() -> list[str]:
    """The recipes that ship with Burnish, those in folders as FOLDER/NAME; not what they only extend."""
    return [name for name in _shipped() if Path(name).name != BASE]


def find_recipe(recipe: str) -> Path:
    """The file of a recipe."""
    known = recipe_names()
    if recipe in _shipped():
        return RECIPES / f"{recipe}.yaml"
    path = checked_path(recipe, "recipe")
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return path
    if "=" in recipe:
        raise ConfigError(f"{recipe!r} stands where the recipe belongs; the recipe comes first: {', '.join(known)}")
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(f"recipe {recipe} is not there; give a .yaml file, or one of: {', '.join(known)}")
    raise ConfigError(wrong_choice("recipe", recipe, known) + ", or the path of a .yaml file")


def _shipped() -> list[str]:
    return sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml"))


def _layers(path: Path) -> Layers:
    """A recipe, what it extends, what that extends in turn."""
    layers, seen = [], []
    while path.resolve() not in seen:
        seen.append(path.resolve())
        layers.append((_shown(path), _read(path)))
        extended = layers[-1][1].pop("extends", None)
        if extended is None:
            return layers
        where = f"extends is {show(extended)} (in {_shown(path)})"
        if not isinstance(extended, str):
            raise ConfigError(f"{where}; it must be the name of a recipe, or a .yaml file's path from this one")
        beside = path.parent / extended
        try:
            path = beside if beside.is_file() else find_recipe(extended)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    raise ConfigError(f"{where}, which extends this one in turn; leave one of them out")


def _shown(path: Path) -> str:
    """The name of a recipe's file in messages."""
    return path.relative_to(RECIPES).as_posix() if path.is_relative_to(RECIPES) else path.name


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path)
    except UserError as error:
        raise ConfigError(str(error)) from None
    try:
        content = parse(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; put that right, or give another recipe") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path} is not a recipe: it must hold options, such as 'steps: 30', but holds {show(content):.80}"
        )
    return _named(content)


def _named(tree: dict[str, Any]) -> dict[str, Any]:
    """``algorithm: flow_grpo`` is short for ``algorithm: {name: flow_grpo}``."""
    if isinstance(tree.get("algorithm"), str):
        return tree | {"algorithm": {"name": tree["algorithm"]}}
    return tree


def _algorithm(tree: dict[str, Any]) -> Any:
    """The name of the algorithm in a recipe or on the command line, if there is one."""
    own = tree.get("algorithm")
    return own.get("name") if isinstance(own, dict) else None


def _for_algorithm(layers: Layers, chosen: Any, known: Sequence[str]) -> Layers:
    """Recipes for the algorithm that was chosen: without another one's options, with their own variants."""
    own, fitting = None, []
    for file, recipe in reversed(layers):
        own = _algorithm(recipe) or own
        kept = {name: value for name, value in recipe.items() if name != "variants"}
        if "algorithm" in kept and own != chosen:
            kept["algorithm"] = {"name": chosen}
        fitting.append((file, merge(kept, _variant(recipe.get("variants") or {}, chosen, file, known))))
    return fitting[::-1]


def _for_parts(tree: dict[str, Any], layers: Layers, parts: dict[str, type]) -> Layers:
    """Recipes without the options of an algorithm's own parts where a layer above them chooses other parts."""
    replaced: set[str] = set()
    mentioned: set[str] = set()
    fitting = []
    for file, layer in [("", tree), *layers]:
        own = layer.get("algorithm")
        if isinstance(own, dict):
            kept = {name: value for name, value in own.items() if name not in replaced}
            layer = layer | {"algorithm": kept}
            for kind in parts.keys() & own.keys() - mentioned:
                mentioned.add(kind)
                replaced |= set(fields(parts[kind])) if own[kind] is not None else set()
        fitting.append((file, layer))
    return fitting[1:]


def _variant(variants: Any, chosen: Any, file: str, known: Sequence[str]) -> dict[str, Any]:
    """What a recipe changes for an algorithm."""
    if not isinstance(variants, dict):
        raise ConfigError(f"variants is {show(variants)} (in {file}); it must hold options by name of algorithm")
    for name, changed in variants.items():
        if name not in known:
            raise ConfigError(wrong_choice(f"variants.{name}", name, known, short=True) + f" (in {file})")
        if not isinstance(changed, dict) or "variants" in changed:
            raise ConfigError(f"variants.{name} is {show(changed)} (in {file}); it must hold options")
        inner = changed.get("algorithm")
        if inner is not None and (not isinstance(inner, dict) or inner.get("name", name) != name):
            raise ConfigError(f"variants.{name}.algorithm is {show(inner)} (in {file}); it must hold options of {name}")
    return variants.get(chosen, {}) if isinstance(chosen, str) else {}


def _removals(given: dict[str, Any], base: dict[str, Any]) -> None:
    rewards = base.get("rewards")
    there = list(rewards) if isinstance(rewards, dict) else []
    for option, value in given.items():
        label = option.removeprefix("rewards.")
        if value is None and label != option and "." not in label and label not in there:
            raise ConfigError(f"{option}=null removes nothing: the recipe's rewards are {', '.join(there) or 'none'}")


def _sections(tree: dict[str, Any], context: Context) -> tuple[dict[str, Any], list[str]]:
    """Every section as its own class, and what is wrong with them."""
    types = get_type_hints(context.config, include_extras=True)
    sections: dict[str, Any] = {}
    complaints: list[str] = []
    for name in tree:
        if name not in types:
            complaints.append(unknown((name,), tree[name], context))
    for name, field in fields(context.config).items():
        if name == "algorithm":
            kind = context.config.algorithm_kind
            sections[name] = _registered(kind, ("algorithm",), tree.get(name), None, context, complaints)
        elif name == "environment":
            if tree.get(name) is not None:
                sections[name] = _registered(name, (name,), tree[name], None, context, complaints)
        elif name == "rewards":
            sections[name] = _rewards(tree.get(name), context, complaints)
        elif name in tree or field.is_required():
            # a missing section is read as an empty one, so that the message names the option that it lacks
            sections[name] = _typed(types[name], (name,), tree.get(name, {}), context, complaints)
    return sections, complaints


def _rewards(tree: Any, context: Context, complaints: list[str]) -> dict[str, Any]:
    if tree is not None and not isinstance(tree, dict):
        complaints.append(f"rewards is {show(tree)}; it must hold rewards by name, as in rewards.ocr.weight=1")
        return {}
    kept = {label: options for label, options in (tree or {}).items() if options is not None}
    odd = [label for label in kept if not LABEL.fullmatch(label)]
    complaints += [f"rewards has {label!r}; a label must be of letters, digits, _ and -" for label in odd]
    return {
        label: _registered(context.config.reward_kind, ("rewards", label), options, label, context, complaints)
        for label, options in kept.items()
    }


def _registered(
    kind: str, path: tuple[str, ...], tree: Any, default: str | None, context: Context, complaints: list[str]
) -> Any:
    """An algorithm or a reward, of the class that its name says."""
    option = ".".join(path)
    if tree is not None and not isinstance(tree, dict):
        example = f"{option}.weight=1" if path[0] == "rewards" else f"{option}.name={names(kind)[0]}"
        complaints.append(f"{option} is {show(tree)}; it must hold options, as in {example}")
        return None
    name = (tree or {}).get("name", default)
    if name is None:
        known = ", ".join(names(kind))
        key = option if option == "algorithm" else f"{option}.name"
        complaints.append(f"{option} is required; {key}=NAME chooses one of {known}")
        return None
    if name not in names(kind):
        key = option if name == default or option == "algorithm" else f"{option}.name"
        message = wrong_choice(key, name, names(kind), short=name == default)
        if (other := owner(kind, name, context.config)) is not None:
            here = next(task for task, config in TASKS.items() if config is context.config)
            message = (
                f"{key} {'' if name == default else f'is {name}, which '}belongs to task {other}, but this run's is "
                f"{here}; set task={other}, or choose one of {', '.join(names(kind))}"
            )
        label = f"; {option}.name=... gives it another label" if name == default else ""
        complaints.append(message + label + context.origin(key))
        return None
    own = {key: value for key, value in tree.items() if key != "name"} if tree else {}
    return _typed(lookup(kind, name), path, own, context, complaints)


def _typed(kind: Any, path: tuple[str, ...], value: Any, context: Context, complaints: list[str]) -> Any:
    try:
        # JSON's strict mode is what people mean: [a, b] may be a tuple and 1 a float, but true is not 1
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except pydantic.ValidationError as error:
        complaints.extend(complain(one, path, kind, context) for one in error.errors(include_url=False))
        return None
