"""The tasks that Burnish trains for: which class of configuration each has."""

from __future__ import annotations

from typing import Any

from burnish.config.complaints import wrong_choice
from burnish.config.flow import FlowConfig
from burnish.config.language import LanguageConfig
from burnish.config.run import RunConfig
from burnish.errors import ConfigError

TASKS: dict[str, type[RunConfig]] = {"text-to-image": FlowConfig, "image-text-to-text": LanguageConfig}


def config_class(task: Any) -> type[RunConfig]:
    """The configuration of a task.

    Raises:
        ConfigError: there is no such task.
    """
    if not isinstance(task, str) or task not in TASKS:
        raise ConfigError(wrong_choice("task", task, list(TASKS)))
    return TASKS[task]
