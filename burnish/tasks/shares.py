"""What a rank learns of data that it shares with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from burnish.options import StepOptions
from burnish.training.ranks import Ranks, shares
from burnish.training.trainer import learned_rows

T = TypeVar("T")


def steps_of_an_update(config: Any) -> StepOptions:
    """How a batch of a run becomes optimizer steps; a mini-batch is counted in rows of the batch."""
    size = config.trainer.mini_batch_size
    found: StepOptions = replace(config.trainer, mini_batch_size=size and size // config.rows_per_group)
    return found


def learned_in_an_update(records: Sequence[T], costs: Sequence[int], config: Any, ranks: Ranks, update: int) -> list[T]:
    """Those of a batch of records that a rank learns in the mini-batches of an update."""
    rows = learned_rows(costs, steps_of_an_update(config), config.seed, update, ranks)
    return [records[row] for row in rows]


def learned_in_a_step(records: Sequence[T], costs: Sequence[int], ranks: Ranks) -> list[T]:
    """Those of a batch of records that a rank learns in one optimizer step."""
    return list(records[shares(costs, ranks.size)[ranks.rank]])
