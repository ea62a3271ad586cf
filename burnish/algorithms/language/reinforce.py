"""REINFORCE: the policy gradient itself (Williams 1992)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from burnish.algorithms.language.turns import TurnRewards
from burnish.options import Fraction
from burnish.registry import options, register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import TokenRewards


@register("language algorithm", "reinforce")
@options
class Reinforce(TurnRewards):
    """Log-prob times return. Nothing is clipped, so it is meant for one optimizer step per update."""

    gamma: Fraction = 1.0
    """Discount of rewards per token."""
    whiten: bool = True
    """Bring the returns of an update to mean 0 and spread 1, over all tokens: its only baseline."""

    @model_validator(mode="after")
    def _has_no_ratio(self) -> Self:
        if self.rollout_correction is not None and self.rollout_correction.mode == "bypass":
            raise ValueError("rollout_correction.mode is bypass, but reinforce has no ratio; take decoupled")
        return self

    def advantages(self, rewards: TokenRewards) -> tuple[Tensor, Tensor]:
        from burnish.advantages import returns, whiten

        found = returns(rewards.tokens, rewards.mask, gamma=self.gamma)
        return (whiten(found, rewards.mask, unbiased=True) if self.whiten else found), found

    def surrogate(
        self, logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from burnish.losses.tokens import log_ratio, reinforce

        return reinforce(logprob, advantage, mask), {"actor/ppo_kl": -log_ratio(logprob, old, mask)}
