"""Prompts with pictures of their own travel between processes as their numbers in the training data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from burnish.rollout.requests import RolloutRequest
from burnish.types.prompt import Prompt

T = TypeVar("T")  # RolloutRequest or Rollouts, whose ``prompts`` are numbers on the way


class PromptNumbers:
    """Prompts of the training data by their place in it, which every process reads alike.

    A prompt whose media are files is as short as its number would be, and travels as it is; so does one that came from
    a checkpoint.
    """

    def __init__(self, prompts: Callable[[], Sequence[Prompt]]) -> None:
        """Args: ``prompts`` reads the training data, where a process has not done so yet."""
        self._read = prompts

    @cached_property
    def _prompts(self) -> Sequence[Prompt]:
        return self._read()

    @cached_property
    def _places(self) -> dict[int, int]:
        return {id(prompt): place for place, prompt in enumerate(self._prompts) if _embeds(prompt)}

    def numbered(self, batch: T) -> T:
        """The same with numbers in place of prompts."""
        return self._with(batch, lambda prompts: [self._number(one) for one in prompts])

    def named(self, batch: T) -> T:
        """The opposite."""
        return self._with(
            batch, lambda prompts: [self._prompts[one] if isinstance(one, int) else one for one in prompts]
        )

    def _number(self, prompt: Prompt) -> int | Prompt:
        return self._places.get(id(prompt), prompt) if _embeds(prompt) else prompt

    def _with(self, batch: T, change: Callable[[Sequence[Any]], list[Any]]) -> T:
        given: Any = batch
        changed: T = replace(given, prompts=change(given.prompts))
        if isinstance(changed, RolloutRequest):
            changed.ahead = change(changed.ahead)
        return changed


def _embeds(prompt: Prompt) -> bool:
    """Whether pictures, videos or sounds are in the prompt itself."""
    media = (*prompt.media, *(one for _, one in prompt.inputs))
    return any(one.data is not None or one.frames for one in media)
