"""Environments of users: classes that return an episode, and those of Gymnasium and servers of OpenEnv, of which what
they show becomes text and images, and what a response says becomes an action."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, Field

from burnish.environments.base import Environment, Episode, Observation
from burnish.registry import register
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from burnish.utils.user_code import load_object

Shown = list[Any]  # texts and images
BEGINNING = re.compile(r"[\[{]")  # of a JSON list or object


@register("environment", "function")
class FunctionEnvironment(Environment):
    """A class, or any callable, that returns an episode: an object with reset(prompt, seed) and step(response), an
    environment of Gymnasium, or a client of OpenEnv."""

    path: str
    """Where it is: package.module:Game, path/to/file.py:Game, gymnasium:make or openenv:GenericEnvClient."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of every episode."""

    def episode(self) -> Episode:
        made: Any = load_object(self.path, "environment")(**self.arguments)
        if isinstance(made, _imported("gymnasium", "Env")):
            return GymEpisode(made)
        if isinstance(made, _imported("openenv.core", "EnvClient")):
            return ServedEpisode(made)
        return made  # type: ignore[no-any-return]

    def user_code(self) -> list[str]:
        return [self.path]

    def generators(self) -> list[dict[str, Any]]:
        from burnish.environments.drawing import PromptEnhancer

        return [self.arguments] if load_object(self.path, "environment") is PromptEnhancer else []

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


def _imported(package: str, name: str) -> Any:
    """A class of a library, if something of it is in use."""
    return getattr(sys.modules.get(package), name, ())


class GymEpisode:
    """One dialogue with a ``gymnasium.Env``.

    The policy sees what the environment renders (``render_mode`` ansi or rgb_array), and without that its observations.
    The record's own keys are the ``options`` of its reset.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        observation, _ = self._env.reset(seed=seed, options=prompt.info or None)
        return Observation(self._shown(observation))

    def step(self, response: str) -> Observation:
        try:
            action = action_in(response, self._env.action_space)
        except ValueError as error:
            return Observation(str(error), reward=0.0)
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return Observation(self._shown(observation), reward=float(reward), done=bool(terminated or truncated))

    def _shown(self, observation: Any) -> Shown:
        return shown(self._env.render() if self._env.render_mode in ("ansi", "rgb_array") else observation)


class ServedEpisode:
    """One dialogue with a server of OpenEnv, through a client of its own (``openenv.core.EnvClient``).

    The last JSON object of a response is the action. The record's own keys go with the seed to its reset.
    """

    def __init__(self, client: Any) -> None:
        self._client = client.sync()

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        return Observation(shown(self._client.reset(**prompt.info, seed=seed).observation))

    def step(self, response: str) -> Observation:
        actions = [value for value in _values(response) if isinstance(value, dict)]
        if not actions:
            return Observation("There is no JSON object with an action in this response.", reward=0.0)
        try:
            result = self._client.step(actions[-1])
        except RuntimeError as error:
            if "VALIDATION_ERROR" not in str(error):  # what a server says of an action that has another form
                raise
            return Observation(str(error), reward=0.0)
        if result.done:
            self._client.close()
        return Observation(shown(result.observation), reward=result.reward, done=result.done)


def action_in(response: str, space: Any) -> Any:
    """The action that a response ends with.

    Args:
        response: of the policy.
        space: of the actions. Of a Discrete space the last whole number counts, of a Text space the response without
            surrounding whitespace, of others the last JSON value, a list or an object.

    Raises:
        ValueError: there is none, or it is not in the space.
    """
    kind, written = type(space).__name__, list[Any]()
    if kind == "Text":
        written = [response.strip()]
    elif kind == "Discrete":
        written = [int(number) for number in re.findall(r"-?\d{1,9}", response)]
    else:
        written = list(_values(response))
    try:
        action = _as_action(written[-1], space)
        if space.contains(action):
            return action
    except (IndexError, KeyError, TypeError, ValueError):  # it has another form than the space
        pass
    raise ValueError(f"There is no action of {space} in this response.")


def _as_action(value: Any, space: Any) -> Any:
    """A value of JSON in the types of a space."""
    if not hasattr(space, "spaces"):
        return space.from_jsonable([value])[0]
    if isinstance(value, dict):
        return {name: _as_action(value[name], part) for name, part in space.spaces.items()}
    return tuple(_as_action(one, part) for one, part in zip(value, space.spaces, strict=True))


def _values(text: str) -> Iterator[Any]:
    """The outermost JSON lists and objects of a text."""
    decoder, position = json.JSONDecoder(), 0
    while begin := BEGINNING.search(text, position):
        try:
            value, position = decoder.raw_decode(text, begin.start())
            yield value
        except (ValueError, RecursionError):
            position = begin.end()


def shown(observation: Any) -> Shown:
    """An observation as texts and images: uint8 [H, W, 3] is an image; what has names is shown with them."""
    if isinstance(observation, str):
        return [observation]
    if isinstance(observation, BaseModel):  # of OpenEnv
        return shown(observation.model_dump())
    if isinstance(observation, dict):
        return [part for name, value in observation.items() for part in (f"{name}: ", *shown(value), "\n")]
    if isinstance(observation, tuple):
        return [part for value in observation for part in (*shown(value), "\n")]
    import numpy as np

    array = np.asarray(observation)
    return [array] if array.dtype == np.uint8 and array.ndim == 3 else [json.dumps(array.tolist())]
