"""The configuration of a reward service: rewards by name, or as they stand in a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from burnish.config.errors import wrong_choice
from burnish.config.load import checked, find_recipe, labelled, read_recipe
from burnish.config.names import Context
from burnish.config.overrides import merge, nest, read_overrides
from burnish.config.plugins import open_plugins, with_whole_paths
from burnish.config.tasks import DEFAULT, TASKS, task_named
from burnish.options import ScoringOptions, ServiceOptions
from burnish.registry import Choice, fields, known, names, options
from burnish.rewards.mixing import MixingOptions
from burnish.utils.errors import ConfigError


@options
class ServiceConfig:
    """What is served, and how."""

    task: str
    """Whose rewards they are."""
    plugins: list[str] = Field(default_factory=list)
    """Code of yours, as in a recipe."""
    rewards: dict[str, Any]
    """What is served, by label."""
    scoring: ScoringOptions = Field(default_factory=ScoringOptions)
    """How rewards are computed."""
    mixing: MixingOptions = Field(default_factory=MixingOptions)
    """How several of them become one."""
    service: ServiceOptions = Field(default_factory=ServiceOptions)
    """What the service takes at once."""


SECTIONS = tuple(fields(ServiceConfig))  # of a recipe, that a service reads


def load_service(served: Sequence[str], *, task: str | None = None) -> ServiceConfig:
    """Read what a service is asked to serve.

    Args:
        served: names of rewards, recipes (names, or paths of .yaml files), and ``option=value``.
        task: whose rewards the names are; None takes a recipe's, or the one that knows the names.

    Raises:
        ConfigError: with all problems.
    """
    given = {
        option if option.partition(".")[0] in SECTIONS else f"rewards.{option}": value
        for option, value in read_overrides([one for one in served if "=" in one]).items()
    }
    tree: dict[str, Any] = {}
    labels = []
    for one in [one for one in served if "=" not in one]:
        if one.endswith((".yaml", ".yml")) or (not _kinds(one) and "/" in one):
            content = read_recipe(find_recipe(one))
            tree = merge(tree, {name: value for name, value in content.items() if name in SECTIONS})
        else:
            labels.append(one)
    tree = merge(merge(tree, {"rewards": {label: {} for label in labels}}), with_whole_paths(nest(given)))
    open_plugins(tree.get("plugins", []))
    name = task or tree.get("task") or _task_of(labels)
    # a service goes on: its clients decide
    tree = labelled(tree) | {"task": name, "scoring": {"max_failures": None} | dict(tree.get("scoring") or {})}
    config = task_named(name).config
    context = Context([(Path(served[0]).name if served else "", tree)], given, tree, config)
    rewards = checked(dict[str, Annotated[Any, Choice(config.reward_kind)]], tree["rewards"], context, "rewards")
    found: ServiceConfig = checked(ServiceConfig, tree | {"rewards": {}}, context)
    found.rewards = rewards
    if complaints := list(_problems(found)):
        raise ConfigError(complaints)
    return found


def _problems(config: ServiceConfig) -> Iterator[str]:
    for label, reward in config.rewards.items():
        if reward.on_failure != "missing":
            yield (
                f"rewards.{label}.on_failure is {reward.on_failure}, which is for the run to decide that asks; leave "
                "it out, and set it for that run's reward remote"
            )
        if asked := reward.required_fields():
            yield f"rewards.{label} asks for {', '.join(asked)}, which clients don't send; leave it out"
    if not any(reward.counts for reward in config.rewards.values()):
        yield "no reward with a weight is given; name one, as in: burnish serve-reward ocr"
    if config.scoring.max_failures is not None:
        yield "scoring.max_failures ends a run, not a service; leave it out"


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
