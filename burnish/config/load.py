"""Recipe and command line to a checked configuration.

Precedence, lowest first: defaults, recipes that are extended, the recipe (each with its ``variants`` for the chosen
algorithm), the command line. Defaults that depend on other options are filled in last.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any, get_type_hints

import pydantic

from burnish.config.complaints import Context, complain, unknown, wrong_choice
from burnish.config.derived import renamed, with_derived
from burnish.config.hardware import KEY, Hardware, Origin, read_hardware, read_machine
from burnish.config.overrides import merge, nest, read_overrides, without_replaced
from burnish.config.plugins import chosen_by_path, open_plugins, with_value, with_whole_paths
from burnish.config.run import RunConfig
from burnish.config.tasks import TASKS, chosen_task, owner, task_named
from burnish.config.text import fields
from burnish.config.yaml_text import parse, show
from burnish.registry import WITHIN, known, lookup, named, names
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.paths import RECIPES
from burnish.utils.reading import checked_path, read_text

BASE = "base"  # recipe of a folder that the others extend
Layers = list[tuple[str, dict[str, Any]]]  # file and content of recipes, highest precedence first
Extended = tuple[str, dict[str, Any], tuple[Hardware, ...]]  # file, options and hardware of a recipe
LABEL = re.compile(r"[A-Za-z_][\w-]*")  # of a reward, so that the command line can name it


def load(recipe: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe, apply the command line and check every option.

    Args:
        recipe: name of a recipe that ships with Burnish, or path of a .yaml file.
        overrides: ``a.b.c=value``; the value is YAML, and null removes a reward or a section. ``gpus=8 nodes=2`` lays
            the options of the hardware that the recipe states over it.

    Raises:
        ConfigError: with all problems, one per line.
    """
    extended = list(_extended(find_recipe(recipe)))
    layers = [(file, content) for file, content, _ in extended]
    machine, given = read_machine(overrides)
    origin = Origin(recipe, tuple(overrides), _stated(extended), _model_of_hardware(extended))
    if composed := machine.options(origin.stated):
        layers = [(f"options for the hardware of {layers[0][0]}", nest(read_overrides(composed))), *layers]
    tree = with_whole_paths(nest(given))
    trees = [tree, *(layer for _, layer in layers)]
    plugins = open_plugins(next((one["plugins"] for one in trees if "plugins" in one), []))
    task = task_named(chosen_task(trees)).config
    chosen = next((name for one in trees if (name := _algorithm(one)) is not None), None)
    layers = _for_algorithm(layers, chosen, task.algorithm_kind)
    if chosen is not None and known(task.algorithm_kind, chosen):
        layers = _for_parts(tree, layers, lookup(task.algorithm_kind, chosen).parts)
    below: dict[str, Any] = {}
    for file, layer in reversed(layers):
        below = merge(without_replaced(below, file, layer), layer)
    _removals(given, below)
    counted = _steps_decide(given, [tree, *(layer for _, layer in layers)])
    tree = merge(below, tree)
    if counted and isinstance(tree.get("data"), dict):
        tree["data"].pop("epochs", None)
    tree = with_derived(_opened(tree, plugins, task), task)
    sections, complaints = _sections(tree, Context(layers, given, tree, task))
    if complaints:
        raise ConfigError(complaints)
    config = task(**sections, origin=origin)
    config.check(given)
    return config


def context_of(recipe: str, overrides: Sequence[str] = ()) -> Context:
    """What a recipe and a command line choose, without a check; no module of others is imported.

    Raises:
        ConfigError: there is no such recipe, or it can't be read.
    """
    layers, (_, given) = _layers(find_recipe(recipe)), read_machine(overrides)
    trees = [_named(nest(given)), *(layer for _, layer in layers)]
    tree: dict[str, Any] = {}
    for one in reversed(trees):
        tree = merge(tree, one)
    return Context(layers, given, tree, task_named(chosen_task(trees)).config)


def recipe_names() -> list[str]:
    """The recipes that ship with Burnish, those in folders as FOLDER/NAME, without the base recipes."""
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
        raise ConfigError(f"{recipe!r} is no recipe; the recipe comes first, one of: {', '.join(known)}")
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(f"recipe {recipe} does not exist; give a .yaml file, or one of: {', '.join(known)}")
    near = difflib.get_close_matches(recipe, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    way_out = "give one that burnish recipes lists, such as quickstart, or a .yaml file"
    raise ConfigError(f"recipe is {recipe}, which is none; {hint}{way_out}")


@cache
def _shipped() -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml")))


def _layers(path: Path) -> Layers:
    """A recipe and, recursively, the recipes that it extends."""
    return [(file, content) for file, content, _ in _extended(path)]


def hardware_of(recipe: str) -> tuple[Hardware, ...]:
    """The GPUs that a recipe is made for, by its own file or the nearest that it extends; empty if none states them.

    Args:
        recipe: name of a recipe that ships with Burnish, or path of a .yaml file.

    Raises:
        ConfigError: what it states is malformed.
    """
    return _stated(_extended(find_recipe(recipe)))


def _stated(extended: Iterable[Extended]) -> tuple[Hardware, ...]:
    """The nearest statement of hardware."""
    return next((stated for *_, stated in extended if stated), ())


def _model_of_hardware(extended: Iterable[Extended]) -> str | None:
    """The model that the nearest statement of hardware is about; None if nothing is stated."""
    about = dropwhile(lambda one: not one[2], extended)
    models = (content.get("model") for _, content, _ in about)
    return next((model["path"] for model in models if isinstance(model, dict) and "path" in model), None)


def _extended(path: Path) -> Iterator[Extended]:
    """File, options and hardware of a recipe and, recursively, of the recipes that it extends."""
    seen: list[Path] = []
    where = ""
    while path.resolve() not in seen:
        seen.append(path.resolve())
        file, content = _shown(path), read_recipe(path)
        stated, extended = content.pop(KEY, None), content.pop("extends", None)
        yield file, content, () if stated is None else read_hardware(stated, file)
        if extended is None:
            return
        where = f"extends is {show(extended)} (in {file})"
        if not isinstance(extended, str):
            raise ConfigError(f"{where}; it must be the name of a recipe, or the path of a .yaml file from this one")
        beside = path.parent / extended
        try:
            path = beside if beside.is_file() else find_recipe(extended)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    raise ConfigError(f"{where}, which extends this recipe in turn; remove one of the two")


def _shown(path: Path) -> str:
    """File name of a recipe for messages."""
    return path.relative_to(RECIPES).as_posix() if path.is_relative_to(RECIPES) else path.name


def read_recipe(path: Path) -> dict[str, Any]:
    """What a recipe's own file says."""
    try:
        text = read_text(path)
    except UserError as error:
        raise ConfigError(str(error)) from None
    try:
        content = parse(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; correct it, or give another recipe") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path} is not a recipe: it must contain options, such as 'steps: 30', but contains {show(content):.80}"
        )
    return with_whole_paths(renamed(_named(content)))


def _named(tree: dict[str, Any]) -> dict[str, Any]:
    """``algorithm: flow_grpo`` is short for ``algorithm: {name: flow_grpo}``."""
    if isinstance(tree.get("algorithm"), str):
        return tree | {"algorithm": {"name": tree["algorithm"]}}
    return tree


def _algorithm(tree: dict[str, Any]) -> Any:
    """Name of the algorithm in a recipe or on the command line; None if there is none."""
    own = tree.get("algorithm")
    return own.get("name") if isinstance(own, dict) else None


def _opened(tree: dict[str, Any], plugins: Sequence[str], task: type[RunConfig]) -> dict[str, Any]:
    """A configuration's tree with the classes that it names by path, and with the files of those that have a name."""
    opened = dict.fromkeys(plugins)
    for place, kind, path in list(chosen_by_path(tree)):
        try:
            name = named(getattr(task, kind), path)
        except UserError as error:
            raise ConfigError(f"{'.'.join(place)}: {error}") from error
        if name != path:
            opened[path.rpartition(":")[0]] = None
        tree = with_value(tree, place, name)
    return tree | {"plugins": list(opened)} if opened else tree


def _for_algorithm(layers: Layers, chosen: Any, kind: str) -> Layers:
    """Recipes for the chosen algorithm: without the options of another algorithm, with the variant for this one."""
    own, fitting = None, []
    for file, recipe in reversed(layers):
        own = _algorithm(recipe) or own
        kept = {name: value for name, value in recipe.items() if name != "variants"}
        if "algorithm" in kept and own != chosen:
            kept["algorithm"] = {"name": chosen}
        fitting.append((file, merge(kept, _variant(recipe.get("variants") or {}, chosen, file, kind))))
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
                replaced |= fields(parts[kind]).keys() - {"name"} if own[kind] is not None else set()
        fitting.append((file, layer))
    return fitting[1:]


def _variant(variants: Any, chosen: Any, file: str, kind: str) -> dict[str, Any]:
    """What a recipe changes for an algorithm."""
    if not isinstance(variants, dict):
        raise ConfigError(f"variants is {show(variants)} (in {file}); it must map algorithm names to options")
    for name, changed in variants.items():
        if not known(kind, name):
            raise ConfigError(wrong_choice(f"variants.{name}", name, names(kind), short=True) + f" (in {file})")
        if not isinstance(changed, dict) or "variants" in changed:
            raise ConfigError(f"variants.{name} is {show(changed)} (in {file}); it must contain options")
        inner = changed.get("algorithm")
        if inner is not None and (not isinstance(inner, dict) or inner.get("name", name) != name):
            raise ConfigError(f"variants.{name}.algorithm is {show(inner)} (in {file}); it must be options of {name}")
    return variants.get(chosen, {}) if isinstance(chosen, str) else {}


def _steps_decide(given: dict[str, Any], trees: Sequence[dict[str, Any]]) -> bool:
    """Whether steps are given above any data.epochs, which they then replace; ``trees`` with the highest first.

    Raises:
        ConfigError: both are on the command line.
    """
    if "steps" in given and given.get("data.epochs") is not None:
        raise ConfigError("steps and data.epochs are both given, and each says how long the run is; leave one out")
    for tree in trees:
        data = tree.get("data")
        if isinstance(data, dict) and "epochs" in data:
            return False
        if "steps" in tree:
            return True
    return False


def _removals(given: dict[str, Any], base: dict[str, Any]) -> None:
    rewards = base.get("rewards")
    there = list(rewards) if isinstance(rewards, dict) else []
    for option, value in given.items():
        label = option.removeprefix("rewards.")
        if value is None and label != option and "." not in label and label not in there:
            raise ConfigError(f"{option}=null removes nothing: the recipe's rewards are {', '.join(there) or 'none'}")


def _sections(tree: dict[str, Any], context: Context) -> tuple[dict[str, Any], list[str]]:
    """Every section as an object of its class, and all problems."""
    types = get_type_hints(context.config, include_extras=True)
    options = fields(context.config)
    sections: dict[str, Any] = {}
    complaints: list[str] = []
    for name in tree:
        if name not in options:
            complaints.append(unknown((name,), tree[name], context))
    for name, field in options.items():
        if name == "algorithm":
            kind = context.config.algorithm_kind
            sections[name] = _registered(kind, ("algorithm",), tree.get(name), None, context, complaints)
        elif name == "environment":
            if tree.get(name) is not None:
                sections[name] = _registered(name, (name,), tree[name], None, context, complaints)
        elif name == "rewards":
            sections[name] = rewards_of(tree.get(name), context, complaints)
        elif name in tree or field.is_required():
            # a missing section counts as empty, so that the message names the required option
            sections[name] = typed(types[name], (name,), tree.get(name, {}), context, complaints)
    return sections, complaints


def rewards_of(tree: Any, context: Context, complaints: list[str]) -> dict[str, Any]:
    """A recipe's section of rewards as objects of their classes; problems go to ``complaints``."""
    if tree is not None and not isinstance(tree, dict):
        complaints.append(f"rewards is {show(tree)}; it must map names to rewards, as in rewards.ocr.weight=1")
        return {}
    kept = {label: options for label, options in (tree or {}).items() if options is not None}
    odd = [label for label in kept if not LABEL.fullmatch(label)]
    complaints += [f"rewards has {label!r}; a label may only contain letters, digits, _ and -" for label in odd]
    return {
        label: _registered(context.config.reward_kind, ("rewards", label), options, label, context, complaints)
        for label, options in kept.items()
    }


def _registered(
    kind: str, path: tuple[str, ...], tree: Any, default: str | None, context: Context, complaints: list[str]
) -> Any:
    """An algorithm, reward or environment as an object of its registered class."""
    option = ".".join(path)
    if tree is not None and not isinstance(tree, dict):
        example = f"{option}.weight=1" if path[0] == "rewards" else f"{option}.name={names(kind)[0]}"
        complaints.append(f"{option} is {show(tree)}; it must contain options, as in {example}")
        return None
    name = (tree or {}).get("name", default)
    if name is None:
        key = option if option == "algorithm" else f"{option}.name"
        complaints.append(f"{option} is required; set {key}=NAME, one of {', '.join(names(kind))}")
        return None
    if not known(kind, name):
        key = option if name == default or option == "algorithm" else f"{option}.name"
        message = wrong_choice(key, name, names(kind), short=name == default)
        if (other := owner(kind, name, context.config)) is not None:
            here = next(name for name, task in TASKS.items() if task.config is context.config)
            message = (
                f"{key} {'' if name == default else f'is {name}, which '}belongs to task {other}, but this run's is "
                f"{here}; set task={other}, or choose one of {', '.join(names(kind))}"
            )
        label = f"; to use another label, set {option}.name" if name == default else ""
        complaints.append(message + label + context.origin(key))
        return None
    own = {key: value for key, value in tree.items() if key != "name"} if tree else {}
    return typed(lookup(kind, name), path, own, context, complaints)


def typed(kind: Any, path: tuple[str, ...], value: Any, context: Context, complaints: list[str]) -> Any:
    """A value as an object of its class; problems go to ``complaints``."""
    try:
        # strict mode of JSON: [a, b] may be a tuple and 1 a float, but true is not 1
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except pydantic.ValidationError as error:
        complaints.extend(_complaints(error.errors(include_url=False), path, kind, context))
        return None


def _complaints(errors: Sequence[Any], path: tuple[str, ...], kind: Any, context: Context) -> Iterator[str]:
    for error in errors:
        if error["type"] == WITHIN:
            chosen, place = error["ctx"], (*path, *map(str, error["loc"]))
            yield from _complaints(chosen["errors"], place, lookup(chosen["kind"], chosen["name"]), context)
        else:
            yield complain(error, path, kind, context)
