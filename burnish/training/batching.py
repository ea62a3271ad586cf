"""The mini-batches of a policy update, and the micro-batches of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burnish.options import StepOptions
from burnish.rl.algorithm import Algorithm
from burnish.training.exchange import bring, without_others
from burnish.training.ranks import Ranks, shares
from burnish.types.batch import Batch
from burnish.utils import random


def mini_batches(batch: Batch, options: StepOptions, seed: int, update: int) -> Iterator[Batch]:
    """What each optimizer step of a policy update learns from: the rows in order, or in one drawn for each epoch.

    Each is made when it is asked for, since its rows are copies.
    """
    return (batch.select(rows) for rows in _rows_of_minis(len(batch), options, seed, update))


def learned_rows(costs: Sequence[int], options: StepOptions, seed: int, update: int, ranks: Ranks) -> list[int]:
    """The rows of a batch that a rank learns in the mini-batches of an update, if rows have these costs."""
    learned: set[int] = set()
    for rows in _rows_of_minis(len(costs), options, seed, update):
        learned.update(rows[shares([costs[row] for row in rows], ranks.size)[ranks.rank]])
    return sorted(learned)


def _rows_of_minis(count: int, options: StepOptions, seed: int, update: int) -> Iterator[list[int]]:
    size = options.mini_batch_size or max(count, 1)
    for epoch in range(options.epochs):
        drawn = options.shuffle and size < count
        order = random.permutation(count, seed, "mini_batches", update, epoch) if drawn else list(range(count))
        yield from (order[start : start + size] for start in range(0, count, size))


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
    own = bring(batch, ranks, shares(batch.costs(), ranks.size))
    micro_batches = list(algorithm.micro_batches(own, size)) if len(own) else []
    missing = ranks.max(len(micro_batches)) - len(micro_batches)  # before the first forward pass, a collective
    yield from ((micro, 1.0) for micro in micro_batches)
    if missing:
        repeated = next(algorithm.micro_batches(without_others(batch), 1))
        yield from [(repeated, 0.0)] * missing
