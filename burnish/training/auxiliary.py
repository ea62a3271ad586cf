"""Auxiliary supervised loss, added to every optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from burnish.rl.algorithm import Algorithm, Metrics
from burnish.training.batching import rank_micro_batches
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.types.batch import numbers
from burnish.types.rollout import OfflineResponses, OfflineSamples


class AuxiliaryLoss:
    """A second loss with its own batches, which depend only on the number of the optimizer step."""

    def __init__(
        self,
        algorithm: Algorithm,
        draw: Callable[[int], OfflineSamples | OfflineResponses],
        coef: float,
        *,
        metric: str = "actor/sft_loss",
    ) -> None:
        """Args: ``draw`` returns the batch of an optimizer step; ``coef`` is the weight of the loss."""
        self.algorithm, self.draw, self.coef, self.metric = algorithm, draw, coef, metric

    def backward(self, step: int, roles: Any, ranks: Ranks = SINGLE_RANK) -> tuple[float, Metrics]:
        """Backward pass of an optimizer step, counted from 0: the weighted loss and the metrics.

        Both are this rank's share; their sum over ranks is the total.
        """
        batch, _ = self.algorithm.credit(self.draw(step))
        size, losses = self.algorithm.size(batch), []
        for micro, weight in rank_micro_batches(self.algorithm, batch, roles.micro_batch_size, ranks):
            loss = self.algorithm.loss(micro.to(roles.device), roles).total * weight / size
            (self.coef * loss).backward()
            losses.append(loss.detach())
        total = sum(numbers(losses))
        return self.coef * total, {self.metric: total}
