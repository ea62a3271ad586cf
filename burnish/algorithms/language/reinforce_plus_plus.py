"""REINFORCE++: no critic and no groups, advantages whitened over the batch (Hu 2025, arXiv:2501.03262)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.algorithms.language.ratio import Clipped
from burnish.algorithms.language.turns import TurnRewards
from burnish.options import Fraction
from burnish.registry import options, register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import TokenRewards


@register("language algorithm", "reinforce_plus_plus")
@options
class ReinforcePlusPlus(TurnRewards, Clipped):
    """PPO's surrogate on discounted returns. The paper takes a KL off the rewards: kl.route=reward."""

    gamma: Fraction = 1.0
    """Discount of rewards per token."""
    whiten: bool = True
    """Bring the returns of an update to mean 0 and spread 1, over all tokens: its only baseline."""

    def advantages(self, rewards: TokenRewards) -> tuple[Tensor, Tensor]:
        from burnish.advantages import returns, whiten

        found = returns(rewards.tokens, rewards.mask, gamma=self.gamma)
        return (whiten(found, rewards.mask, unbiased=True) if self.whiten else found), found
