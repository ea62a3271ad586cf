"""The GPUs that a recipe is made for, as its file states them beside its options, and what gpus=N makes of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ByteSize, Field, ValidationError, field_validator

from burnish.config.yaml_text import brief, read_overrides, show
from burnish.options import Count, Positive
from burnish.registry import explanation, fields, options, validated
from burnish.utils.errors import ConfigError
from burnish.utils.terminal import counted

KEY = "hardware"  # of a recipe's file
NODE = 8  # GPUs of a machine


@options
class Hardware:
    """GPUs that a run of a recipe as it ships fits on."""

    gpus: Count
    """GPUs of all machines."""
    memory_gb: Positive
    """Memory of each, in units of 10^9 bytes, as cards are sold."""
    options: list[str] = Field(default_factory=list)
    """Options that only a run on these GPUs takes: of sharding, or pools of its own."""

    @field_validator("gpus")
    @classmethod
    def _machines_are_full(cls, value: int) -> int:
        if value > NODE and value % NODE:
            raise ValueError(f"more than {NODE} GPUs are a multiple of {NODE}")
        return value

    @property
    def bytes(self) -> int:
        """Memory of a GPU."""
        return int(self.memory_gb * 1e9)

    @property
    def nodes(self) -> int:
        """Machines of its GPUs."""
        return max(self.gpus // NODE, 1)

    def options_for(self, gpus: int | None = None, nodes: int = 1) -> list[str]:
        """What it adds to a recipe on a number of machines with so many GPUs each; None: on its own.

        Raises:
            ConfigError: its pools can't be made larger or smaller by a whole number of machines.
        """
        if gpus is None:
            nodes, gpus = self.nodes, self.gpus // self.nodes
        total = nodes * gpus
        if any(option.startswith("pools.") for option in self.options):
            if total % self.gpus:
                raise ConfigError(
                    f"gpus is {total}, but this recipe has pools for {self.gpus} GPUs; ask for a multiple of "
                    f"{self.gpus}, or give pools.train and pools.rollout yourself"
                )
            factor = total // self.gpus
            wider = (
                re.sub(r"(pools\.\w+\.nodes=)(\d+)", lambda nodes: f"{nodes[1]}{int(nodes[2]) * factor}", option)
                for option in self.options
            )
            return ["runtime=ray", *wider]
        if total == 1:
            return [option for option in self.options if not option.startswith("sharding.")]
        machines = [f"pools.train.nodes={nodes}"] if nodes > 1 else []
        return ["runtime=ray", *machines, f"pools.train.processes={gpus}", *self.options]

    def __str__(self) -> str:
        return f"{counted(self.gpus, 'GPUs')} of {self.memory_gb:g} GB"


@dataclass(frozen=True)
class Origin:
    """What a configuration was composed from."""

    recipe: str  # name or path
    overrides: tuple[str, ...]  # options, and words about the machine
    stated: tuple[Hardware, ...] = ()  # what the recipe is made for
    model: str | None = None  # the model that this statement is about


@options
class Machine:
    """What a command line says of the GPUs that a run gets."""

    gpus: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """GPUs of each machine; null: nothing is said."""
    nodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Machines."""
    memory: Annotated[ByteSize, Field(ge=1 << 20)] | None = None
    """Memory of each GPU, as in memory=80GB or memory=24GiB."""
    force: bool = False
    """Train where the recipe is not made for, and where the forecast says that it won't fit."""

    @property
    def total(self) -> int | None:
        """GPUs of all machines."""
        return None if self.gpus is None else self.gpus * self.nodes

    def profile(self, stated: Sequence[Hardware]) -> Hardware | None:
        """The hardware, of what a recipe states, that is nearest to this machine: not larger, if there is one."""
        if not stated:
            return None
        fitting = [one for one in stated if self.memory is None or one.bytes <= self.memory] or list(stated)
        total = self.total or stated[0].gpus
        nearest = min(fitting, key=lambda one: (one.gpus > total, abs(one.gpus - total)))
        same = [one for one in fitting if one.gpus == nearest.gpus]
        return (min if self.memory is None else max)(same, key=lambda one: one.memory_gb)

    def options(self, stated: Sequence[Hardware]) -> list[str]:
        """What a recipe that states this is composed with, below the command line."""
        options = []
        if self.gpus is not None:
            profile = self.profile(stated) or Hardware(gpus=NODE, memory_gb=1)
            options = profile.options_for(self.gpus, self.nodes)
        if self.force:
            return [*options, "forecast=warn"]
        # without a GPU for each process, the pools don't start
        pools = sorted({".".join(one.split(".")[:2]) for one in options if one.startswith("pools.")})
        return [*options, *(f"{pool}.device=cuda" for pool in pools)]


@options
class Speed:
    """What a GPU reaches: by default an H100 in bfloat16."""

    tflops: Positive = 400.0
    """Of matrix products, in 10^12 operations a second."""
    bandwidth: Positive = 2600.0
    """GB a second that kernels read and write."""
    launch: Positive = 5.0
    """Microseconds from one kernel to the next."""
    nvlink: Positive = 450.0
    """GB a second that it receives of others in its machine."""
    network: Positive = 50.0
    """GB a second that it receives of other machines: 400 Gb/s."""


def listed(stated: Sequence[Hardware]) -> str:
    """What a recipe states, for messages."""
    return " or ".join(
        str(one.gpus if one is not stated[-1] and one.memory_gb == stated[-1].memory_gb else one) for one in stated
    )


def made_for(recipe: str, stated: Sequence[Hardware]) -> str:
    """What a recipe states, with the words that compose its options for that hardware."""
    (first, *_) = stated
    how = f" with {' '.join(added)}" if (added := first.options_for()) else ""
    return f"{recipe} is made for {listed(stated)}{how}: add gpus={first.gpus} for these options."


def read_machine(overrides: Sequence[str]) -> tuple[Machine, dict[str, Any]]:
    """A command line's words about the machine, and its options.

    Raises:
        ConfigError: a word has a value that it can't have.
    """
    given = read_overrides(overrides)
    words = {name: given.pop(name) for name in fields(Machine) if name in given}
    machine: Machine = _words(Machine, words)
    if "nodes" in words and machine.gpus is None:
        raise ConfigError(
            f"nodes is {machine.nodes}, but gpus is not given; add the GPUs of each machine, as in gpus={NODE}"
        )
    if machine.gpus is not None and "nodes" not in words and machine.gpus > NODE:
        if machine.gpus % NODE:
            raise ConfigError(
                f"gpus is {machine.gpus}, more than the {NODE} of a machine and no multiple of it; add nodes, as in "
                f"gpus={NODE} nodes=2"
            )
        machine.gpus, machine.nodes = NODE, machine.gpus // NODE
    return machine, given


def read_speed(overrides: Sequence[str]) -> tuple[Speed, list[str]]:
    """A command line's words about the speed of a GPU, and the rest of it.

    Raises:
        ConfigError: a word has a value that it can't have.
    """
    words = [one for one in overrides if one.partition("=")[0] in fields(Speed)]
    return _words(Speed, read_overrides(words)), [one for one in overrides if one not in words]


def _words(kind: type, words: dict[str, Any]) -> Any:
    """Words of a command line that are no options of a run."""
    try:
        return validated(kind, words)
    except ValidationError as error:
        from burnish.config.errors import must

        first = error.errors()[0]
        word = str(first["loc"][0])
        raise ConfigError(
            f"{word} is {brief(first['input'])}; {must(first)}. It is: {explanation(kind, word)}"
        ) from None


def read_hardware(stated: Any, file: str) -> tuple[Hardware, ...]:
    """What a recipe's file states.

    Args:
        stated: its entry ``hardware``, one or a list of them.
        file: name of the file, for messages.

    Raises:
        ConfigError: it is malformed.
    """
    try:
        return tuple(validated(list[Hardware], stated if isinstance(stated, list) else [stated]))
    except ValidationError:
        raise ConfigError(
            f"{KEY} is {show(stated)} (in {file}); it must be like {{gpus: 8, memory_gb: 80}}, or a list of such, with "
            f"gpus a multiple of {NODE} above {NODE}, and options a list of OPTION=VALUE"
        ) from None
