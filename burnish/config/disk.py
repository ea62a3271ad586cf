"""Checks of the files that a run reads and writes, before torch is imported."""

from __future__ import annotations

import os
from collections.abc import Callable

from burnish.config.language import LanguageConfig
from burnish.config.machine import machine_complaints
from burnish.config.run import RunConfig
from burnish.models.flow.loading import family_of, parts_of, read_index
from burnish.models.language.loading import check_files
from burnish.rewards.images.function import Function
from burnish.rewards.text.function import LanguageFunction
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.paths import PREFIX, holds_run, resolve
from burnish.utils.reading import checked_path
from burnish.utils.weights import complaints_about, tokenizer_complaint


def check_disk(config: RunConfig) -> None:
    """Refuse a run whose model, prompts or functions are missing, or whose output folder can't be written.

    Raises:
        ConfigError: with all problems.
    """
    problems = disk_problems(config)
    if problems:
        raise ConfigError(problems)


def disk_problems(config: RunConfig) -> list[str]:
    """What keeps a run from starting on this machine."""
    checks: list[Callable[[RunConfig], None]] = [
        _machine, _model, _train_files, _val_files, _ptx_files, _rewards, _output, _resume,
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


def _model(config: RunConfig) -> None:
    path = config.model.path
    try:
        found = resolve(path)
    except UserError as error:
        raise UserError(f"model.path: {error}") from None
    looks_like_hub = path.count("/") == 1 and not path.startswith((".", "~", "/", PREFIX))
    if not found.exists() and looks_like_hub:
        raise UserError(
            f"model.path is {path}, which is not a directory, and Burnish downloads nothing; "
            f"fetch it with: hf download {path} --local-dir DIR, and set model.path=DIR"
        )
    if isinstance(config, LanguageConfig):
        check_files(config.model)
        return
    _, index = read_index(config.model)
    parts = [found / name for name in parts_of(index)]
    wrong = [one for part in parts if (part / "config.json").is_file() for one in complaints_about(part)]
    wrong += [one for part in parts if part.name.startswith("tokenizer") and (one := tokenizer_complaint(part))]
    if wrong:
        raise UserError("\n".join(f"model.path: {problem}" for problem in wrong))
    family_of(config.model, index).check_options(
        found,
        max_sequence_length=config.rollout.max_sequence_length,
        embedded_guidance=config.rollout.embedded_guidance,
    )


def _train_files(config: RunConfig) -> None:
    for path in _listed(config.data.train_files):
        _prompts("data.train_files", path, config)


def _val_files(config: RunConfig) -> None:
    for path in _listed(config.data.val_files or []):
        _prompts("data.val_files", path, config)


def _ptx_files(config: RunConfig) -> None:
    if isinstance(config, LanguageConfig) and config.ptx is not None:
        for path in _listed(config.ptx.train_files):
            _prompts("ptx.train_files", path, config)


def _rewards(config: RunConfig) -> None:
    """Python files of reward functions."""
    complaints = []
    for label, reward in config.rewards.items():
        if not isinstance(reward, (Function, LanguageFunction)):
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


def _listed(files: str | list[str]) -> list[str]:
    return [files] if isinstance(files, str) else files


def _prompts(option: str, path: str, config: RunConfig) -> None:
    try:
        found = resolve(path)
    except UserError as error:
        raise UserError(f"{option}: {error}") from None
    language = isinstance(config, LanguageConfig)
    # images with captions, and data sets of language models, may be folders
    folders = language or config.algorithm.needs().data != "prompts"
    if not found.is_file() and not (found.is_dir() and folders):
        kinds = "a .jsonl, .json or .parquet file of records" if language else "a .txt or .jsonl file of prompts"
        why = "a folder; give a file" if found.is_dir() else f"not there; give {kinds}"
        raise UserError(f"{option} is {path}, which is {why}")
    if not os.access(found, os.R_OK):
        raise UserError(f"{option} is {path}, which is not readable; change its permissions or give another file")


def _output(config: RunConfig) -> None:
    folder = checked_path(config.output_dir, "output_dir").absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(f"output_dir is {config.output_dir}, but {nearest} is a file; give another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"output_dir is {config.output_dir}, but {nearest} is not writable; give another folder")


def _resume(config: RunConfig) -> None:
    if config.resume == "auto":
        return
    if config.resume == "never":
        if holds_run(checked_path(config.output_dir, "output_dir")):
            raise UserError(
                f"resume is never, but output_dir {config.output_dir} already contains a run; "
                "give another output_dir, or set resume to auto to continue that run"
            )
    elif not checked_path(config.resume, "resume").exists():
        raise UserError(f"resume is {config.resume}, which does not exist; give auto, never, or a checkpoint's folder")
