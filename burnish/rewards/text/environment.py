"""The environment's own word on a dialogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from burnish.registry import register
from burnish.rewards.base import AnyReward, Verdict
from burnish.rewards.text.base import LanguageReward, Response

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.types.prompt import Prompt


@register("language reward", "environment")
class EnvironmentReward(LanguageReward):
    """What the environment gave for the responses of a dialogue; missing where it gave nothing."""

    total: Literal["sum", "last"] = "sum"
    """The sum of what it gave, or what it gave last."""

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [self._verdict(response) for response in responses]

    def _verdict(self, response: Response) -> Verdict:
        if response.dialogue is None:
            return Verdict(None, (), "there was no environment")
        given = [reward for reward in response.dialogue.rewards if reward is not None]
        if not given:
            return Verdict(None, (), "the environment gave no reward")
        turns = len(response.dialogue.rewards)
        return Verdict(sum(given) if self.total == "sum" else given[-1], (), f"{turns} turn{'s' * (turns > 1)}")


def turn_rewards(
    rewards: Mapping[str, AnyReward], responses: Sequence[Response], prompts: Sequence[Prompt], turns: int
) -> Tensor:
    """What the turns of dialogues add to their rewards, each by itself.

    Args:
        rewards: by label; those that sum up what the environment gave count, with their weights.
        responses: B of them.
        prompts: one per response.
        turns: responses that a dialogue can have.

    Returns:
        [B, turns] float32, 0 where nothing was given.
    """
    import torch

    found = torch.zeros(len(responses), turns)
    summed = [one for one in rewards.values() if isinstance(one, EnvironmentReward) and one.total == "sum"]
    for own, response, prompt in zip(found, responses, prompts, strict=True):
        weight = sum(one.weight for one in summed if one.judges(prompt))
        given = response.dialogue.rewards if response.dialogue is not None else ()
        for turn, reward in enumerate(given):
            own[turn] = weight * (reward or 0.0)
    return found
