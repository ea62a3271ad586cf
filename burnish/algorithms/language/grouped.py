"""Advantages of responses relative to others to the same prompt, the same for each of their tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from burnish.algorithms.language.base import LanguageNeeds
from burnish.algorithms.language.policy_gradient import TokenPolicyGradient
from burnish.options import Positive
from burnish.registry import options

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import TokenRewards

EPS = 1e-6


@options
class Grouped(TokenPolicyGradient):
    """Base of algorithms that judge a response by the others to its prompt."""

    def needs(self) -> LanguageNeeds:
        return replace(super().needs(), groups=True)

    def response_advantages(self, rewards: TokenRewards) -> Tensor:
        """Advantages of responses, [B], exactly 0 where a reward is missing."""
        raise NotImplementedError

    def advantages(self, rewards: TokenRewards) -> tuple[Tensor, Tensor]:
        from burnish.losses.tokens import masked

        one = masked(self.response_advantages(rewards)[:, None].expand(rewards.mask.shape), rewards.mask)
        return one, one


@options
class GroupScaled(Grouped):
    """GRPO's advantage: reward minus the mean of the group, over a standard deviation."""

    advantage_std: Literal["group", "global", "none"] = "group"
    """Divide advantages by the std of the group, of the whole batch, or not at all."""
    advantage_eps: Positive = EPS
    """Added to that std."""
    advantage_unbiased: bool = True
    """Whether that std divides by n - 1, as verl and TRL do, or by n."""

    @model_validator(mode="after")
    def _advantage_options_are_read(self) -> Self:
        if self.advantage_std == "none" and (self.advantage_eps != EPS or not self.advantage_unbiased):
            raise ValueError("advantage_eps and advantage_unbiased are never read when advantage_std is none")
        return self

    def response_advantages(self, rewards: TokenRewards) -> Tensor:
        from burnish.advantages import group_advantages

        return group_advantages(
            rewards.outcome,
            rewards.group,
            rewards.missing,
            scale=self.advantage_std,
            eps=self.advantage_eps,
            unbiased=self.advantage_unbiased,
        )
