"""What a reward on text is: it looks at responses, and at prompts only for what was asked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from burnish.registry import options
from burnish.rewards.base import AnyReward, Verdict
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

POLICY = "policy"  # who speaks for itself in a dialogue


@dataclass(frozen=True)
class Dialogue:
    """What policy and environment said to each other behind the prompt."""

    said: tuple[tuple[str, str], ...]  # who, POLICY or a role, and its words, in order
    rewards: tuple[float | None, ...]  # the environment's, one for each response of the policy
    broken: str = ""  # why nothing can be judged: what the environment failed with
    pictures: tuple[Any, ...] = field(default=(), compare=False, repr=False)  # PIL, in the order of their places

    def __getstate__(self) -> dict[str, Any]:
        """Words alone go to another process."""
        return vars(self) | {"pictures": ()}

    @property
    def responses(self) -> list[str]:
        """What the policy said."""
        return [words for who, words in self.said if who == POLICY]


@dataclass(frozen=True)
class Response:
    """What a model wrote, and nothing of what it was told: tags in a prompt can't satisfy a reward."""

    text: str  # the last response of a dialogue
    finished: bool = True  # false where it was cut at the limit of new tokens
    dialogue: Dialogue | None = None  # all of it, where there is an environment

    @property
    def whole(self) -> str:
        """For people: all that was said behind the prompt."""
        if self.dialogue is None:
            return self.text
        return "\n".join(words if who == POLICY else f"[{who}] {words}" for who, words in self.dialogue.said)


@options
class LanguageReward(AnyReward):
    """Base of rewards on text. A subclass is a dataclass of its own options and is registered under its name."""

    judged: ClassVar[str] = "responses"

    labels: list[str] = Field(default_factory=list)
    """Judge only prompts whose label is one of these; an empty list judges all. Rewards with weights of their own for
    each label mix tasks in one run."""

    def judges(self, prompt: Prompt) -> bool:
        return not self.labels or prompt.label in self.labels

    def unable(self, sample: Response) -> str:
        return "" if sample.dialogue is None else sample.dialogue.broken

    @abstractmethod
    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        """Judge responses.

        Args:
            responses: what was written, the response alone.
            prompts: what each response answers, with the right answer if there is one.

        Returns:
            One verdict per response. One that can't be judged has the value None and the reason as its note.
        """

    def needs_answers(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts without a right answer.

        Raises:
            UserError: this reward judges one that has none.
        """
        for prompt in prompts:
            if self.judges(prompt) and not (prompt.answer or "").strip():
                raise UserError(
                    f"reward {self.name} can't judge prompt {prompt.text[:60]!r}: it has no answer; give it in the "
                    "record, name its key with data.answer_key, or leave such prompts out with labels"
                )


def check_labels(rewards: Sequence[LanguageReward], prompts: Sequence[Prompt]) -> None:
    """Refuse prompts that no reward with a weight judges.

    Raises:
        UserError: there is one; the message names its label and those that are judged.
    """
    counted = [reward for reward in rewards if reward.weight]
    for prompt in prompts:
        if not any(reward.judges(prompt) for reward in counted):
            known = sorted({label for reward in counted for label in reward.labels})
            raise UserError(
                f"no reward with a weight judges prompt {prompt.text[:60]!r}, whose label is {prompt.label!r}; "
                f"those judged are {', '.join(known)}. Add the label to a reward, or give one without labels"
            )
