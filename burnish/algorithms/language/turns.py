"""Rewards of single turns, for algorithms in which it matters where a reward stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from burnish.algorithms.language.policy_gradient import TokenPolicyGradient
from burnish.registry import options

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.types.rollout import ScoredResponses


@options
class TurnRewards(TokenPolicyGradient):
    """Base of algorithms whose advantages follow from where in a response a reward was earned."""

    turn_rewards: bool = False
    """Each reward of the environment counts from its own turn back, not from the end of the dialogue; what else was
    earned stands at the end as ever."""

    @model_validator(mode="after")
    def _parts_stay_parts(self) -> Self:
        scaled = [name for name in ("reward_norm", "reward_clip") if getattr(self, name)]
        if self.turn_rewards and scaled:
            raise ValueError(
                f"turn_rewards is true, but {scaled[0]} changes the sum of the turns, not the turns; leave one of them "
                "out"
            )
        return self

    def placed(self, answered: ScoredResponses, reward: Tensor, mask: Tensor) -> Tensor:
        from burnish.advantages import place_reward, place_step_rewards, turn_numbers

        if not self.turn_rewards:
            return super().placed(answered, reward, mask)
        turns = answered.turn_rewards
        rest = place_reward(reward - turns.sum(1), mask)
        return rest + place_step_rewards(turns, turn_numbers(mask), mask)
