"""Options with which a run fits, found by forecasting it again: larger batches where auto is set, or less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from burnish.plan.counter import Tell, silent
from burnish.plan.forecast import Forecast, forecast
from burnish.plan.measure import BACKWARD, BASELINE, SAMPLE, UPDATE, VALIDATE
from burnish.utils.errors import UserError

DRAWS, READS = "text-to-image", "image-text-to-text"
MADE = (BASELINE, SAMPLE, VALIDATE)
LEARNED = (UPDATE, BACKWARD)


@dataclass(frozen=True)
class Remedy:
    """An option that needs less memory, and what it costs."""

    option: str
    cost: str
    phases: tuple[str, ...] = ()  # that it helps in; none is all
    ranks: bool = False  # it has an effect on several ranks only
    task: str = ""  # that it is for; "" is any


REMEDIES = (  # in the order of what they cost in speed
    Remedy("trainer.micro_batch_size=1", "smaller micro-batches: a little speed where GPUs are not filled", LEARNED),
    Remedy("rollout.batch_size=1", "smaller batches of samples: a little speed", MADE, task=DRAWS),
    Remedy("rollout.batch_size=64", "fewer responses are decoded at once: slower sampling", MADE, task=READS),
    Remedy("rollout.batch_size=16", "the same, and slower", MADE, task=READS),
    Remedy("rollout.vllm.sleep=true", "vLLM gives its memory back while the policy learns: a copy of its weights"),
    Remedy("model.vae_tiling=true", "images are decoded in tiles: hardly any speed", MADE),
    Remedy("model.offload=true", "text encoders and VAE rest in CPU memory: a copy of each before it is used"),
    Remedy("sharding.gather=compute", "weights are gathered in model.dtype: faster, other rounding", (), ranks=True),
    Remedy("model.gradient_checkpointing=true", "about a third more computing in updates", LEARNED),
    Remedy("model.lora={rank: 32}", "only adapters learn: another result, and quicker updates"),
    Remedy("optimizer.offload=true", "the optimizer steps on the CPU: slow updates"),
)


@dataclass(frozen=True)
class Tried:
    """Options, and what the run would need with them."""

    options: tuple[str, ...]
    cost: str  # of the last one
    needs: int
    fits: bool


def remedies(
    read: Callable[[Sequence[str]], RunConfig], first: Forecast, memory: int, tell: Tell = silent
) -> Iterator[Tried]:
    """Try one option after the other, keep those that help, and end when the run fits.

    Args:
        read: the configuration of the run with further options.
        first: its forecast as it is, with the smallest size of every batch that is auto.
        memory: bytes of a GPU.
        tell: as of ``forecast``.
    """
    kept: tuple[str, ...] = ()
    now, low = first, smallest(read(()))
    for remedy in REMEDIES:
        if remedy.option.partition("=")[0] in low:
            continue  # nothing is smaller
        if now.fits(memory) or any(pool.vllm is not None and pool.vllm.complaint(memory) for pool in now.pools):
            return  # what a vLLM without room needs is said where that is found
        phases = {pool.highest[0] for pool in now.pools if pool.needs_of(memory) > memory}
        if remedy.phases and phases.isdisjoint(remedy.phases):
            continue
        if remedy.task and read(()).task != remedy.task:
            continue
        if remedy.ranks and max(pool.processes for pool in now.pools) == 1:
            continue
        options = (*kept, remedy.option)
        try:
            smaller = read(options)
            if smaller == read(kept):
                continue
            found = forecast(with_sizes(smaller, low), tell)
        except UserError:
            continue  # the run has no such option, or not beside its others
        yield Tried(options, remedy.cost, found.needs_of(memory), found.fits(memory))
        if found.needs_of(memory) < now.needs_of(memory):
            kept, now = options, found


ROUNDS = 5  # forecasts with other sizes than the smallest
SAMPLED = "rollout.batch_size"  # for what is MADE; the other one is for what is LEARNED from


@dataclass(frozen=True)
class Chosen:
    """What is put in for auto, by option, and what the run needs with it."""

    sizes: dict[str, Any]
    forecast: Forecast


def choose(config: RunConfig, least: Forecast, memory: int, tell: Tell = silent) -> Chosen:
    """The layout of the networks with least traffic, and then the largest batches, with which a run fits.

    Args:
        config: of the run.
        least: its forecast with the smallest sizes and shards; the result where no other fits.
        memory: bytes of a GPU.
        tell: as of ``forecast``.
    """
    low, open_sizes = smallest(config), unsettled(config)
    if not low or not least.fits(memory):
        return Chosen(low, least)
    for layout in layouts(config)[:-1]:
        sizes = low | unforeseen(config, on_gpu=True) | layout
        if least_bytes(config, layout, *least.pools[0].weights) > memory:
            continue
        found = forecast(with_sizes(config, sizes), tell)
        if found.fits(memory):
            low, least = sizes, found
            break
    now = low | {option: sizes.tried[-1] for option, sizes in open_sizes.items()}
    for _ in range(ROUNDS):
        if now == low:
            break
        found = forecast(with_sizes(config, now), tell)
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
    parts = config.sharding.parts  # of experts, or of layers, which may be all the weights there are
    gathered = (2 * (learned + frozen) if stage in (1, 2) else 0) + (4 * learned if stage == 1 else 0)
    return (16 * learned + 2 * frozen) // max(shard or config.ranks, parts) + gathered // parts


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
