"""Base of rewards on text, the responses that they score, and the environment's rewards of a dialogue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from burnish.registry import options, register
from burnish.rewards.base import AnyReward, Score
from burnish.utils.terminal import counted

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.types.prompt import Prompt

POLICY = "policy"  # speaker of the responses in a dialogue


@dataclass(frozen=True)
class Dialogue:
    """The messages of policy and environment after the prompt."""

    said: tuple[tuple[str, str], ...]  # speaker (POLICY or a role) and text, in order
    rewards: tuple[float | None, ...]  # the environment's, one for each response of the policy
    error: str = ""  # of the environment, which makes every reward missing
    images: tuple[Any, ...] = field(default=(), compare=False, repr=False)  # PIL, in the order of their positions

    def __getstate__(self) -> dict[str, Any]:
        """Without images: scoring processes get text only."""
        return vars(self) | {"images": ()}

    @property
    def responses(self) -> list[str]:
        """The policy's responses."""
        return [words for who, words in self.said if who == POLICY]


@dataclass(frozen=True)
class Response:
    """The model's output without the prompt, so that tags in a prompt can't satisfy a reward."""

    text: str  # the last response of a dialogue
    finished: bool = True  # false if it was truncated at the limit of new tokens
    dialogue: Dialogue | None = None  # with an environment
    image: Any = None  # uint8 [H, W, 3], of a model whose tokens are an image

    @property
    def sample(self) -> Any:
        """What rewards score."""
        return self if self.image is None else self.image

    @property
    def full_text(self) -> str:
        """Everything after the prompt, to be shown."""
        if self.dialogue is None:
            return self.text
        return "\n".join(words if who == POLICY else f"[{who}] {words}" for who, words in self.dialogue.said)


@options
class LanguageReward(AnyReward):
    """Base of rewards on text. A subclass is a dataclass of its own options and is registered under its name."""

    judged: ClassVar[str] = "responses"

    labels: list[str] = Field(default_factory=list)
    """Score only prompts with one of these labels; an empty list scores all. Rewards with different labels mix tasks in
    one run."""

    def applies_to(self, prompt: Prompt) -> bool:
        return not self.labels or prompt.label in self.labels

    def unable(self, sample: Any) -> str:
        if not isinstance(sample, Response):
            return f"{self.name} scores responses, and this is not a text"
        return "" if sample.dialogue is None else sample.dialogue.error

    @abstractmethod
    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Score]:
        """Score responses.

        Args:
            responses: without their prompts.
            prompts: of each response, with the right answer if there is one.

        Returns:
            One score per response; one that can't be scored has the value None, and the reason as its note.
        """


@register("language reward", "environment")
class EnvironmentReward(LanguageReward):
    """The environment's rewards for the responses of a dialogue; missing if it gave none."""

    total: Literal["sum", "last"] = "sum"
    """sum: of all turns; last: the last one given."""

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Score]:
        return [self._score(response) for response in responses]

    def _score(self, response: Response) -> Score:
        if response.dialogue is None:
            return Score(None, "there was no environment")
        given = [reward for reward in response.dialogue.rewards if reward is not None]
        if not given:
            return Score(None, "the environment gave no reward")
        turns = len(response.dialogue.rewards)
        return Score(sum(given) if self.total == "sum" else given[-1], counted(turns, "turns"))


def turn_rewards(
    rewards: Mapping[str, AnyReward], responses: Sequence[Response], prompts: Sequence[Prompt], turns: int, update: int
) -> Tensor:
    """The weighted rewards of single turns.

    Args:
        rewards: by label; only environment rewards with total=sum count.
        responses: B of them.
        prompts: one per response.
        turns: most responses of a dialogue.
        update: the policy update, which weights may depend on.

    Returns:
        [B, turns] float32, 0 where the environment gave no reward.
    """
    import torch

    found = torch.zeros(len(responses), turns)
    summed = [one for one in rewards.values() if isinstance(one, EnvironmentReward) and one.total == "sum"]
    for own, response, prompt in zip(found, responses, prompts, strict=True):
        weight = sum(one.weight_for(prompt, update) for one in summed if one.applies_to(prompt))
        given = response.dialogue.rewards if response.dialogue is not None else ()
        for turn, reward in enumerate(given):
            own[turn] = weight * (reward or 0.0)
    return found
