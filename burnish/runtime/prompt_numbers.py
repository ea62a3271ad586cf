"""Prompts with pictures of their own travel between processes as their numbers in the training data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

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
        given: Any = batch
        if not any(map(_embeds, given.prompts)):
            return batch
        numbered: T = replace(given, prompts=[self._places.get(id(prompt), prompt) for prompt in given.prompts])
        return numbered

    def named(self, batch: T) -> T:
        """The opposite."""
        given: Any = batch
        prompts = [self._prompts[one] if isinstance(one, int) else one for one in given.prompts]
        named: T = replace(given, prompts=prompts)
        return named


def _embeds(prompt: Prompt) -> bool:
    """Whether pictures, videos or sounds are in the prompt itself."""
    media = (*prompt.media, *(one for _, one in prompt.inputs))
    return any(one.data is not None or one.frames for one in media)
