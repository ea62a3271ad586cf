"""Recipe and command line to a checked configuration.

Three rules, lowest first: a recipe is laid over what it extends; its ``variants`` for the chosen algorithm are laid
over it; the command line is laid over all. Sections are merged, everything else is replaced.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import dropwhile
from pathlib import Path
from typing import Any

import pydantic

from burnish.config.errors import another_task, messages, wrong_choice
from burnish.config.hardware import KEY, Hardware, Origin, read_hardware, read_machine
from burnish.config.names import Context
from burnish.config.plugins import chosen_by_path, open_plugins, uses, with_whole_paths
from burnish.config.run import RunConfig
from burnish.config.tasks import chosen_task, task_named
from burnish.config.yaml_text import at, merge, nest, parse, read_overrides, show
from burnish.registry import fields, known, lookup, named, names, validated, without
from burnish.utils.errors import ConfigError, UserError, meant
from burnish.utils.json_text import flattened
from burnish.utils.paths import RECIPES
from burnish.utils.reading import checked_path, read_text

log = logging.getLogger(__name__)

BASE = "base"  # recipe of a folder that the others extend
LABEL = re.compile(r"[A-Za-z_][\w-]*")  # of a reward, so that the command line can name it
Layers = list[tuple[str, dict[str, Any]]]  # file and content of recipes, highest precedence first


@dataclass(frozen=True)
class Recipe:
    """What the file of a recipe says."""

    file: str
    content: dict[str, Any]
    hardware: tuple[Hardware, ...]


def load(recipe: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe, apply the command line and check every option.

    Args:
        recipe: name of a recipe that ships with Burnish, or path of a .yaml file.
        overrides: ``a.b.c=value``; the value is YAML, null removes a reward or a section, and {} replaces what the
            recipe has in one. ``gpus=8 nodes=2`` lays the options of the hardware that the recipe states over it.

    Raises:
        ConfigError: with all problems, one per line.
    """
    extended = list(_extended(find_recipe(recipe)))
    machine, given = read_machine(overrides)
    nearest = list(dropwhile(lambda one: not one.hardware, extended))  # the recipe that states hardware, and below
    model = next(filter(None, (at(one.content, "model", "path") for one in nearest)), None)
    origin = Origin(recipe, tuple(overrides), nearest[0].hardware if nearest else (), model)
    layers = [("", with_whole_paths(nest(given))), *((one.file, one.content) for one in extended)]
    if composed := machine.options(origin.stated):
        layers.insert(1, (f"options for the hardware of {layers[1][0]}", nest(read_overrides(composed))))
    plugins = open_plugins(next((tree["plugins"] for _, tree in layers if "plugins" in tree), []))
    task = task_named(chosen_task([tree for _, tree in layers])).config
    algorithm: Any = next(filter(None, (at(tree, "algorithm", "name") for _, tree in layers)), None)
    layers = _for_algorithm(layers, algorithm, task.algorithm_kind)
    there = algorithm is not None and known(task.algorithm_kind, algorithm)
    parts = lookup(task.algorithm_kind, algorithm).parts if there else {}
    tree = _corrected(_opened(_merged(layers, given, parts), plugins, task), task)
    # with every section that a run must have, if empty, so that messages name what is missing inside
    tree = {name: {} for name, field in fields(task).items() if field.is_required()} | labelled(tree)
    config: RunConfig = checked(task, tree, Context(layers[1:], given, tree, task))
    config.origin = origin
    config.check(given)
    return config


def checked(kind: Any, tree: Any, context: Context, *place: str) -> Any:
    """What is at a place of a configuration as an object of its class.

    Raises:
        ConfigError: with all problems.
    """
    try:
        return validated(kind, tree)
    except pydantic.ValidationError as error:
        raise ConfigError(messages(error, context, place)) from None


def context_of(recipe: str, overrides: Sequence[str] = ()) -> Context:
    """What a recipe and a command line choose, without a check; no module of others is imported.

    Raises:
        ConfigError: there is no such recipe, or it can't be read.
    """
    layers = [(one.file, one.content) for one in _extended(find_recipe(recipe))]
    _, given = read_machine(overrides)
    trees = [nest(given), *(layer for _, layer in layers)]
    tree = labelled(reduce(merge, reversed(trees)))
    return Context(layers, given, tree, task_named(chosen_task(trees)).config)


def used_by(recipe: str) -> list[tuple[str, str]]:
    """Code, programs and servers that a recipe, or one that it extends, names; nothing of it is imported.

    Raises:
        ConfigError: there is no such recipe, or it can't be read.
    """
    return [use for one in _extended(find_recipe(recipe)) for use in uses(one.content)]


def recipe_names() -> list[str]:
    """The recipes that ship with Burnish, those in folders as FOLDER/NAME, without the base recipes."""
    return [name for name in _shipped() if Path(name).name != BASE]


def find_recipe(recipe: str) -> Path:
    """The file of a recipe."""
    if recipe in _shipped():
        return RECIPES / f"{recipe}.yaml"
    path = checked_path(recipe, "recipe")
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return path
    inside = [name for name in recipe_names() if name.startswith(f"{recipe.rstrip('/')}/")]
    near = inside[:3] or difflib.get_close_matches(recipe, recipe_names(), n=1)
    raise ConfigError(
        f"recipe is {recipe}, which does not exist; {meant(near)}give one that burnish recipes lists, "
        "such as quickstart, or the path of a .yaml file; options come behind it"
    )


@cache
def _shipped() -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml")))


def hardware_of(recipe: str) -> tuple[Hardware, ...]:
    """The GPUs that a recipe is made for, by its own file or the nearest that it extends; empty if none states them.

    Args:
        recipe: name of a recipe that ships with Burnish, or path of a .yaml file.

    Raises:
        ConfigError: what it states is malformed.
    """
    return next((one.hardware for one in _extended(find_recipe(recipe)) if one.hardware), ())


def _extended(path: Path) -> Iterator[Recipe]:
    """A recipe and, recursively, the recipes that it extends."""
    seen: list[Path] = []
    where = ""
    while path.resolve() not in seen:
        seen.append(path.resolve())
        file = path.relative_to(RECIPES).as_posix() if path.is_relative_to(RECIPES) else path.name
        content = read_recipe(path)
        stated, extended = content.pop(KEY, None), content.pop("extends", None)
        yield Recipe(file, content, () if stated is None else read_hardware(stated, file))
        if extended is None:
            return
        where = f"extends is {show(extended)} (in {file})"
        if not isinstance(extended, str):
            raise ConfigError(f"{where}; it must be the name of a recipe, or the path of a .yaml file from this one")
        beside = path.parent / extended
        try:
            path = beside if beside.is_file() else find_recipe(extended)
        except UserError as error:
            raise ConfigError(f"{where}: {error}") from None
    raise ConfigError(f"{where}, which extends this recipe in turn; remove one of the two")


def read_recipe(path: Path) -> dict[str, Any]:
    """What a recipe's own file says."""
    try:
        content = parse(read_text(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; correct it, or give another recipe") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path} is not a recipe: it must contain options, such as 'steps: 30', but contains {show(content):.80}"
        )
    if not isinstance(content.get("algorithm", {}), dict):  # short for algorithm: {name: ...}
        content["algorithm"] = {"name": content["algorithm"]}
    return with_whole_paths(content)


def _merged(layers: Layers, given: dict[str, Any], parts: dict[str, type]) -> dict[str, Any]:
    """The command line and the recipes below it as one tree.

    ``steps`` replace data.epochs of the layers below, a part of the algorithm the options of the part that was chosen
    there, {} what a section or a map has there, and new rewards those that are not named again.

    Args:
        layers: for the algorithm.
        given: options of the command line.
        parts: the algorithm's own parts, by their kinds.

    Raises:
        ConfigError: an option takes back what is not there, or two say the same thing.
    """
    if "steps" in given and given.get("data.epochs") is not None:
        raise ConfigError("steps and data.epochs are both given, and each says how long the run is; remove one")
    tree: dict[str, Any] = {}
    for file, layer in reversed(layers):
        if "steps" in layer and at(layer, "data", "epochs") is None and at(tree, "data", "epochs") is not None:
            tree["data"] = without(tree["data"], "epochs")
        if isinstance(tree.get("algorithm"), dict):
            replaced = [parts[kind] for kind in parts if at(layer, "algorithm", kind) is not None]
            gone = {option for part in replaced for option in fields(part)} - {"name"}
            tree["algorithm"] = without(tree["algorithm"], *gone)
        if file:
            tree = _without_replaced(tree, file, layer)
        else:
            _refuse_removals(given, tree.get("rewards") or {})
        empty = [option for option, value in flattened(layer) if value == {} and not option.startswith("rewards.")]
        tree = merge(merge(tree, nest(dict.fromkeys(empty))), layer)
    return tree


def _for_algorithm(layers: Layers, chosen: Any, kind: str) -> Layers:
    """Layers for the chosen algorithm: without options of others, with its variants."""
    own, fitting = None, []
    for file, layer in reversed(layers):
        own = at(layer, "algorithm", "name") or own
        if "algorithm" in layer and own != chosen:
            layer = layer | {"algorithm": {"name": chosen}}
        if file:
            variants = _variants(layer.get("variants") or {}, file, kind)
            layer = merge(without(layer, "variants"), variants.get(str(chosen), {}))
        fitting.append((file, layer))
    return fitting[::-1]


def _variants(variants: Any, file: str, kind: str) -> dict[Any, Any]:
    """What a recipe changes for algorithms, by their names."""
    if not isinstance(variants, dict):
        raise ConfigError(f"variants is {show(variants)} (in {file}); it must map algorithm names to options")
    for name, changed in variants.items():
        if not known(kind, name):
            if other := another_task(kind, name):
                raise ConfigError(
                    f"{file} has variants.{name}, so it is for task {other}; give that, or another recipe"
                )
            raise ConfigError(wrong_choice(f"variants.{name}", name, names(kind)) + f" (in {file})")
        inner = changed.get("algorithm", {}) if isinstance(changed, dict) and "variants" not in changed else None
        if not isinstance(inner, dict) or inner.get("name", name) != name:
            raise ConfigError(f"variants.{name} is {show(changed)} (in {file}); it must contain options of such a run")
    return variants


def _without_replaced(below: dict[str, Any], file: str, layer: dict[str, Any]) -> dict[str, Any]:
    """What is extended, without the rewards in whose place a recipe has rewards of its own.

    A recipe with a new reward that counts is not about those of the recipe that it extends: they go, unless it names
    them, and what is only watched (weight 0) stays.
    """
    old, new = below.get("rewards"), layer.get("rewards")
    if not isinstance(old, dict) or not isinstance(new, dict):
        return below

    def counts(reward: Any) -> bool:
        return isinstance(reward, dict) and (reward.get("weight", 1) != 0 or bool(reward.get("weight_by")))

    if not any(counts(reward) for label, reward in new.items() if label not in old):
        return below
    gone = [label for label, reward in old.items() if counts(reward) and label not in new]
    if gone:
        _say_replaced(file, tuple(gone))
    return below | {"rewards": without(old, *gone)}


@cache
def _say_replaced(file: str, gone: tuple[str, ...]) -> None:
    """Once in a process, however often the recipe is read."""
    log.warning(
        "the rewards of %s replace %s of the recipe that it extends; to keep one, name it too, as in "
        "rewards.%s.weight=1",
        file, ", ".join(gone), gone[0],
    )  # fmt: skip


def _refuse_removals(given: dict[str, Any], rewards: dict[str, Any]) -> None:
    for option, value in given.items():
        section, _, label = option.partition(".")
        if value is None and section == "rewards" and label and "." not in label and label not in rewards:
            raise ConfigError(f"{option}=null removes nothing: the recipe's rewards are {', '.join(rewards) or 'none'}")


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
        tree = merge(tree, nest({".".join(place): name}))
    return tree | {"plugins": list(opened)} if opened else tree


def _corrected(tree: dict[str, Any], task: type[RunConfig]) -> dict[str, Any]:
    """A tree in which samples of other weights are corrected for it, unless it says otherwise.

    Where ``async_rollout.depth`` is above 0, ``data.scores`` reads samples or groups are replayed, every algorithm that
    has ``rollout_correction`` gets it. One that refers to the sampler's log-probs gets the form that does.
    """
    algorithm: Any = tree.get("algorithm")
    name = at(algorithm, "name")
    replayed = at(tree, "rollout", "filter_groups", "replay_buffer")
    of_others = at(tree, "data", "scores") or at(tree, "async_rollout", "depth") or replayed
    if not of_others or name not in names(task.algorithm_kind) or "rollout_correction" in algorithm:
        return tree
    if "rollout_correction" not in fields(lookup(task.algorithm_kind, name)):
        return tree
    correction = {"mode": "bypass"} if algorithm.get("old_logprob") == "sampler" else {}
    return tree | {"algorithm": algorithm | {"rollout_correction": correction}}


def labelled(tree: dict[str, Any]) -> dict[str, Any]:
    """A tree whose rewards have names, which are their labels unless they say otherwise; null removes one.

    Raises:
        ConfigError: a label can't be one.
    """
    rewards = tree.get("rewards")
    if not isinstance(rewards, dict):
        return tree
    kept = {label: own for label, own in rewards.items() if own is not None}
    if odd := [label for label in kept if not LABEL.fullmatch(label)]:
        raise ConfigError(
            f"rewards has {label!r}; a label has letters, digits, _ and -, a letter first" for label in odd
        )
    return tree | {"rewards": {k: {"name": k} | own if isinstance(own, dict) else own for k, own in kept.items()}}
