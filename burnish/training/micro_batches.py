"""Micro-batches of one rank."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.algorithms.base import Algorithm
from burnish.training.ranks import Ranks, own_rows
from burnish.types.batch import Batch


def rank_micro_batches(algorithm: Algorithm, batch: Batch, size: int, ranks: Ranks) -> Iterator[tuple[Batch, float]]:
    """Micro-batches of this rank's rows with the weights of their losses, the same number on every rank.

    A sharded network runs on all ranks or none, so a rank with fewer micro-batches repeats a small one with weight 0.

    Args:
        algorithm: splits the batch.
        batch: with at least one term; the same on every rank.
        size: of a micro-batch, as the algorithm counts it.
        ranks: that share the batch.
    """
    if ranks.size == 1:
        yield from ((micro, 1.0) for micro in algorithm.micro_batches(batch, size))
        return
    own = batch.select(own_rows(ranks, len(batch)))
    micro_batches = list(algorithm.micro_batches(own, size)) if len(own) else []
    missing = ranks.max(len(micro_batches)) - len(micro_batches)  # before the first forward pass, a collective
    yield from ((micro, 1.0) for micro in micro_batches)
    if missing:
        repeated = next(algorithm.micro_batches(batch, 1))
        yield from [(repeated, 0.0)] * missing
