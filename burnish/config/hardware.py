"""The machine that a recipe is made for, as its file states it beside its options; a test holds the recipe to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.yaml_text import show
from burnish.utils.errors import ConfigError

KEY = "hardware"  # of a recipe's file
NODE = 8  # GPUs of a machine


@dataclass(frozen=True)
class Hardware:
    """GPUs that a run of a recipe as it ships fits on."""

    gpus: int
    memory_gb: float  # of each, in units of 10^9 bytes, as cards are sold
    further: tuple[str, ...] = ()  # options that only a run on these GPUs takes: of sharding, or pools of its own

    @property
    def bytes(self) -> int:
        """Memory of a GPU."""
        return int(self.memory_gb * 1e9)

    @property
    def options(self) -> list[str]:
        """What the command line adds to train on all of them."""
        if self.gpus == 1:
            return list(self.further)
        if any(one.startswith("pools.") for one in self.further):
            return ["runtime=ray", *self.further]
        nodes, each = max(self.gpus // NODE, 1), min(self.gpus, NODE)
        return [
            "runtime=ray",
            *([f"pools.train.nodes={nodes}"] if nodes > 1 else []),
            f"pools.train.processes={each}",
            *self.further,
        ]

    def __str__(self) -> str:
        return f"{self.gpus} GPU{'s' if self.gpus > 1 else ''} of {self.memory_gb:g} GB"


def read_hardware(stated: Any, file: str) -> Hardware:
    """What a recipe's file states.

    Args:
        stated: its entry ``hardware``.
        file: name of the file, for messages.

    Raises:
        ConfigError: it is malformed.
    """
    given = dict(stated) if isinstance(stated, dict) else {}
    gpus, memory = given.pop("gpus", None), given.pop("memory_gb", None)
    further = given.pop("options", [])
    right = type(gpus) is int and type(memory) in (int, float) and isinstance(further, list) and not given
    if (
        not right
        or gpus < 1
        or memory <= 0
        or (gpus > NODE and gpus % NODE)
        or not all(isinstance(one, str) for one in further)
    ):
        raise ConfigError(
            f"{KEY} is {show(stated)} (in {file}); it must be like {{gpus: 8, memory_gb: 80}}, more than {NODE} GPUs "
            f"as a multiple of {NODE}, and options a list of OPTION=VALUE"
        )
    return Hardware(gpus, float(memory), tuple(further))
