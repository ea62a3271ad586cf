"""Checks of the files that a run reads and writes, before torch is imported."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from burnish.config.hub import missing_model, missing_scorers
from burnish.config.machine import machine_complaints
from burnish.config.run import RunConfig
from burnish.data.records import own_data
from burnish.data.sets import named_by
from burnish.data.values import check_template
from burnish.rewards.function import FunctionReward
from burnish.utils.addresses import address_complaint, is_address, library_complaint
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.hub import model_folder
from burnish.utils.hub_data import hub_data
from burnish.utils.installed import tracker_complaint
from burnish.utils.paths import check_run_folder, holds_run, resolve
from burnish.utils.reading import checked_path


def check_disk(config: RunConfig) -> None:
    """Refuse a run whose model, prompts or functions are missing, or whose output folder can't be written.

    Raises:
        ConfigError: with all problems.
    """
    problems = disk_problems(config)
    if problems:
        raise ConfigError(problems)


def disk_problems(config: RunConfig, *, reads: bool = True) -> list[str]:
    """What keeps a run from starting on this machine; ``reads`` the files of its model too, which imports PyTorch."""
    checks: list[Callable[[RunConfig], None]] = [
        _machine, partial(_model, reads), *(partial(_prompts, option) for option in config.prompt_files), _template,
        _rewards, _scorers, _output, _resume, _trackers, _copies,
    ]  # fmt: skip
    problems = []
    for check in checks:
        try:
            check(config)
        except ConfigError as error:
            problems += error.complaints
        except UserError as error:
            problems.append(str(error))
    return problems


def _machine(config: RunConfig) -> None:
    complaints = list(machine_complaints(config))
    if complaints:
        raise ConfigError(complaints)


def _trackers(config: RunConfig) -> None:
    for name in config.trackers.libraries():
        if complaint := tracker_complaint(name):
            raise UserError(f"trackers.{name} {complaint}")


def _copies(config: RunConfig) -> None:
    address = config.checkpoint.copy_to
    if address is not None and (complaint := library_complaint(address)):
        raise UserError(f"checkpoint.copy_to is {address}, {complaint}")


def _model(reads: bool, config: RunConfig) -> None:
    if (model := missing_model(config)) is not None:
        raise UserError(
            f"model.path is {model.name}, which is not on this machine yet: burnish train downloads it from the "
            f"Hugging Face hub; or fetch it with: {model.command()}, and set model.path=DIR"
        )
    path, revision = config.model.path, config.model.revision
    try:
        found = model_folder(path, revision, index=config.model_index)
    except UserError as error:
        raise UserError(str(error) if "model." in str(error) else f"model.path: {error}") from None
    if reads:
        config.check_model(found)


def _rewards(config: RunConfig) -> None:
    """Python files of reward functions."""
    complaints = []
    for label, reward in config.rewards.items():
        if not isinstance(reward, FunctionReward):
            continue
        where, _, name = reward.path.rpartition(":")
        if where.endswith(".py") and not checked_path(where).exists():
            complaints.append(
                f"rewards.{label}.path is {reward.path}, but there is no {where}. Write it: it must define "
                f"{name}({reward.takes}), which returns one number for each of the {reward.judged}; "
                f"or choose another reward: rewards.{label}=null rewards.NAME.weight=1"
            )
    if complaints:
        raise ConfigError(complaints)


def _scorers(config: RunConfig) -> None:
    """Networks of the hub that rewards load."""
    complaints = [
        f"{model.option} is {model.name}, which is not on this machine yet: burnish train downloads it from the "
        f"Hugging Face hub; or fetch it with: {model.command()}, and set {model.option}=DIR"
        for model in missing_scorers(config)
    ]
    if complaints:
        raise ConfigError(complaints)


def _prompts(option: str, config: RunConfig) -> None:
    files = config.prompt_files[option]
    for path in [files] if isinstance(files, str) else files:
        try:
            found = resolve(path)
        except UserError as error:
            raise UserError(f"{option}: {error}") from None
        named = None if found.exists() else own_data(path) or hub_data(path)
        if named is not None:
            named.check()
            continue
        if not found.is_file() and not found.is_dir():
            way = f"write it with: burnish data prepare {of_set}" if (of_set := named_by(path)) else ""
            raise UserError(f"{option} is {path}, which is not there; {way or f'give {config.prompt_file}'}")
        if not os.access(found, os.R_OK):
            raise UserError(f"{option} is {path}, which is not readable; change its permissions or give another file")


def _template(config: RunConfig) -> None:
    check_template(config.data.template)


def _output(config: RunConfig) -> None:
    folder = checked_path(config.output_dir, "output_dir").absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(f"output_dir is {config.output_dir}, but {nearest} is a file; give another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"output_dir is {config.output_dir}, but {nearest} is not writable; give another folder")
    check_run_folder(config.output_dir)


def _resume(config: RunConfig) -> None:
    if config.resume == "auto":
        return
    if is_address(config.resume):
        if complaint := address_complaint(config.resume) or library_complaint(config.resume):
            raise UserError(f"resume is {config.resume}, {complaint}")
        return
    if config.resume == "never":
        if holds_run(checked_path(config.output_dir, "output_dir")):
            raise UserError(
                f"resume is never, but output_dir {config.output_dir} already contains a run; "
                "give another output_dir, or set resume to auto to continue that run"
            )
    elif not checked_path(config.resume, "resume").exists():
        raise UserError(f"resume is {config.resume}, which does not exist; give auto, never, or a checkpoint's folder")
