"""The GPUs that a recipe is made for, as its file states them beside its options, and what gpus=N makes of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from burnish.config.overrides import read_overrides
from burnish.config.yaml_text import show
from burnish.utils.errors import ConfigError, UserError

KEY = "hardware"  # of a recipe's file
NODE = 8  # GPUs of a machine
WORDS = ("gpus", "nodes", "memory", "force")  # of the command line, which become options
UNITS = {"B": 1, **{f"{unit}{i}B": (1024 if i else 1000) ** (power + 1)
                    for power, unit in enumerate("KMGT") for i in ("", "I")}}  # fmt: skip


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
    def has_pools(self) -> bool:
        """Whether it says itself which processes train and which sample."""
        return any(option.startswith("pools.") for option in self.further)

    @property
    def nodes(self) -> int:
        """Machines of its GPUs."""
        return max(self.gpus // NODE, 1)

    @property
    def options(self) -> list[str]:
        """What it adds to a recipe to train on all of its GPUs."""
        return self.options_for(self.nodes, self.gpus // self.nodes)

    def options_for(self, nodes: int, each: int) -> list[str]:
        """What it adds to a recipe on another number of GPUs: machines, and GPUs of each.

        Raises:
            ConfigError: its pools can't be made larger or smaller by a whole number of machines.
        """
        total = nodes * each
        if self.has_pools:
            if total % self.gpus:
                raise ConfigError(
                    f"gpus is {total}, but this recipe has pools for {self.gpus} GPUs; ask for a multiple of "
                    f"{self.gpus}, or give pools.train and pools.rollout yourself"
                )
            return ["runtime=ray", *(_times(option, total // self.gpus) for option in self.further)]
        if total == 1:
            return [option for option in self.further if not option.startswith("sharding.")]
        machines = [f"pools.train.nodes={nodes}"] if nodes > 1 else []
        return ["runtime=ray", *machines, f"pools.train.processes={each}", *self.further]

    def __str__(self) -> str:
        return f"{self.gpus} GPU{'s' if self.gpus > 1 else ''} of {self.memory_gb:g} GB"


@dataclass(frozen=True)
class Origin:
    """What a configuration was composed from."""

    recipe: str  # name or path
    overrides: tuple[str, ...]  # options, and words about the machine
    stated: tuple[Hardware, ...] = ()  # what the recipe is made for
    model: str | None = None  # the model that this statement is about


@dataclass(frozen=True)
class Machine:
    """What a command line says of the GPUs that a run gets."""

    gpus: int | None = None  # of each machine; None: nothing is said
    nodes: int = 1
    memory: int | None = None  # bytes of each GPU
    force: bool = False  # train where the recipe is not made for, and where the forecast says that it won't fit

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
            profile = self.profile(stated) or Hardware(self.gpus * self.nodes, 1)
            options = profile.options_for(self.nodes, self.gpus)
        if self.force:
            return [*options, "forecast=warn"]
        # without a GPU for each process, the pools don't start
        pools = sorted({".".join(one.split(".")[:2]) for one in options if one.startswith("pools.")})
        return [*options, *(f"{pool}.device=cuda" for pool in pools)]


def listed(stated: Sequence[Hardware]) -> str:
    """What a recipe states, for messages."""
    return " or ".join(map(str, stated))


def made_for(recipe: str, stated: Sequence[Hardware]) -> str:
    """What a recipe states, with the words that compose its options for that hardware."""
    (first, *_) = stated
    how = f" with {' '.join(first.options)}" if first.options else ""
    return f"{recipe} is made for {listed(stated)}{how}: add gpus={first.gpus} for these options."


def read_machine(overrides: Sequence[str]) -> tuple[Machine, dict[str, Any]]:
    """A command line's words about the machine, and its options.

    Raises:
        ConfigError: a word has a value that it can't have.
    """
    given = read_overrides(overrides)
    words = {name: given.pop(name) for name in WORDS if name in given}
    for name in ("gpus", "nodes"):
        if name in words and not (type(words[name]) is int and 1 <= words[name] <= 100_000):
            raise ConfigError(f"{name} is {show(words[name])}; it must be a number of {name}, as in {name}=8")
    gpus, nodes = words.get("gpus"), words.get("nodes")
    if nodes is not None and gpus is None:
        raise ConfigError(f"nodes is {nodes}, but gpus is not given; add the GPUs of each machine, as in gpus={NODE}")
    if gpus is not None and nodes is None and gpus > NODE:
        if gpus % NODE:
            raise ConfigError(
                f"gpus is {gpus}, more than the {NODE} of a machine and no multiple of it; add nodes, as in "
                f"gpus={NODE} nodes=2"
            )
        gpus, nodes = NODE, gpus // NODE
    force = words.get("force", False)
    if not isinstance(force, bool):
        raise ConfigError(f"force is {show(force)}; it must be true or false")
    memory = in_bytes(str(words["memory"])) if "memory" in words else None
    return Machine(gpus, nodes or 1, memory, force), given


@dataclass(frozen=True)
class Speed:
    """What a GPU reaches: by default an H100 in bfloat16."""

    tflops: float = 400.0  # of matrix products, in 10^12 operations a second
    bandwidth: float = 2600.0  # GB a second that kernels read and write
    launch: float = 5.0  # microseconds from one kernel to the next


def read_speed(overrides: Sequence[str]) -> tuple[Speed, list[str]]:
    """A command line's words about the speed of a GPU, and the rest of it.

    Raises:
        ConfigError: a word has a value that it can't have.
    """
    words = [one for one in overrides if one.partition("=")[0] in vars(Speed())]
    given = read_overrides(words)
    for name, value in given.items():
        if type(value) not in (int, float) or value <= 0:
            raise ConfigError(f"{name} is {show(value)}; it must be a number above 0, as in {name}=400")
    return Speed(**given), [one for one in overrides if one not in words]


def in_bytes(text: str) -> int:
    """A size such as 80GB or 24GiB.

    Raises:
        UserError: it is none.
    """
    matched = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s*([KMGT]?i?B)", text.strip(), re.IGNORECASE)
    if matched is None or not float(matched[1]):
        raise UserError(f"memory is {text!r:.40}; give the memory of a GPU such as memory=80GB or memory=24GiB")
    return int(float(matched[1]) * UNITS[matched[2].upper()])


def read_hardware(stated: Any, file: str) -> tuple[Hardware, ...]:
    """What a recipe's file states.

    Args:
        stated: its entry ``hardware``, one or a list of them.
        file: name of the file, for messages.

    Raises:
        ConfigError: it is malformed.
    """
    return tuple(_read(one, file) for one in (stated if isinstance(stated, list) and stated else [stated]))


def _read(stated: Any, file: str) -> Hardware:
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
            f"{KEY} is {show(stated)} (in {file}); it must be like {{gpus: 8, memory_gb: 80}}, or a list of such, more "
            f"than {NODE} GPUs as a multiple of {NODE}, and options a list of OPTION=VALUE"
        )
    return Hardware(gpus, float(memory), tuple(further))


def _times(option: str, factor: int) -> str:
    """An option of a pool, whose machines are multiplied."""
    name, _, value = option.partition("=")
    return f"{name}={int(value) * factor}" if re.fullmatch(r"pools\.\w+\.nodes", name) else option
