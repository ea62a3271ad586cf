"""What auto becomes: layouts and batches that fit a GPU, found by forecasting the run with one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from burnish.config import RunConfig
from burnish.config.batches import (
    SHARD_SIZE,
    ZERO_STAGE,
    Sizes,
    layouts,
    smallest,
    unforeseen,
    unsettled,
    with_sizes,
)
from burnish.plan.advice import LEARNED, MADE
from burnish.plan.forecast import Forecast, forecast

ROUNDS = 5  # forecasts with other sizes than the smallest
SAMPLED = "rollout.batch_size"  # for what is MADE; the other one is for what is LEARNED from


@dataclass(frozen=True)
class Chosen:
    """What is put in for auto, by option, and what the run needs with it."""

    sizes: dict[str, Any]
    forecast: Forecast


def choose(config: RunConfig, least: Forecast, memory: int) -> Chosen:
    """The layout of the networks with least traffic, and then the largest batches, with which a run fits.

    Args:
        config: of the run.
        least: its forecast with the smallest sizes and shards; the result where no other fits.
        memory: bytes of a GPU.
    """
    low, open_sizes = smallest(config), unsettled(config)
    if not low or not least.fits(memory):
        return Chosen(low, least)
    for layout in layouts(config)[:-1]:
        sizes = low | unforeseen(config, on_gpu=True) | layout
        if least_bytes(config, layout, *least.pools[0].weights) > memory:
            continue
        found = forecast(with_sizes(config, sizes))
        if found.fits(memory):
            low, least = sizes, found
            break
    now = low | {option: sizes.tried[-1] for option, sizes in open_sizes.items()}
    for _ in range(ROUNDS):
        if now == low:
            break
        found = forecast(with_sizes(config, now))
        if found.fits(memory):
            return Chosen(now, found)
        now = low | {
            option: _between(sizes, low[option], now[option], _room(option, least, found, memory))
            for option, sizes in open_sizes.items()
        }
    return Chosen(low, least)


def least_bytes(config: RunConfig, layout: Mapping[str, Any], learned: int, frozen: int) -> int:
    """What so many weights take at least in a layout, with gradients and states of AdamW: it needs no forecast."""
    shard, stage = layout.get(SHARD_SIZE, config.sharding.shard_size), layout.get(ZERO_STAGE)
    gathered = (2 * (learned + frozen) if stage in (1, 2) else 0) + (4 * learned if stage == 1 else 0)
    return (16 * learned + 2 * frozen) // (shard or config.ranks) + gathered


def _between(sizes: Sizes, low: int, now: int, room: float) -> int:
    """The largest size within that part of the way from one that fits to one that is too large."""
    if room >= 1:
        return now
    return max(size for size in sizes.tried if size == low or (low < size < now and size <= low + room * (now - low)))


def _room(option: str, least: Forecast, found: Forecast, memory: int) -> float:
    """How far memory reaches from the smallest batches to those of ``found``; 1 where this option needs no less.

    A phase of neither kind counts for both.
    """
    others = LEARNED if option == SAMPLED else MADE
    room = 1.0
    for small, large in zip(least.pools, found.pools, strict=True):
        for phase in large.phases.keys() - set(others):
            low, high = small.needs_in(phase, memory), large.needs_in(phase, memory)
            if high > memory:
                room = min(room, (memory - low) / (high - low))
    return room
