"""Whether this machine is one that a recipe is made for: said, or refused, before anything is fetched or loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from burnish.config import RunConfig
from burnish.config.hardware import listed, read_machine
from burnish.utils import terminal
from burnish.utils.errors import UserError

DRIVERS = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")  # in /dev, of every GPU that PyTorch calls cuda


def check_hardware(config: RunConfig, again: Callable[[Sequence[str]], str]) -> None:
    """Say what hardware a recipe is made for and what is here.

    Args:
        config: of the run.
        again: how a run is started with a recipe and options, as a command or in Python.

    Raises:
        UserError: there are fewer GPUs than asked for, or none for the model that the recipe is made for.
    """
    if config.origin is None:
        return
    recipe, overrides, stated = config.origin.recipe, config.origin.overrides, config.origin.stated
    machine, _ = read_machine(overrides)
    if not stated and machine.gpus is None:
        return
    if config.runtime == "ray" and (config.ray.address or os.environ.get("RAY_ADDRESS") or "local") != "local":
        return  # its pools ask the cluster for GPUs
    gpus = 0 if config.model.device == "cpu" else gpus_here()
    here = f"this machine has {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "this machine has no GPU"
    for_what = f"{recipe} is made for {listed(stated)}, and " if stated else ""
    why = None
    if machine.nodes > 1:
        why = f"nodes is {machine.nodes}, but there is no Ray cluster: start Ray on the machines, and set ray.address"
    elif machine.gpus is not None and gpus < machine.gpus:
        why = f"{for_what}gpus is {machine.gpus}, but {here}; ask for no more than there are"
    elif not gpus and config.model.path == config.origin.model:
        words = [f"gpus={stated[0].gpus}", *overrides] if machine.gpus is None else overrides
        why = f"{for_what}{here}; on such a machine run: {again([recipe, *words])}"
    if why is None:
        if machine.gpus is None:
            more = f"; the run uses one of them (gpus={gpus} uses all)" if gpus > 1 else ""
            say(f"{for_what}{here}{more}")
    elif config.forecast == "refuse":
        raise UserError(f"{why}; or set force=true to train all the same")
    else:
        say(f"Warning: {why}")


def gpus_here() -> int:
    """GPUs of this machine; PyTorch, which takes seconds, is only loaded where there is a driver of one."""
    if "torch" not in sys.modules and not any(any(Path("/dev").glob(driver)) for driver in DRIVERS):
        return 0
    with terminal.loading_pytorch():
        import torch
    return torch.cuda.device_count()


def say(line: str) -> None:
    """Print a line for the user."""
    terminal.console(highlight=False).print(line, soft_wrap=True, markup=False)
