"""What a reward is: it looks at samples and their prompts and gives a verdict on each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from burnish.options import Finite
from burnish.registry import Named, options

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt


@dataclass(frozen=True)
class Verdict:
    """A reward's word on one sample. A ``value`` of None means that there is none: missing, never zero."""

    value: float | None
    extras: tuple[float, ...] = ()  # one per name in AnyReward.extras: logged, never optimised
    note: str = ""  # for people: the text that was read, or why the value is missing
    asked: bool = True  # False: this reward does not judge the prompt at all, so that nothing is missing
    fault: str = ""  # where the reward itself failed, and not the sample: the traceback, or what it gave instead


@options
class AnyReward(Named, ABC):
    """Base of all rewards, whatever they judge."""

    extras: ClassVar[tuple[str, ...]] = ()
    judged: ClassVar[str] = "samples"  # what its samples are, for messages

    weight: Finite = 1.0
    """Share in the sum that is optimised; 0 only watches: logged, never optimised."""

    @abstractmethod
    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> list[Verdict]:
        """Judge samples: one verdict each. One that can't be judged has the value None and the reason as its note."""

    def judges(self, prompt: Prompt) -> bool:
        """Whether this reward has anything to say about what a prompt asks for."""
        return True

    def unable(self, sample: Any) -> str:
        """Why nobody can judge a sample, which makes its verdict missing; empty where it can be judged."""
        return ""

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse what this reward can never judge, before anything is sampled; a ValueError says which."""

    def user_code(self) -> list[str]:
        """Paths of functions of the user that it calls, as ``burnish.utils.user_code`` takes them."""
        return []

    def prepare(self) -> None:
        """Load what scoring needs, so that the first batch need not wait for it."""


@options
class Reward(AnyReward):
    """Base of rewards on pictures. A subclass is a dataclass of its own options and is registered under its name."""

    judged: ClassVar[str] = "pictures"

    def unable(self, sample: Any) -> str:
        from burnish.utils.images import NOT_FINITE, NonFiniteImage

        return NOT_FINITE if isinstance(sample, NonFiniteImage) else ""

    @abstractmethod
    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        """Judge pictures.

        Args:
            images: uint8 arrays [H, W, 3], RGB; sizes may differ.
            prompts: what each picture was asked to show.

        Returns:
            One verdict per picture. One that can't be judged has the value None and the reason as its note.
        """

    def differentiable(self, pictures: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """The same judgement with gradients, for algorithms that follow them; a reward need not have it.

        Args:
            pictures: [B, 3, H, W] RGB in [0, 1], on any device.
            prompts: what each picture was asked to show.

        Returns:
            [B]. It may differ from ``score`` by what rounding to whole pixel values changes.
        """
        raise NotImplementedError

    @classmethod
    def has_gradients(cls) -> bool:
        """Whether there is a differentiable form of it."""
        return cls.differentiable is not Reward.differentiable
