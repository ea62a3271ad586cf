"""What a shell may complete of a recipe's options. A key press imports nothing of others, nor runs it."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any, Literal

from burnish.config.complaints import Context, every_option, section_class
from burnish.config.load import context_of
from burnish.config.text import fields
from burnish.registry import lookup, names


def completed(recipe: str, overrides: Sequence[str], word: str) -> list[str]:
    """What an override may become: the next part of an option's name, or its values.

    Args:
        recipe: its name or file.
        overrides: that were given before.
        word: the beginning of an override.

    Raises:
        ConfigError: there is no such recipe.
    """
    context = context_of(recipe, overrides)
    option, given, value = word.partition("=")
    if given:
        return [f"{option}={one}" for one in _values(context, option) if one.startswith(value)]
    found: dict[str, None] = {}
    options = every_option(context)
    for one in options:
        if one.startswith(word):
            end = one.find(".", len(word))
            found[f"{one}=" if end < 0 else one[: end + 1]] = None
    # a section is offered by its dot alone
    return [one for one in found if not (one.endswith("=") and f"{one[:-1]}." in found)]


def _values(context: Context, option: str) -> list[str]:
    """The values of an option that has few; none of the others."""
    if option in ("algorithm", "algorithm.name"):
        return names(context.config.algorithm_kind)
    kind = _annotation(context, option.split("."))
    found: list[str] = []
    for one in (kind, *typing.get_args(kind)):
        if one is bool:
            found += ["true", "false"]
        elif typing.get_origin(one) is Literal:
            found += [str(value) for value in typing.get_args(one)]
        elif one is type(None):
            found.append("null")
    return found


def _annotation(context: Context, path: list[str]) -> Any:
    """The type of an option; None if there is no such option."""
    options: Any = context.config
    for name in path[:-1]:
        if name == "algorithm" and options is context.config:
            chosen = (context.tree.get(name) or {}).get("name")
            options = lookup(context.config.algorithm_kind, chosen) if chosen in _known(context) else None
        else:
            options = section_class(fields(options)[name].annotation) if name in fields(options) else None
        if options is None:
            return None
    field = fields(options).get(path[-1])
    return None if field is None else field.annotation


def _known(context: Context) -> list[str]:
    return names(context.config.algorithm_kind)
