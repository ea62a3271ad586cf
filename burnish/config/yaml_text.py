"""YAML with 1e-4 as a number, yes and 12:30 as strings, and without duplicate keys."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from burnish.utils.errors import ConfigError

LARGEST = 1 << 20  # characters of a recipe in the folder of a run

_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_WORDS = [
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
]


class _Loader(yaml.CSafeLoader):
    """YAML 1.2's scalars; mappings whose names are words, each given once."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "names of options must be words", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes every string that YAML 1.1 or our own loader would read as something else."""


for _name, _pattern, _first in _WORDS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _pattern, _first)
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
