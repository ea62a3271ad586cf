"""What comes before a run loads anything: whether this machine is one for it, and what has to be fetched."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from burnish.checkpoint.files import VISIBLE, numbered, read
from burnish.checkpoint.remote import Damaged, Remote
from burnish.config import RunConfig
from burnish.config.disk import check_disk
from burnish.config.hardware import Machine, Origin, listed, read_machine
from burnish.config.hub import with_models
from burnish.config.run_folder import RunFolder, check_place
from burnish.utils import terminal
from burnish.utils.addresses import is_address, one_line
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.paths import CHECKPOINTS

log = logging.getLogger(__name__)

DRIVERS = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")  # in /dev, of every GPU that PyTorch calls cuda
Again = Callable[[Sequence[str]], str]


def command(words: Sequence[str]) -> str:
    """How the command line starts a run with a recipe and options."""
    return shlex.join(["burnish", "train", *words])


def prepared(config: RunConfig, again: Again = command) -> RunConfig:
    """The configuration once this machine has everything that it names.

    Args:
        config: of the run.
        again: how a run is started with a recipe and options.

    Raises:
        UserError: something is missing or wrong, or this machine is not one for the run.
    """
    check_place(config)
    if config.threads is not None and "torch" not in sys.modules:  # which reads it when it is imported
        os.environ["OMP_NUM_THREADS"] = str(config.threads)
    check_hardware(config, again)
    config.check_code()
    config = with_models(fetched(config))
    with terminal.progress("Checking the model's files"):
        check_disk(config)
    return config


def check_hardware(config: RunConfig, again: Again = command) -> None:
    """Say what hardware a recipe is made for and what is here.

    Args:
        config: of the run.
        again: how a run is started with a recipe and options.

    Raises:
        UserError: there are fewer GPUs than asked for, or none for the model that the recipe is made for.
    """
    asked, why = _asked(config), hardware_complaint(config, again)
    if asked is None:
        return
    (origin, machine), gpus = asked, _gpus(config)
    if why is None and machine.gpus is None:
        more = f"; the run uses one of them (gpus={gpus} uses all)" if gpus > 1 else ""
        terminal.say(
            f"{origin.recipe} is made for {listed(origin.stated)}, and this machine has {_counted(gpus)}{more}"
        )
    elif why is not None and machine.nodes > 1:  # the cluster that a run starts for itself is this machine
        raise UserError(why)
    elif why is not None and config.forecast == "refuse":
        raise UserError(f"{why}; or set force=true to train all the same")
    elif why is not None:
        terminal.say(f"Warning: {why}")


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


def _asked(config: RunConfig) -> tuple[Origin, Machine] | None:
    """What a configuration was composed from, if that says something of GPUs here."""
    if config.runtime == "ray" and (config.ray.address or os.environ.get("RAY_ADDRESS") or "local") != "local":
        return None  # its pools ask the cluster for GPUs
    origin = config.origin
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


def fetched(config: RunConfig) -> RunConfig:
    """The run as it goes on here, if ``resume`` is an address; unchanged otherwise.

    The address is that of a run's copies (``checkpoint.copy_to``): the newest is fetched, unless this machine has one
    that is as new. Or that of one of its checkpoints.

    Raises:
        UserError: nothing can be fetched; before anything is loaded.
    """
    if not is_address(config.resume):
        return config
    address, wanted = config.resume.rstrip("/"), None
    head, _, name = address.rpartition("/")
    if VISIBLE.fullmatch(name) and head.endswith(f"/{CHECKPOINTS}"):
        address, wanted = head.removesuffix(f"/{CHECKPOINTS}"), int(name)
    try:
        remote = Remote(address)
        there = [update for update in remote.updates() if wanted in (None, update)]
        with closing(RunFolder(config.output_dir)) as folder:
            begun = folder.checkpoints.is_dir()
            if not there and not begun and address == (config.checkpoint.copy_to or "").rstrip("/"):
                log.info("%s has no checkpoint yet: the run begins", address)
                return replace(config, resume="auto")
            checkpoint = _newest(remote, there, wanted, folder) if there or begun else None
    except UserError:
        raise
    except Exception as error:  # whatever a file system raises
        raise UserError(f"resume is {config.resume}, which can't be read: {one_line(error)}") from error
    if checkpoint is None:
        raise UserError(
            f"resume is {config.resume}, which has no complete checkpoint; give checkpoint.copy_to the same address to "
            "begin a run there"
        )
    return replace(config, resume="auto" if wanted is None else str(checkpoint))


def _newest(remote: Remote, there: list[int], wanted: int | None, folder: RunFolder) -> Path | None:
    """The newest undamaged checkpoint of here and there, fetched with the run's records if it is not here."""
    with writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.claim()
        folder.checkpoints.mkdir(exist_ok=True)
    visible = {int(path.name): path for path in numbered(folder.checkpoints)}
    here = {update: path for update, path in visible.items() if wanted in (None, update)}
    for update in sorted({*there, *here}, reverse=True):
        found = None
        if update in here:
            with suppress(UserError):
                found = read(here[update]).path
        if found is None and update in there:
            log.info("fetching checkpoint %d from %s", update, remote.root)
            try:
                found = remote.fetch(update, folder.checkpoints)
            except Damaged as error:
                log.warning("checkpoint skipped: %s", error)
        if found is not None:
            remote.fetch_records(folder.path)
            return found
    return None
