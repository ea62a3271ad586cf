"""Options with which a run fits, found by forecasting it again: larger batches where auto is set, or less memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.config import RunConfig
from burnish.config.batches import (
    SHARD_SIZE,
    ZERO_STAGE,
    layouts,
    smallest,
    unforeseen,
    unsettled,
    with_sizes,
)
from burnish.plan.counter import ACTIVATIONS, CACHES, Tell, silent
from burnish.plan.forecast import FRAGMENTS, Forecast, Forecasts, forecast
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
    task: str = ""  # that it is for; "" is any


REMEDIES = (  # in the order of what they cost in speed
    Remedy("trainer.micro_batch_size=1", "smaller micro-batches: a little speed where GPUs are not filled", LEARNED),
    Remedy("rollout.batch_size=1", "smaller batches of samples: a little speed", MADE, task=DRAWS),
    Remedy("rollout.batch_size=64", "fewer responses are decoded at once: slower sampling", MADE, task=READS),
    Remedy("rollout.batch_size=16", "the same, and slower", MADE, task=READS),
    Remedy("rollout.vllm.sleep=true", "vLLM gives its memory back while the policy learns: a copy of its weights"),
    Remedy("model.vae_tiling=true", "images are decoded in tiles: hardly any speed", MADE),
    Remedy("model.offload=true", "text encoders and VAE rest in CPU memory: a copy of each before it is used"),
    Remedy("sharding.gather=compute", "weights are gathered in model.dtype: faster, other rounding"),
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
        elsewhere = remedy.phases and phases.isdisjoint(remedy.phases)
        if elsewhere or (remedy.task and read(()).task != remedy.task):
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


ROUNDS = 5  # forecasts with larger batches
GROWING = ACTIVATIONS, CACHES  # with a batch, as it is thought before a larger one is forecast
SAMPLED = "rollout.batch_size"  # for what is MADE; the other one is for what is LEARNED from


@dataclass(frozen=True)
class Chosen:
    """What is put in for auto, by option, and what the run needs with it."""

    sizes: dict[str, Any]
    forecast: Forecast


def candidates(config: RunConfig) -> list[dict[str, Any]]:
    """What may be put in for auto, until it fits: batches of some size in each layout, least traffic first; then the
    smallest ones."""
    low, batches = smallest(config), unforeseen(config, on_gpu=True)
    return [sizes for layout in layouts(config) if (sizes := batches | layout) != low] + [low]


def choose(forecasts: Forecasts, memory: int | None) -> Chosen:
    """The layout of the networks with least traffic, and then the largest batches, with which a run fits.

    Args:
        forecasts: of the run.
        memory: bytes of a GPU; None takes the smallest sizes.
    """
    config = forecasts.config
    low, *others = candidates(config) if memory is not None else [smallest(config)]
    least, open_sizes = forecasts(low), unsettled(config)
    while memory is not None and others and not least.fits(memory):
        low = others.pop(0)
        if not others or least_bytes(config, low, *least.pools[0].weights) <= memory:
            least = forecasts(low)
    if memory is None or not least.fits(memory):
        return Chosen(low, least)
    chosen, found, now = Chosen(low, least), None, low
    for _ in range(ROUNDS):
        rooms = {option: _room(option, memory, least, found, now[option] / low[option]) for option in open_sizes}
        now = low | {
            option: max(size for size in sizes.tried if size <= low[option] * rooms[option])
            for option, sizes in open_sizes.items()
        }
        if now == chosen.sizes:
            break
        found = forecasts(now)
        if found.fits(memory):
            chosen = Chosen(now, found)
    return chosen


def least_bytes(config: RunConfig, layout: Mapping[str, Any], learned: int, frozen: int) -> int:
    """What so many weights take at least in a layout, with gradients and states of AdamW: it needs no forecast."""
    shard, stage = layout.get(SHARD_SIZE, config.sharding.shard_size), layout.get(ZERO_STAGE)
    parts = config.sharding.parts  # of experts, or of layers, which may be all the weights there are
    gathered = (2 * (learned + frozen) if stage in (1, 2) else 0) + (4 * learned if stage == 1 else 0)
    return (16 * learned + 2 * frozen) // max(shard or config.ranks, parts) + gathered // parts


def _room(option: str, memory: int, least: Forecast, found: Forecast | None, larger: float) -> float:
    """How many times as large as in ``least`` a size may be, by what one needs that is so many times ``larger``.

    A phase of neither kind counts for both. Where nothing larger was forecast yet, activations and caches are what
    grows, and twice the size is worth a try.
    """
    others = LEARNED if option == SAMPLED else MADE
    room = math.inf
    for number, pool in enumerate(least.pools):
        for phase in pool.phases.keys() - set(others):
            low, parts = pool.needs_in(phase, memory), pool.phases[phase].parts
            more = pool.sharing * (1 + FRAGMENTS) * sum(parts.get(name, 0) for name in GROWING)
            if found is not None:
                more = (found.pools[number].needs_in(phase, memory) - low) / max(larger - 1, 1e-9)
            if more > 0:
                room = min(room, 1 + (memory - low) / more)
    return room if found is not None else max(room, 2.0)
