"""Reads and checks the files of a run for the report: the folder may come from somebody else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from burnish.config.yaml_text import LARGEST, parse
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.reading import read_text

NONE = type(None)
# options that a report reads, with their types; those with a question mark are missing in older runs
SHAPE: dict[str, Any] = {
    "task?": (str,),
    "model": {"path": (str,), "lora?": (dict, NONE)},
    "data": {"train_batch_size": (int,)},
    "rollout": {"n": (int,), "guidance_scale?": (int, float, NONE)},
    "algorithm": {"name": (str,)},
    "steps?": (int,),
    "rewards?": (dict, NONE),
    "optimizer?": {},
    "checkpoint?": {},
    "output_dir?": (str,),
}


def read_configuration(file: Path) -> dict[str, Any]:
    """A run's configuration as plain data, {} if there is none; algorithms and rewards are not looked up.

    Raises:
        UserError: it was not written by a run.
    """
    if not file.exists():
        return {}
    try:
        if file.stat().st_size > LARGEST:
            raise ConfigError(f"it has {file.stat().st_size} bytes")
        content = parse(read_text(file))
        if wrong := _wrong(content, SHAPE, "") or _wrong_rewards(content):
            raise ConfigError(wrong)
    except ConfigError as error:
        raise UserError(f"{file} is not the configuration of a run: {error}; restore it") from None
    found: dict[str, Any] = content
    return found


def _wrong(content: Any, shape: dict[str, Any], where: str) -> str:
    if not isinstance(content, dict):
        return f"{where.rstrip('.') or 'it'} has no options"
    for key, kind in shape.items():
        name = key.removesuffix("?")
        if name not in content:
            if name == key:
                return f"{where}{name} is missing"
        elif isinstance(kind, dict):
            if wrong := _wrong(content[name], kind, f"{where}{name}."):
                return wrong
        elif type(content[name]) not in kind:
            return f"{where}{name} is no {kind[0].__name__}"
    return ""


def _wrong_rewards(content: dict[str, Any]) -> str:
    for options in (content.get("rewards") or {}).values():
        if options is not None and not (isinstance(options, dict) and is_number(options.get("weight", 0))):
            return "rewards has something other than rewards"
    lora = content["model"].get("lora")
    return "model.lora.rank is missing" if lora is not None and "rank" not in lora else ""


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and no bool."""
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 2**53)


def leads_out(file: Path, folder: Path) -> bool:
    """Whether a path below a folder leads outside, by a link or by dots."""
    try:
        return not file.resolve().is_relative_to(folder.resolve())
    except RuntimeError:  # links that lead in a circle
        return True
