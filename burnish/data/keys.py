"""Keys that the options of data name and that no record has: a misspelt one would leave out pictures unsaid."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import fields
from typing import Any

from burnish.options.data import RecordOptions
from burnish.types.prompt import Prompts
from burnish.utils.errors import ConfigError


def check_keys(prompts: Prompts, options: RecordOptions) -> None:
    """Refuse a key that an option names and not one training prompt has.

    Each record is asked for its prompt by itself; data.extra_keys leave nothing out where they are missing.

    Raises:
        UserError: with every such key.
    """
    kinds = prompts.kinds
    there: dict[str, Callable[[str], bool]] = {
        "images_key": lambda key: any(one.images for one in kinds),
        "videos_key": lambda key: any(one.videos for one in kinds),
        "audios_key": lambda key: any(one.audios for one in kinds),
        "answer_key": lambda key: any(one.answer is not None for one in kinds),
        "label_key": lambda key: any(one.label is not None for one in kinds),
        "input_keys": lambda key: any(key == name for one in kinds for name, _ in one.inputs),
    }
    complaints = [
        f"data.{option} is {key}, which none of the {len(prompts)} records of data.train_files has; correct it, or "
        "leave it out"
        for option, key in _named(options, there)
        if not there[option](key)
    ]
    if complaints:
        raise ConfigError(complaints)


def _named(options: Any, wanted: Container[str]) -> list[tuple[str, str]]:
    """Keys that differ from those that are looked for anyway, each with its option."""
    found = []
    for field in fields(options):
        if field.name not in wanted:
            continue
        value = getattr(options, field.name)
        if isinstance(value, list):
            usual = type(options).__pydantic_fields__[field.name].get_default(call_default_factory=True) or []
            found += [(field.name, one) for one in value if one not in usual]
        elif isinstance(value, str):
            found.append((field.name, value))
    return found
