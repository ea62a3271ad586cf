"""RLOO: each response against the mean of the others (Ahmadian et al. 2024, arXiv:2402.14740)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.algorithms.language.grouped import Grouped
from burnish.algorithms.language.ratio import Clipped
from burnish.registry import options, register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import TokenRewards


@register("language algorithm", "rloo")
@options
class RLOO(Grouped, Clipped):
    """Leave-one-out baseline. While it takes one step per update, nothing is clipped and it is REINFORCE."""

    def response_advantages(self, rewards: TokenRewards) -> Tensor:
        from burnish.advantages import group_advantage

        return group_advantage(rewards.outcome, rewards.group, rewards.missing, "rloo")
