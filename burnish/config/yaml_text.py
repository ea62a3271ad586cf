"""YAML with 1e-4 as a number, yes and 12:30 as strings, and without duplicate keys."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml
from yaml.composer import Composer

from burnish.utils.errors import ConfigError

LARGEST = 1 << 20  # characters of a recipe
MOST = 100_000  # values of a recipe, each alias counted as often as it is used
DEEPEST = 60  # nesting depth

_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_WORDS = [
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
]


class _Loader(Composer, yaml.CSafeLoader):
    """libyaml cuts the text into tokens, which takes most of the time; nodes are put together here, within limits."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012
    yaml_constructors = {  # noqa: RUF012
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
    }

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self._depth = 0
        self._values: dict[yaml.Node, int] = {}  # values of a node, aliases expanded

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node, unless it is too deep or too large: aliases of aliases can expand to billions of values."""
        event: Any = self.peek_event()
        where = event.start_mark
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"nested more than {DEEPEST} levels", where)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if node not in self._values:
            if isinstance(event, yaml.AliasEvent):
                raise yaml.composer.ComposerError(None, None, "a list or section contains itself", where)
            self._values[node] = 1 + sum(self._values[one] for one in _inside(node))
        if self._values[node] > MOST:
            raise yaml.composer.ComposerError(
                None, None, f"more than {MOST} values, each alias (*) counted as often as it is used", where
            )
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "names of options must be words", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _inside(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [one for pair in node.value for one in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


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
    if len(text) > LARGEST:
        raise ConfigError(f"it has {len(text)} characters; a recipe has at most {LARGEST}")
    try:
        value = yaml.load(text, _Loader)
        json.dumps(value)
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = len(text.splitlines())  # what ends too early is found after it
        line = f"line {min(mark.line + 1, last)}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{line}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"it can't be read: {' '.join(str(error).split())}") from None
    except (ValueError, KeyError) as error:  # !!int of a string that is no number, or a list that contains itself
        raise ConfigError(f"it has an invalid value: {error}") from None


def show(value: Any) -> str:
    """A value on one line, as in a recipe."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...").removesuffix("\n")
