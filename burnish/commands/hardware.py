"""Whether this machine is one that a recipe is made for: said, or refused, before anything is fetched or loaded."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from burnish.config import RunConfig
from burnish.config.hardware import Machine, Origin, listed, read_machine
from burnish.utils import terminal
from burnish.utils.errors import UserError

DRIVERS = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")  # in /dev, of every GPU that PyTorch calls cuda
Again = Callable[[Sequence[str]], str]


def command(words: Sequence[str]) -> str:
    """How the command line starts a run with a recipe and options."""
    return shlex.join(["burnish", "train", *words])


def check_hardware(config: RunConfig, again: Again = command) -> None:
    """Say what hardware a recipe is made for and what is here.

    Args:
        config: of the run.
        again: how a run is started with a recipe and options.

    Raises:
        UserError: there are fewer GPUs than asked for, or none for the model that the recipe is made for.
    """
    if (asked := _asked(config)) is None:
        return
    origin, machine = asked
    why = hardware_complaint(config, again)
    if why is None and machine.gpus is None:
        gpus = _gpus(config)
        more = f"; the run uses one of them (gpus={gpus} uses all)" if gpus > 1 else ""
        say(f"{origin.recipe} is made for {listed(origin.stated)}, and this machine has {_counted(gpus)}{more}")
    elif why is not None and machine.nodes > 1:  # the cluster that a run starts for itself is this machine
        raise UserError(why)
    elif why is not None and config.forecast == "refuse":
        raise UserError(f"{why}; or set force=true to train all the same")
    elif why is not None:
        say(f"Warning: {why}")


def hardware_complaint(config: RunConfig, again: Again = command) -> str | None:
    """What this machine lacks for a run, with a way to start it where there is that; None if nothing is known."""
    if (asked := _asked(config)) is None:
        return None
    (origin, machine), gpus = asked, _gpus(config)
    words = [one for one in origin.overrides if not one.startswith("force=")]
    here = f"this machine has {_counted(gpus)}"
    if machine.total is not None:
        nodes, needed = machine.nodes, machine.total
        here = f"gpus is {machine.gpus}, but {here}"
    elif not gpus and config.model.path == origin.model:
        nodes, needed = origin.stated[0].nodes, origin.stated[0].gpus
        words.insert(0, f"gpus={needed}")
    else:
        return None
    if nodes == 1 and needed <= gpus:
        return None
    where = f"on a machine with {_counted(needed)}"
    if nodes > 1:
        here = f"{needed} GPUs are {nodes} machines, but there is no Ray cluster (ray.address)"
        where = f"start Ray on {nodes} machines, and on one of them"
        words.append("ray.address=HOST:6379")
    for_what = f"{origin.recipe} is made for {listed(origin.stated)}, and " if origin.stated else ""
    return f"{for_what}{here}; {where} run: {again([origin.recipe, *words])}"


def has_driver() -> bool:
    """Whether the system has a driver of a GPU, which is known without PyTorch."""
    return any(any(Path("/dev").glob(driver)) for driver in DRIVERS)


def say(line: str) -> None:
    """Print a line for the user."""
    terminal.console(highlight=False).print(line, soft_wrap=True, markup=False)


def _asked(config: RunConfig) -> tuple[Origin, Machine] | None:
    """What a configuration was composed from, if that says something of GPUs here."""
    if (origin := config.origin) is None:
        return None
    if config.runtime == "ray" and (config.ray.address or os.environ.get("RAY_ADDRESS") or "local") != "local":
        return None  # its pools ask the cluster for GPUs
    machine, _ = read_machine(origin.overrides)
    return (origin, machine) if origin.stated or machine.gpus is not None else None


def _gpus(config: RunConfig) -> int:
    """GPUs of this machine; PyTorch, which takes seconds to load, is asked where there may be any."""
    if config.model.device == "cpu" or ("torch" not in sys.modules and not has_driver()):
        return 0
    with terminal.loading_pytorch():
        import torch
    return torch.cuda.device_count()


def _counted(gpus: int) -> str:
    return f"{gpus or 'no'} GPU{'s' if gpus > 1 else ''}"
