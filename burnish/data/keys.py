"""Keys that the options of data name and that no record has: a misspelt one would leave out pictures unsaid."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import fields
from typing import Any

from burnish.options.data import RecordOptions
from burnish.types.prompt import Prompt
from burnish.utils.errors import ConfigError


def check_keys(prompts: Sequence[Prompt], options: RecordOptions) -> None:
    """Refuse a key that an option names and not one training prompt has.

    Each record is asked for its prompt by itself; data.extra_keys leave nothing out where they are missing.

    Raises:
        UserError: with every such key.
    """
    there: dict[str, Callable[[str], bool]] = {
        "images_key": lambda key: any(one.images for one in prompts),
        "videos_key": lambda key: any(one.videos for one in prompts),
        "audios_key": lambda key: any(one.audios for one in prompts),
        "answer_key": lambda key: any(one.answer is not None for one in prompts),
        "label_key": lambda key: any(one.label is not None for one in prompts),
        "input_keys": lambda key: any(key == name for one in prompts for name, _ in one.inputs),
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
