"""Samples of the user, imitated at every optimizer step beside what the run learns from rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from burnish.algorithms.base import Algorithm, Metrics
from burnish.training.micro_batches import rank_micro_batches
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.types.batch import numbers
from burnish.types.rollout import OfflineResponses, OfflineSamples


class AuxiliaryLoss:
    """A second loss, averaged over its own batch; what it learns depends on the number of the step alone."""

    def __init__(
        self,
        algorithm: Algorithm,
        draw: Callable[[int], OfflineSamples | OfflineResponses],
        coef: float,
        *,
        metric: str = "actor/sft_loss",
    ) -> None:
        """Args: ``draw`` gives the samples of an optimizer step; ``coef`` is the weight of their loss."""
        self.algorithm, self.draw, self.coef, self.metric = algorithm, draw, coef, metric

    def backward(self, step: int, roles: Any, ranks: Ranks = SINGLE_RANK) -> tuple[float, Metrics]:
        """Add its gradients at optimizer step ``step``: this rank's share of its weighted loss and of its reports."""
        batch, _ = self.algorithm.credit(self.draw(step))
        size, told = self.algorithm.size(batch), []
        for part, weight in rank_micro_batches(self.algorithm, batch, roles.micro_batch_size, ranks):
            loss = self.algorithm.loss(part.to(roles.device), roles).total * weight / size
            (self.coef * loss).backward()
            told.append(loss.detach())
        total = sum(numbers(told))
        return self.coef * total, {self.metric: total}
