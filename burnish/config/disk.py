"""Checks of this machine, and of the files that a run reads and writes, before torch is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from tempfile import TemporaryDirectory

from burnish.config.hub import missing_model, missing_scorers
from burnish.config.run import RunConfig
from burnish.data.records import check_own
from burnish.data.sets import named_by
from burnish.data.values import check_template
from burnish.utils.addresses import is_address, library_complaint
from burnish.utils.disk import write_error
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.hub import HubModel, hub_data, model_folder
from burnish.utils.installed import lacking
from burnish.utils.paths import check_run_folder, holds_run, resolve
from burnish.utils.reading import checked_path


def check_disk(config: RunConfig) -> None:
    """Refuse a run whose model, prompts or functions are missing, or whose output folder can't be written.

    Raises:
        ConfigError: with all problems.
    """
    if problems := disk_problems(config):
        raise ConfigError(problems)
    if not is_address(config.model.path):  # what is there is seen when it is fetched
        config.check_model(model_folder(config.model.path, index=config.model_index))  # imports PyTorch


def disk_problems(config: RunConfig) -> list[str]:
    """What keeps a run from starting on this machine, as far as that is known without reading its model's files."""
    checks: list[Callable[[RunConfig], Iterable[str] | None]] = [
        machine_complaints, _model, *(partial(_prompts, option) for option in config.prompt_files),
        lambda config: check_template(config.data.template), _rewards, _output, _resume, _libraries,
    ]  # fmt: skip
    problems: list[str] = []
    for check in checks:
        try:
            problems += check(config) or ()
        except UserError as error:
            problems += error.complaints if isinstance(error, ConfigError) else [str(error)]
    return problems


def _libraries(config: RunConfig) -> Iterator[str]:
    """What trackers and addresses need."""
    for name in config.trackers.libraries():
        if complaint := lacking(name):
            yield f"trackers.{name} {complaint}"
    addresses = {
        "checkpoint.copy_to": config.checkpoint.copy_to, "resume": config.resume, "model.path": config.model.path
    }  # fmt: skip
    for option, address in addresses.items():
        if address is not None and is_address(address) and (complaint := library_complaint(address)):
            yield f"{option} is {address}, {complaint}"


def _model(config: RunConfig) -> None:
    if is_address(config.model.path):
        return
    if (model := missing_model(config)) is not None:
        raise UserError(_not_here("model.path", model))
    try:
        model_folder(config.model.path, index=config.model_index)
    except UserError as error:
        raise UserError(str(error) if "model." in str(error) else f"model.path: {error}") from None


def _not_here(option: str, model: HubModel) -> str:
    return (
        f"{option} is {model.name}, which is not on this machine yet: burnish train downloads it from the Hugging Face "
        f"hub; or fetch it with: {model.command()}, and set {option}=DIR"
    )


def _rewards(config: RunConfig) -> Iterator[str]:
    """Python files of reward functions, and networks of the hub."""
    functions = [(label, reward, path) for label, reward in config.rewards.items() for path in reward.user_code()]
    for label, reward, path in functions:
        where, _, name = path.rpartition(":")
        if where.endswith(".py") and not checked_path(where).exists():
            yield (
                f"rewards.{label}.path is {path}, but there is no {where}. Write it: it must define "
                f"{name}({reward.judged}, prompts), which returns one number for each of the {reward.judged}; "
                f"or choose another reward: rewards.{label}=null rewards.NAME.weight=1"
            )
    yield from (_not_here(model.option, model) for model in missing_scorers(config))


def _prompts(option: str, config: RunConfig) -> None:
    for path in config.prompt_files[option]:
        try:
            found = resolve(path)
        except UserError as error:
            raise UserError(f"{option}: {error}") from None
        if not found.exists() and check_own(path):
            continue
        if not found.exists() and (hub := hub_data(path)) is not None:
            hub.check()
            continue
        if not found.is_file() and not found.is_dir():
            way = f"write it with: burnish data prepare {of_set}; or " if (of_set := named_by(path)) else ""
            raise UserError(f"{option} is {path}, which is not there; {way}give {config.prompt_file}")
        if not os.access(found, os.R_OK):
            raise UserError(f"{option} is {path}, which is not readable; change its permissions or give another file")


def _output(config: RunConfig) -> None:
    folder = checked_path(config.output_dir, "output_dir").absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with TemporaryDirectory(prefix=".burnish-", dir=nearest):  # permissions alone don't tell on every disk
            pass
    except OSError as error:
        raise UserError(f"output_dir is {config.output_dir}: {write_error(nearest, error)}") from None
    check_run_folder(config.output_dir)


def _resume(config: RunConfig) -> Iterator[str]:
    resume = config.resume
    if resume == "never" and holds_run(checked_path(config.output_dir, "output_dir")):
        yield (
            f"resume is never, but output_dir {config.output_dir} already contains a run; give another output_dir, or "
            "set resume to auto to continue that run"
        )
    elif resume not in ("auto", "never") and not is_address(resume) and not checked_path(resume, "resume").exists():
        yield (
            f"resume is {resume}, which does not exist; give auto, never, or a checkpoint's folder: "
            + (", ".join(sorted(map(str, checked_path(resume, "resume").parent.glob("0*")))) or "none is beside it")
        )


def machine_complaints(config: RunConfig) -> Iterator[str]:
    """Options that exceed this machine; nothing for a cluster, whose machines are unknown here."""
    if config.runtime != "local":
        return
    for section, optimizer in config.optimizers.items():
        if complaint := lacking(optimizer.optimizer.name):
            yield f"{section}.name={optimizer.optimizer.name} {complaint}"
    if (fewer := config.model.quantization) is not None:
        chosen = {"weights": fewer.weights, "text_encoders": getattr(fewer, "text_encoders", None)}
        for name, precision in chosen.items():
            if precision is not None and (complaint := lacking(precision)):
                yield f"model.quantization.{name}={precision} {complaint}"
