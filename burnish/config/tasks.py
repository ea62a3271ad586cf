"""The tasks that Burnish trains for: which class of configuration each has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burnish.config.complaints import wrong_choice
from burnish.config.flow import FlowConfig
from burnish.config.language import LanguageConfig
from burnish.config.run import RunConfig
from burnish.registry import known, names
from burnish.utils.errors import ConfigError

TASKS: dict[str, type[RunConfig]] = {"text-to-image": FlowConfig, "image-text-to-text": LanguageConfig}
DEFAULT = "text-to-image"


def task_of(trees: Sequence[Mapping[str, Any]]) -> Any:
    """The task of a run: what its recipes say, or the only one that knows their algorithm and their rewards.

    Args:
        trees: the command line, the recipe, and what it extends, in this order.
    """
    for tree in trees:
        if "task" in tree:
            return tree["task"]
    # plugins of installed packages are opened only where somebody names what is not ours
    for is_there in (lambda kind, name: name in names(kind), known):
        fitting = [
            task for task, kind in TASKS.items() if all(is_there(getattr(kind, of), n) for of, n in _used(trees))
        ]
        if len(fitting) == 1:
            return fitting[0]
    return DEFAULT


def owner(kind: str, name: Any, task: type[RunConfig]) -> str | None:
    """Another task that has an algorithm or a reward of that name; None if none has.

    Args:
        kind: ``task``'s of algorithms or of rewards.
        name: unknown to it.
        task: the configuration that was read.
    """
    of = "algorithm_kind" if kind == task.algorithm_kind else "reward_kind"
    others = (other for other, config in TASKS.items() if config is not task)
    return next((other for other in others if name in names(getattr(TASKS[other], of))), None)


def _used(trees: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The algorithms and rewards that recipes name, each with where its kind's registered name stands."""
    for tree in trees:
        algorithm, rewards = tree.get("algorithm"), tree.get("rewards")
        if isinstance(algorithm, Mapping) and "name" in algorithm:
            yield "algorithm_kind", algorithm["name"]
        for label, options in rewards.items() if isinstance(rewards, Mapping) else ():
            if options is not None:
                yield "reward_kind", options.get("name", label) if isinstance(options, Mapping) else label


def config_class(task: Any) -> type[RunConfig]:
    """The configuration of a task.

    Raises:
        ConfigError: there is no such task.
    """
    if not isinstance(task, str) or task not in TASKS:
        raise ConfigError(wrong_choice("task", task, list(TASKS)))
    return TASKS[task]
