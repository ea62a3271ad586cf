"""Batches whose size is ``auto``: the sizes that they may have, and what takes the place of the word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

AUTO = "auto"
Config = TypeVar("Config", bound="RunConfig")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a batch that changes no result."""

    tried: tuple[int, ...]  # on a GPU, ascending: the largest that its memory has room for is taken
    on_cpu: int  # fast there
    unforeseen: int  # on a GPU whose run is not forecast


def unsettled(config: RunConfig) -> dict[str, Sizes]:
    """The sizes of every batch that is still auto, by its option."""
    return {option: sizes for option, sizes in config.batch_sizes().items() if size_of(config, option) == AUTO}


def unforeseen(config: RunConfig, *, on_gpu: bool) -> dict[str, int]:
    """The size without a forecast of every batch that is still auto, by its option."""
    return {option: sizes.unforeseen if on_gpu else sizes.on_cpu for option, sizes in unsettled(config).items()}


def smallest(config: RunConfig) -> dict[str, int]:
    """The smallest size of every batch that is still auto, by its option."""
    return {option: sizes.tried[0] for option, sizes in unsettled(config).items()}


def size_of(config: RunConfig, option: str) -> Any:
    """What a configuration says of a batch: a number, or auto."""
    section, _, name = option.partition(".")
    return getattr(getattr(config, section), name)


def with_sizes(config: Config, sizes: Mapping[str, int]) -> Config:
    """The configuration with these sizes of batches, by their options."""
    for option, size in sizes.items():
        section, _, name = option.partition(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: size})})
    return config


def written(sizes: Mapping[str, int]) -> list[str]:
    """Sizes of batches as options of a command."""
    return [f"{option}={size}" for option, size in sizes.items()]
