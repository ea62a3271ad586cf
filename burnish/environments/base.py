"""Environments: options of a run, from which one episode per dialogue is created, and how many are asked at once."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field

from burnish.options import Count, Seconds
from burnish.registry import Choice, Named, options, register
from burnish.utils.errors import UserError
from burnish.utils.media import as_shown, of_array, of_frames

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from burnish.types.prompt import LabelledTools, Prompt

IMAGE, VIDEO = "[image]", "[video]"  # replace these where only text is shown
POLL = 0.05  # seconds between looks at what is under way


@dataclass(frozen=True)
class Observation:
    """What an environment says next: text, images and videos, and the reward of the response before."""

    # in order; arrays are images, uint8 [H, W, 3], or videos of which every frame is shown, uint8 [T, H, W, 3]
    content: str | Sequence[str | Image | np.ndarray] = ()
    reward: float | None = None  # of the response
    done: bool = False  # the dialogue is over; this content is shown in reports, and not to the policy
    role: str = "user"  # of the message, for the chat template
    prompt: Prompt | None = None  # the whole conversation to answer; the content is then what reports show of it

    def __post_init__(self) -> None:
        parts = (self.content,) if isinstance(self.content, str) else tuple(self.content)
        object.__setattr__(self, "content", tuple(map(_part, parts)))
        if self.reward is not None:
            object.__setattr__(self, "reward", float(self.reward))

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The content as parts of a chat message."""
        return [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": ("image", "video")[is_video(part)]}
            for part in self.content
        ]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The content as chat messages; with role tool each text is a message, the result of one call."""
        if self.role == "tool" and all(isinstance(part, str) for part in self.content) and self.parts:
            return [{"role": self.role, "content": [part]} for part in self.parts]
        return [{"role": self.role, "content": self.parts}]

    @property
    def images(self) -> list[Image]:
        """The images, in order."""
        return [part for part in self.content if not isinstance(part, str) and not is_video(part)]  # type: ignore[misc]

    @property
    def videos(self) -> list[np.ndarray]:
        """The videos, uint8 [T, H, W, 3], in order."""
        return [part for part in self.content if is_video(part)]  # type: ignore[misc]

    @property
    def words(self) -> str:
        """The content as text, to be shown."""
        between = "\n" if self.role == "tool" else ""
        named = [part if isinstance(part, str) else VIDEO if is_video(part) else IMAGE for part in self.content]
        return between.join(named)


def is_video(part: Any) -> bool:
    """Whether this is an array of frames."""
    return getattr(part, "ndim", 0) == 4


def _part(part: Any) -> Any:
    if isinstance(part, str):
        return part.encode(errors="replace").decode()  # half of a surrogate pair is no character
    try:
        return shown(part)
    except (AttributeError, TypeError, ValueError, OSError) as error:
        raise TypeError(
            f"an observation holds {type(part).__name__}, which is neither text nor an image: {error}"
        ) from None


def shown(part: Any) -> Any:
    """An image as PIL, or the array of the frames of a video."""
    from PIL import Image

    if is_video(part):
        return of_frames(part)
    return as_shown(part) if isinstance(part, Image.Image) else of_array(part)


class Episode(Protocol):
    """One dialogue. It must be a function of the prompt, the seed and the responses."""

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        """Begin.

        Args:
            prompt: of the dialogue.
            seed: for random draws; equal for all samples of a group, which are compared with each other.

        Returns:
            What is added to the prompt, often nothing; without reward and not done.
        """

    def step(self, response: str) -> Observation:
        """React to a response. An exception makes the rewards of this dialogue missing, and of no other."""


@options
class Environment(Named, ABC):
    """Base of environments. A subclass is a dataclass of its own options and is registered under its name."""

    max_turns: Count = 4
    """Responses per dialogue; it ends after the last one."""
    max_length: Count | None = None
    """Tokens of a dialogue after its prompt, the environment's included; a longer one is truncated. null sets no limit
    beyond max_turns responses of rollout.max_new_tokens each."""

    history: Literal["tokens", "template"] = "tokens"
    """What a turn sees of the turns before it. tokens: token for token what was sampled, thoughts included. template:
    what the chat template writes of the conversation then; where that drops thoughts of earlier turns (Qwen3, GLM), the
    turn learns after the conversation as it was shown."""
    concurrency: Count = 1
    """Dialogues that are answered at the same time, in threads: for environments that wait for something, such as
    tools or a server. Episodes must not share what they change."""
    deadline: Seconds | None = None
    """Seconds that an environment may take for an answer; the rewards of a dialogue that waits longer are missing.
    null waits for ever."""

    @abstractmethod
    def episode(self) -> Episode:
        """A new episode, for one dialogue."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the environment's messages, to check before the run that the chat template accepts them."""
        return ()

    def tools(self) -> LabelledTools:
        """JSON schemas of functions that the policy may call, for chat templates that describe tools."""
        return {}

    def check(self) -> None:
        """Check options before weights are loaded.

        Raises:
            UserError: an option can't work.
        """

    def check_prompts(self, prompts: Iterable[Prompt]) -> None:
        """Check prompts before weights are loaded.

        Raises:
            UserError: it has no dialogue for one.
        """

    def user_code(self) -> list[str]:
        """Paths of the user's own code that it runs, as ``burnish.utils.user_code`` takes them."""
        return []

    def close(self) -> None:
        """End processes of the environment."""

    def generators(self) -> list[dict[str, Any]]:
        """Arguments of every ``PromptEnhancer`` that draws in the process that samples: a forecast draws with it."""
        return []

    def longest(self, response: int) -> int:
        """Most tokens of the policy in a dialogue, if ``response`` is the limit of one response."""
        total = self.max_turns * response
        return total if self.max_length is None else min(total, self.max_length)


def _given(tree: Any) -> Any:
    """Null removes an environment of a recipe that is extended, as it does a reward."""
    return {label: one for label, one in tree.items() if one is not None} if isinstance(tree, dict) else tree


@register("environment", "by_label")
class LabelledEnvironment(Environment):
    """Another environment for the prompts of each label (``data.label_key``). A prompt without a label has none."""

    environments: Annotated[dict[str, Annotated[Any, Choice("environment")]], BeforeValidator(_given)] = Field(
        min_length=1
    )
    """Environments by label, each with a name and the options of its kind. How long dialogues are, and how many are
    answered at a time, is an option of this environment alone."""

    def episode(self) -> Episode:
        return _OfLabel(self.environments)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple({role for environment in self.environments.values() for role in environment.roles})

    def tools(self) -> LabelledTools:
        return {label: tools for label, one in self.environments.items() for tools in one.tools().values()}

    def user_code(self) -> list[str]:
        return [path for environment in self.environments.values() for path in environment.user_code()]

    def check(self) -> None:
        for label, environment in self.environments.items():
            of_all = {field.name for field in fields(Environment)}
            for name, default in ((field.name, field.default) for field in fields(environment)):
                if name in of_all and getattr(environment, name) != default:
                    raise UserError(
                        f"environment.environments.{label}.{name} is {getattr(environment, name)!r}, which holds for "
                        f"all labels; give environment.{name}"
                    )
            environment.check()

    def check_prompts(self, prompts: Iterable[Prompt]) -> None:
        labels, known = {prompt.label: prompt for prompt in prompts}, ", ".join(self.environments)
        for label in sorted(labels.keys() - {None, *self.environments}, key=str):
            raise UserError(
                f"{labels[label].name} has label {label!r}, but environment.environments has {known}; add one of this "
                "label, or correct it"
            )
        if labels.keys() == {None}:
            raise UserError(
                f"environment.environments has {known}, but no prompt has a label; set data.label_key to the records' "
                "key, or leave environment out"
            )

    def close(self) -> None:
        for environment in self.environments.values():
            environment.close()

    def generators(self) -> list[dict[str, Any]]:
        return [one for environment in self.environments.values() for one in environment.generators()]


class _OfLabel:
    """The episode of the environment that a prompt's label chooses, made when the prompt is known."""

    def __init__(self, environments: dict[str, Environment]) -> None:
        self._environments = environments
        self._episode: Episode | None = None

    def reset(self, prompt: Prompt, seed: int) -> Any:
        if prompt.label is None:
            return Observation()
        if prompt.label not in self._environments:
            raise ValueError(
                f"label {prompt.label!r} has no environment; environment.environments has "
                f"{', '.join(self._environments)}"
            )
        self._episode = self._environments[prompt.label].episode()
        return self._episode.reset(prompt, seed)

    def step(self, response: str) -> Any:
        return Observation(done=True) if self._episode is None else self._episode.step(response)


def answers(
    environment: Environment, asked: Sequence[Callable[[], Any]], check_cancelled: Callable[[], None]
) -> list[Any]:
    """What each question to an environment gives, in order; an exception where one fails or takes too long.

    Args:
        environment: says how many are asked at a time, and how long one may take: its thread is left behind then. One
            at a time and without a deadline, all are asked in this thread.
        asked: questions.
        check_cancelled: is called again and again; what it raises ends the wait.
    """
    concurrency, deadline = environment.concurrency, environment.deadline
    if concurrency == 1 and deadline is None:
        answered = []
        for ask in asked:
            check_cancelled()
            answered.append(_answer(ask))
        return answered
    results: list[Any] = [None] * len(asked)
    waiting = list(range(len(asked)))[::-1]
    under_way: dict[Future[Any], tuple[int, float]] = {}  # the question's number, and when it was asked
    while waiting or under_way:
        check_cancelled()
        while waiting and len(under_way) < concurrency:
            future, row = Future[Any](), waiting.pop()
            under_way[future] = row, time.monotonic()
            # a daemon: one that never returns must not keep the run from ending
            threading.Thread(target=_settle, args=(future, asked[row]), daemon=True).start()
        wait(under_way, POLL, FIRST_COMPLETED)
        for future, (row, begun) in list(under_way.items()):
            if future.done():
                results[row] = future.result()
            elif deadline is not None and time.monotonic() - begun > deadline:
                results[row] = TimeoutError(f"it took longer than {deadline:g} s (environment.deadline)")
            else:
                continue
            del under_way[future]
    return results


def _settle(future: Future[Any], ask: Callable[[], Any]) -> None:
    future.set_result(_answer(ask))


def _answer(ask: Callable[[], Any]) -> Any:
    """What a question gives, or the exception that it raises: an environment may be the user's."""
    try:
        return ask()
    except (Exception, SystemExit) as error:
        return error
