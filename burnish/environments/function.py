"""Environments from users' classes."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from burnish.environments.base import Environment, Episode
from burnish.registry import register
from burnish.utils.errors import UserError
from burnish.utils.user_code import load_object


@register("environment", "function")
class FunctionEnvironment(Environment):
    """A class, or any callable, that returns an episode: an object with reset(prompt, seed) and step(response)."""

    path: str
    """Where it is: package.module:Game, or path/to/file.py:Game."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of every episode."""

    def episode(self) -> Episode:
        episode: Episode = load_object(self.path, "environment")(**self.arguments)
        return episode

    def user_code(self) -> list[str]:
        return [self.path]

    def check(self) -> None:
        try:
            episode = self.episode()
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            what = f"environment.path is {self.path!r}, which can't be created with environment.arguments"
            raise UserError(f"{what} {self.arguments}: {type(error).__name__}: {error}") from error
        lacking = [name for name in ("reset", "step") if not callable(getattr(episode, name, None))]
        if lacking:
            raise UserError(
                f"environment.path is {self.path!r}, but what it returns has no method {' and no '.join(lacking)}; an "
                "episode has reset(prompt, seed) and step(response)"
            )
