"""Values as users write them: a.b.c=value, and YAML with 1e-4 as a number and without duplicate keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from burnish.utils.errors import ConfigError
from burnish.utils.json_text import flattened

_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_WORDS = [
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("merge", re.compile(r"^<<$"), "<"),
]


NAMES = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")  # what names of options are, and <<


class _Loader(yaml.CSafeLoader):
    """YAML 1.2's scalars, and merged mappings; those whose names are words, each given once."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in NAMES:
                raise yaml.constructor.ConstructorError(None, None, "names of options must be words", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            if ":" in key.value and value.value == "":
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} needs a space behind its colon", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes every string that YAML 1.1 or our own loader would read as something else."""


for _name, _pattern, _first in _WORDS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _pattern, _first)
_Dumper.add_multi_representer(str, yaml.SafeDumper.represent_str)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse(text: str) -> Any:
    """Parse YAML.

    Raises:
        ConfigError: it is not valid; the message has line and reason.
    """
    try:
        value = yaml.load(text, _Loader)
        json.dumps(value)  # no dates, sets or lists that contain themselves
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = len(text.splitlines())  # what ends too early is found after it
        line = f"line {min(mark.line + 1, last)}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{line}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"it can't be read: {' '.join(str(error).split())}") from None
    except (ValueError, KeyError, TypeError) as error:  # !!int of a string that is no number, !!timestamp
        reason = "a list or section contains itself" if "Circular" in str(error) else error
        raise ConfigError(f"it has an invalid value: {reason}") from None
    except RecursionError:
        raise ConfigError("it is nested too deep") from None


def show(value: Any) -> str:
    """A value on one line, as in a recipe."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...").removesuffix("\n")


def brief(value: Any, most: int = 60) -> str:
    """A value on one line, cut to so many characters."""
    text = show(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


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
            raise ConfigError(f"{option} is given twice, as {show(before)} and as {show(value)}; remove one")
    for option, value in values.items():
        above = next((other for other in values if option.startswith(other + ".") and values[other] != {}), None)
        if above is not None:
            raise ConfigError(
                f"{above}={show(values[above])} and {option}={show(value)} contradict each other; remove one"
            )
    return values


def split(argument: str) -> tuple[str, Any]:
    """``a.b=1`` as its option and its value."""
    option, equals, text = argument.partition("=")
    if not equals:
        raise ConfigError(f"{argument!r} is not an option: it has no '='; write option=value, as in seed=1")
    if not _OPTION.fullmatch(option):
        raise ConfigError(
            f"{argument!r} is not an option: {option!r} is not a name; write option=value, as in rollout.n=8"
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


def at(tree: Any, *place: str | int) -> Any:
    """What a tree has at a place, whatever else it may be; None where there is nothing."""
    for name in place:
        if isinstance(tree, Mapping):
            tree = tree.get(name)
        else:
            tree = tree[name] if isinstance(tree, list) and isinstance(name, int) and name < len(tree) else None
    return tree


def nest(values: dict[str, Any]) -> dict[str, Any]:
    """Dotted options as a tree."""
    tree: dict[str, Any] = {}
    for option, value in values.items():
        for section in reversed(option.split(".")):
            value = {section: value}
        tree = merge(tree, value)
    return tree


def _leaves(option: str, value: Any) -> Iterator[tuple[str, Any]]:
    if option == "algorithm" and not isinstance(value, dict):
        option = "algorithm.name"
    return flattened({option: value})
