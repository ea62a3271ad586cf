"""``a.b.c=value`` on the command line, and how configurations are merged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from burnish.config.yaml_text import parse, show
from burnish.utils.errors import ConfigError

_OPTION = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


def read_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Dotted options and their values, in the order of the command line.

    Raises:
        ConfigError: an argument is no ``option=value``, or two contradict each other.
    """
    values: dict[str, Any] = {}
    for option, value in (leaf for argument in arguments for leaf in _leaves(*split(argument))):
        before = values.setdefault(option, value)
        if before is not value and (type(before) is not type(value) or before != value):  # true is not 1
            raise ConfigError(f"{option} is given twice, as {show(before)} and as {show(value)}; leave one out")
    for option, value in values.items():
        above = next((other for other in values if option.startswith(other + ".") and values[other] != {}), None)
        if above is not None:
            raise ConfigError(
                f"{above}={show(values[above])} and {option}={show(value)} contradict each other; leave one out"
            )
    return values


def split(argument: str) -> tuple[str, Any]:
    """``a.b=1`` as its option and its value."""
    option, equals, text = argument.partition("=")
    if not equals:
        raise ConfigError(f"{argument!r} is not an option: it has no '='; write option=value, as in seed=1")
    if not _OPTION.fullmatch(option):
        raise ConfigError(
            f"{argument!r} is not an option: {option!r} is no name; write option=value, as in rollout.n=8"
        )
    if not text.strip():
        raise ConfigError(
            f"{argument} has no value; write {option}=null for none, or {option}='\"\"' for an empty string"
        )
    try:
        return option, parse(text)
    except ConfigError as error:
        raise ConfigError(f"{argument}: the value is not YAML: {error}; put it in quotes") from None


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """``below`` updated with ``above``: sections are merged recursively, everything else is replaced."""
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = merge(old if isinstance(old, dict) else {}, value) if isinstance(value, dict) else value
    return merged


def nest(values: dict[str, Any]) -> dict[str, Any]:
    """Dotted options as a tree."""
    tree: dict[str, Any] = {}
    for option, value in values.items():
        *sections, name = option.split(".")
        for section in reversed([*sections, name]):
            value = {section: value}
        tree = merge(tree, value)
    return tree


def _leaves(option: str, value: Any) -> Iterator[tuple[str, Any]]:
    if option == "algorithm" and not isinstance(value, dict):
        option = "algorithm.name"
    if not isinstance(value, dict) or not value:
        yield option, value
        return
    for name, inner in value.items():
        yield from _leaves(f"{option}.{name}", inner)
