"""What an environment is: options of a run, which make one episode for each dialogue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from burnish.options import Count
from burnish.registry import Named, options

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from burnish.types.prompt import Prompt

SHOWN = "[picture]"  # what stands for a picture where only words are shown


@dataclass(frozen=True)
class Observation:
    """What an environment says next: words and pictures, and what it thinks of the response before them."""

    content: str | Sequence[str | Image | np.ndarray] = ()  # in their order; arrays are uint8 [H, W, 3]
    reward: float | None = None  # of the response; None gives none
    done: bool = False  # the dialogue is over; what is said then is shown to people, and read by nobody
    role: str = "user"  # who says it, as the chat template knows the role

    def __post_init__(self) -> None:
        parts = (self.content,) if isinstance(self.content, str) else tuple(self.content)
        object.__setattr__(self, "content", tuple(_part(part) for part in parts))
        if self.reward is not None:
            object.__setattr__(self, "reward", float(self.reward))

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The content as a chat template reads it."""
        return [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in self.content]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The content as messages; each text of role tool is the result of one call, and a message of its own."""
        if self.role == "tool" and not self.pictures and self.parts:
            return [{"role": self.role, "content": [part]} for part in self.parts]
        return [{"role": self.role, "content": self.parts}]

    @property
    def pictures(self) -> list[Image]:
        """The pictures, in their order."""
        return [part for part in self.content if not isinstance(part, str)]  # type: ignore[misc]

    @property
    def words(self) -> str:
        """The content for people."""
        between = "\n" if self.role == "tool" else ""
        return between.join(part if isinstance(part, str) else SHOWN for part in self.content)


def _part(part: Any) -> Any:
    if isinstance(part, str):
        return part
    from PIL import Image

    if isinstance(part, Image.Image):
        return part.convert("RGB")
    try:
        return Image.fromarray(part).convert("RGB")
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError(
            f"an observation holds {type(part).__name__}, which is neither text nor a picture: {error}"
        ) from None


class Episode(Protocol):
    """One dialogue as the environment sees it. What it does is a function of the prompt, the seed and the responses."""

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        """Begin.

        Args:
            prompt: what the policy is asked.
            seed: for what is drawn: the same for all of a group, so that what is compared with each other begins alike.

        Returns:
            What the policy is told besides the prompt, as part of it; often nothing. Neither rewarded nor done.
        """
        ...

    def step(self, response: str) -> Observation:
        """What comes of a response. An exception makes the reward of this dialogue missing, and of no other."""
        ...


@options
class Environment(Named, ABC):
    """Base of environments. A subclass is a dataclass of its own options and is registered under its name."""

    max_turns: Count = 4
    """Responses of one dialogue; after the last one it ends, whatever the environment would say."""
    max_length: Count | None = None
    """Tokens of a whole dialogue behind its prompt, the environment's included; one that would be longer is cut and
    counts as truncated. null sets no bound but max_turns responses of rollout.max_new_tokens each."""

    @abstractmethod
    def episode(self) -> Episode:
        """A fresh one, for one dialogue."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Who is known beforehand to answer the policy: a chat template that refuses them is refused at the start."""
        return ()

    def tools(self) -> list[dict[str, Any]]:
        """JSON schemas of functions that the policy may call, for chat templates that show them."""
        return []

    def check(self) -> None:
        """Refuse what can never work, before any weights are loaded; a ValueError says what."""

    def user_code(self) -> list[str]:
        """Paths of the user's own code that it runs, as ``burnish.utils.user_code`` takes them."""
        return []

    def close(self) -> None:
        """End what runs beside this process."""

    def longest(self, response: int) -> int:
        """Tokens that the policy can write in a dialogue, if ``response`` is the limit of one response."""
        whole = self.max_turns * response
        return whole if self.max_length is None else min(whole, self.max_length)
