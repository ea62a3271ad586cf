"""The configuration of a reward service: rewards by name, or as they stand in a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from burnish.config.errors import wrong_choice
from burnish.config.load import checked, find_recipe, labelled, read_recipe
from burnish.config.names import Context
from burnish.config.overrides import merge, nest, read_overrides
from burnish.config.plugins import open_plugins, with_whole_paths
from burnish.config.tasks import DEFAULT, TASKS, task_named
from burnish.options import ScoringOptions
from burnish.options.mixing import MixingOptions
from burnish.options.service import ServiceOptions
from burnish.registry import Choice, known, names
from burnish.utils.errors import ConfigError

SECTIONS = ("task", "plugins", "rewards", "scoring", "mixing", "service")  # of a recipe, that a service reads


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """What is served, and how."""

    task: str
    rewards: dict[str, Any]
    scoring: ScoringOptions
    mixing: MixingOptions
    service: ServiceOptions


def load_service(served: Sequence[str], *, task: str | None = None) -> ServiceConfig:
    """Read what a service is asked to serve.

    Args:
        served: names of rewards, recipes (names, or paths of .yaml files), and ``option=value``.
        task: whose rewards the names are; None takes a recipe's, or the one that knows the names.

    Raises:
        ConfigError: with all problems.
    """
    chosen = [one for one in served if "=" not in one]
    given = read_overrides([one for one in served if "=" in one])
    tree: dict[str, Any] = {}
    labels = []
    for one in chosen:
        if one.endswith((".yaml", ".yml")) or (not _kinds(one) and "/" in one):
            content = read_recipe(find_recipe(one))
            tree = merge(tree, {name: value for name, value in content.items() if name in SECTIONS})
        else:
            labels.append(one)
    given = {
        (option if option.partition(".")[0] in SECTIONS else f"rewards.{option}"): v for option, v in given.items()
    }
    own = with_whole_paths(nest(given))
    open_plugins(own.get("plugins", tree.get("plugins", [])))
    tree = merge(merge(tree, {"rewards": {label: {} for label in labels}} if labels else {}), own)
    name = task or tree.get("task") or _task_of(labels)
    config = task_named(name).config
    tree = labelled({"rewards": {}} | tree)
    tree["scoring"] = {"max_failures": None} | dict(tree.get("scoring") or {})  # a service goes on: its clients decide
    context = Context([(Path(chosen[0]).name if chosen else "", tree)], given, tree, config)
    sections = {
        "rewards": dict[str, Annotated[Any, Choice(config.reward_kind)]],
        "scoring": ScoringOptions,
        "mixing": MixingOptions,
        "service": ServiceOptions,
    }
    complaints: list[str] = []
    made: dict[str, Any] = {}
    for section, kind in sections.items():
        try:
            made[section] = checked(kind, tree.get(section) or {}, context, section)
        except ConfigError as error:
            complaints += error.complaints
    if complaints := complaints or _problems(found := ServiceConfig(task=str(name), **made)):
        raise ConfigError(complaints)
    return found


def _problems(config: ServiceConfig) -> list[str]:
    found = [
        f"rewards.{label}.on_failure is {reward.on_failure}, which is for the run to decide that asks; leave it out, "
        "and set it for that run's reward remote"
        for label, reward in config.rewards.items()
        if reward.on_failure != "missing"
    ]
    found += [
        f"rewards.{label} asks for {', '.join(reward.required_fields())}, which clients don't send; leave it out"
        for label, reward in config.rewards.items()
        if reward.required_fields()
    ]
    if not config.rewards:
        found.append("no reward is given; name one, as in: burnish serve-reward ocr")
    elif not any(reward.counts for reward in config.rewards.values()):
        found.append("every reward has weight 0, so there is no value to serve; give one another weight")
    if config.scoring.max_failures is not None:
        found.append("scoring.max_failures ends a run, not a service; leave it out")
    return found


def _kinds(name: str) -> list[str]:
    """The tasks that know a reward of this name."""
    return [task for task, one in TASKS.items() if known(one.config.reward_kind, name)]


def _task_of(labels: Sequence[str]) -> str:
    """The one task whose rewards all of these are."""
    every = [name for task in TASKS.values() for name in names(task.config.reward_kind)]
    for label in labels:
        if not _kinds(label):
            raise ConfigError(wrong_choice(f"reward {label!r:.60}", label, sorted(set(every)), short=True))
    shared = [task for task in TASKS if all(task in _kinds(label) for label in labels)]
    if labels and not shared:
        raise ConfigError(f"{' and '.join(labels)} are rewards of different tasks; serve them one by one")
    if labels and len(shared) > 1:
        raise ConfigError(f"{' and '.join(labels)}: say of which task, by --task {' or --task '.join(shared)}")
    return shared[0] if labels else DEFAULT
