"""What imitating the best of one's own samples has in common for all models (best-of-n, reward-weighted regression)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from burnish.options import Count, Finite, Positive
from burnish.registry import ReadIf, options

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.types.rollout import Scored, ScoredResponses


@options
class BestOfOwn:
    """Which of the own samples are imitated, and how much each of them counts."""

    online: bool = False
    """Imitate the best of the own samples of a prompt (best-of-n); false imitates what data.train_files has."""
    best: Annotated[Count, ReadIf("online")] = 1
    """online: the N best samples of a prompt are imitated."""
    min_reward: Annotated[Finite | None, ReadIf("online")] = None
    """online: and only those with at least this reward; null takes the best, however good they are."""
    reward_temperature: Annotated[Positive | None, ReadIf("online")] = None
    """online: weigh each of them by exp(reward / this), relative to the others of its prompt (reward-weighted
    regression); null weighs all alike."""

    def imitated(self, scored: Scored | ScoredResponses) -> tuple[Tensor, Tensor]:
        """Rows [M] of the samples that are imitated, rising, and the weight of each [M]."""
        import torch

        from burnish.rl.preference import likelihood_weights, select_best

        scores = scored.scores
        rows = select_best(scores.reward, scored.group, scores.missing, self.best)
        rows = rows if self.min_reward is None else rows[scores.reward[rows] >= self.min_reward]
        reward = scores.reward[rows]
        if self.reward_temperature is None:
            return rows, torch.ones_like(reward)
        return rows, likelihood_weights(reward, scored.group[rows], self.reward_temperature)
