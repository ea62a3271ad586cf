"""The largest batches that fit a GPU, found by forecasting the run with the smallest, the largest, and between."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config import RunConfig
from burnish.config.batches import Sizes, smallest, unsettled, with_sizes
from burnish.plan.advice import LEARNED, MADE
from burnish.plan.forecast import Forecast, forecast

ROUNDS = 5  # forecasts with other sizes than the smallest
SAMPLED = "rollout.batch_size"  # for what is MADE; the other one is for what is LEARNED from


@dataclass(frozen=True)
class Chosen:
    """Sizes of batches by their options, and what the run needs with them."""

    sizes: dict[str, int]
    forecast: Forecast


def choose(config: RunConfig, least: Forecast, memory: int) -> Chosen:
    """The largest sizes with which a run fits; the smallest ones where none does.

    Args:
        config: of the run.
        least: its forecast with the smallest sizes.
        memory: bytes of a GPU.
    """
    open_sizes, low = unsettled(config), smallest(config)
    if not open_sizes or not least.fits(memory):
        return Chosen(low, least)
    now = {option: sizes.tried[-1] for option, sizes in open_sizes.items()}
    for _ in range(ROUNDS):
        if now == low:
            break
        found = forecast(with_sizes(config, now))
        if found.fits(memory):
            return Chosen(now, found)
        now = {
            option: _between(sizes, now[option], _room(option, least, found, memory))
            for option, sizes in open_sizes.items()
        }
    return Chosen(low, least)


def _between(sizes: Sizes, now: int, room: float) -> int:
    """The largest size within that part of the way from the smallest to one that is too large."""
    if room >= 1:
        return now
    low = sizes.tried[0]
    return max(size for size in sizes.tried if size == low or (size < now and size <= low + room * (now - low)))


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
