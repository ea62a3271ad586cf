"""The tasks that Burnish trains for, and everything that is chosen by them: no other place asks which task it is."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.config.errors import wrong_choice
from burnish.config.run import RunConfig
from burnish.config.words import PICTURES, RESPONSES, Words
from burnish.registry import known, names
from burnish.utils.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Task:
    """What differs by task. Parts that need torch are imported when they are first used."""

    config_path: str  # module:name, as those below
    words: Words  # of reports and of the opening message
    assembly_path: str
    sample_path: str
    read_path: str

    @property
    def config(self) -> type[RunConfig]:
        """The class of its configurations."""
        found: type[RunConfig] = _imported(self.config_path)
        return found

    @property
    def read(self) -> Any:
        """What reads files of prompts by the options of the section data."""
        return _imported(self.read_path)

    @property
    def assembly(self) -> Any:
        """The class of ``burnish.tasks.Assembly`` that builds a run."""
        return _imported(self.assembly_path)

    @property
    def sample(self) -> Any:
        """What ``burnish sample`` does with an assembly."""
        return _imported(self.sample_path)


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


DEFAULT = "text-to-image"
TASKS = {
    DEFAULT: Task(
        config_path="burnish.diffusion.config:FlowConfig",
        words=PICTURES,
        assembly_path="burnish.diffusion.assembly:FlowAssembly",
        sample_path="burnish.commands.drawing:draw",
        read_path="burnish.data.prompts:read_prompts",
    ),
    "image-text-to-text": Task(
        config_path="burnish.language.config:LanguageConfig",
        words=RESPONSES,
        assembly_path="burnish.language.assembly:LanguageAssembly",
        sample_path="burnish.commands.answer:answer",
        read_path="burnish.data.language.prompts:read_questions",
    ),
}


def task_named(name: Any) -> Task:
    """The task of that name.

    Raises:
        ConfigError: there is no such task.
    """
    if not isinstance(name, str) or name not in TASKS:
        raise ConfigError(wrong_choice("task", name, list(TASKS)))
    return TASKS[name]


def chosen_task(trees: Sequence[Mapping[str, Any]]) -> Any:
    """The task of a run: what its recipes say, or the only one that knows their algorithm and their rewards.

    Args:
        trees: the command line, the recipe, and what it extends, in this order.
    """
    for tree in trees:
        if "task" in tree:
            return tree["task"]
    # plugins of installed packages are opened only where somebody names what is not ours
    for is_there in (lambda kind, name: name in names(kind), known):
        for name, task in TASKS.items():
            if all(is_there(getattr(task.config, kind), used) for kind, used in _used(trees)):
                return name
    return DEFAULT


def _used(trees: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The algorithms and rewards that recipes name, each with the attribute that names its kind."""
    for tree in trees:
        algorithm, rewards = tree.get("algorithm"), tree.get("rewards")
        if isinstance(algorithm, Mapping) and "name" in algorithm:
            yield "algorithm_kind", algorithm["name"]
        for label, options in rewards.items() if isinstance(rewards, Mapping) else ():
            if options is not None:
                yield "reward_kind", options.get("name", label) if isinstance(options, Mapping) else label
