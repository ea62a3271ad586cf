"""REINFORCE++ with the mean of the group as baseline (Hu 2025, arXiv:2501.03262)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.algorithms.language.grouped import Grouped
from burnish.algorithms.language.ratio import Clipped
from burnish.registry import options, register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.tokens import TokenRewards


@register("language algorithm", "reinforce_plus_plus_baseline")
@options
class ReinforcePlusPlusBaseline(Grouped, Clipped):
    """Reward minus the mean of the group, whitened over the batch. The paper adds a KL with kl.kind=k2 to the loss."""

    whiten: bool = True
    """Bring the advantages of an update to mean 0 and spread 1, over all tokens."""

    def response_advantages(self, rewards: TokenRewards) -> Tensor:
        from burnish.advantages import group_advantage

        return group_advantage(rewards.outcome, rewards.group, rewards.missing, "reinforce_baseline")

    def advantages(self, rewards: TokenRewards) -> tuple[Tensor, Tensor]:
        from burnish.advantages import whiten

        centred, _ = super().advantages(rewards)
        return (whiten(centred, rewards.mask, unbiased=True) if self.whiten else centred), centred
