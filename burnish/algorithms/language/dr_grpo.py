"""Dr. GRPO: GRPO without its biases of length and difficulty (Liu et al. 2025, arXiv:2503.20783)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.algorithms.language.grouped import Grouped
from burnish.algorithms.language.policy_gradient import Aggregation
from burnish.algorithms.language.ratio import Clipped
from burnish.registry import options, register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import TokenRewards


@register("language algorithm", "dr_grpo")
@options
class DrGRPO(Grouped, Clipped):
    """GRPO whose advantages are not divided by a std, and whose sums of tokens are divided by a constant length."""

    loss_agg_mode: Aggregation = "seq-mean-token-sum-norm"
    """How the losses of tokens become one; divided by a constant, long wrong responses weigh no less per token."""

    def response_advantages(self, rewards: TokenRewards) -> Tensor:
        from burnish.advantages import group_advantage

        return group_advantage(rewards.outcome, rewards.group, rewards.missing, "dr_grpo")
