"""The environment's rewards of a dialogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from burnish.registry import register
from burnish.rewards.base import AnyReward, Score
from burnish.rewards.text.base import LanguageReward, Response

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.types.prompt import Prompt


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
        return Score(sum(given) if self.total == "sum" else given[-1], f"{turns} turn{'s' * (turns > 1)}")


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
