"""Options that are ``auto``, of which no result depends but by rounding: what they may be, and what is put in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

AUTO = "auto"
SHARD_SIZE, ZERO_STAGE = "sharding.shard_size", "sharding.zero_stage"
Config = TypeVar("Config", bound="RunConfig")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a batch that changes no result."""

    tried: tuple[int, ...]  # on a GPU, ascending: the largest that its memory has room for is taken
    on_cpu: int  # fast there
    unforeseen: int  # on a GPU whose run is not forecast


def unsettled(config: RunConfig) -> dict[str, Sizes]:
    """The sizes of every batch that is still auto, by its option."""
    return {option: sizes for option, sizes in config.batch_sizes().items() if attrgetter(option)(config) == AUTO}


def layouts(config: RunConfig) -> list[dict[str, Any]]:
    """How the networks may lie on the trainer's ranks, as options of sharding that are auto: the least traffic first.

    Adapters' gradients always fit, so that only the frozen weights count; each rank may hold all of those.
    """
    options, pool = config.sharding, config.pools.train
    if not config.shardable:
        return [{}]
    adapters = config.model.lora is not None
    alone = [1] if adapters and options.context_parallel == 1 and not options.offload else []
    uneven = pool.processes > options.parts and pool.processes % options.parts
    machine = pool.processes if pool.nodes > 1 and not uneven else None
    sizes = [*alone, *dict.fromkeys((machine, None))] if options.shard_size == AUTO else [options.shard_size]
    stages = ([3] if adapters or options.offload else [1, 2, 3]) if options.zero_stage == AUTO else [options.zero_stage]
    open_options = [name for name in (SHARD_SIZE, ZERO_STAGE) if attrgetter(name)(config) == AUTO]
    every = [{SHARD_SIZE: size, ZERO_STAGE: stage} for size in sizes for stage in stages]
    return [{name: one[name] for name in open_options} for one in every]


def unforeseen(config: RunConfig, *, on_gpu: bool) -> dict[str, Any]:
    """What every option that is still auto is without a forecast; on a CPU every rank has a shard, as on a cluster."""
    sizes = {option: one.unforeseen if on_gpu else one.on_cpu for option, one in unsettled(config).items()}
    every = [one for one in layouts(config) if one.get(SHARD_SIZE) != 1]
    return sizes | every[-1 if on_gpu else 0]


def smallest(config: RunConfig) -> dict[str, Any]:
    """What takes least memory of every option that is still auto."""
    return {option: sizes.tried[0] for option, sizes in unsettled(config).items()} | layouts(config)[-1]


def with_sizes(config: Config, sizes: Mapping[str, Any]) -> Config:
    """The configuration with these options."""
    for option, size in sizes.items():
        section, _, name = option.partition(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: size})})
    return config


def written(sizes: Mapping[str, Any]) -> list[str]:
    """Options as a command has them, without the stage where nothing is sharded: it is never read then."""
    unread = ZERO_STAGE if sizes.get(SHARD_SIZE) == 1 else None
    return [f"{option}={'null' if size is None else size}" for option, size in sizes.items() if option != unread]
