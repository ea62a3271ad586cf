"""A batch that all ranks know, cut into the forward and backward passes of one of them."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.algorithms.base import Algorithm
from burnish.training.ranks import Ranks, own_rows
from burnish.types.batch import Batch


def rank_micro_batches(algorithm: Algorithm, batch: Batch, size: int, ranks: Ranks) -> Iterator[tuple[Batch, float]]:
    """Micro-batches of this rank's rows, each with the weight of its loss: equally many on every rank.

    A network that lies on several ranks runs on all of them or on none, so a rank with fewer rows, or with none, runs
    a small piece of the batch again, with weight 0.

    Args:
        algorithm: knows how its batches are cut.
        batch: with at least one term; the same on every rank.
        size: of a micro-batch, as the algorithm counts it.
        ranks: that share the batch.
    """
    if ranks.size == 1:
        yield from ((part, 1.0) for part in algorithm.micro_batches(batch, size))
        return
    own = batch.select(own_rows(ranks, len(batch)))
    parts = list(algorithm.micro_batches(own, size)) if len(own) else []
    missing = ranks.max(len(parts)) - len(parts)  # before the first of them runs, for that needs every rank
    yield from ((part, 1.0) for part in parts)
    if missing:
        repeated = next(algorithm.micro_batches(batch, 1))
        yield from [(repeated, 0.0)] * missing
