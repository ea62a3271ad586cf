"""Configurations as text: explained YAML, and differences."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from burnish import __version__
from burnish.config.checks import plain
from burnish.config.plugins import portable
from burnish.config.run import RunConfig
from burnish.config.yaml_text import brief, show
from burnish.registry import Named, explanation, fields
from burnish.rl.algorithm import Algorithm
from burnish.utils.json_text import flattened

COLUMN = 34  # of the explanations


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Every option as plain data, with the names of algorithm, environments and rewards."""
    return json.loads(json.dumps(plain(config, full=True)))  # type: ignore[no-any-return]


def dump(config: RunConfig) -> str:
    """YAML that ``load`` reads as the same configuration."""
    return describe(config, "a run")


def changes(before: RunConfig, after: RunConfig) -> list[str]:
    """Differences between two configurations, one option per line."""
    old, new = dict(flattened(to_dict(before))), dict(flattened(to_dict(after)))
    absent = object()

    def word(value: Any) -> str:
        return "not set" if value is absent else show(value)

    pairs = {path: (old.get(path, absent), new.get(path, absent)) for path in {**old, **new}}
    differing = {path: pair for path, pair in pairs.items() if portable(path, pair[0]) != portable(path, pair[1])}
    return [f"{path}: {word(was)} -> {word(now)}" for path, (was, now) in differing.items()]


def describe(config: RunConfig, title: str) -> str:
    """The configuration as a recipe, each option with its explanation, and its default if it differs."""
    lines = [text + words for line in explained(config) for text, words in line.lines()]
    return "\n".join([*heading(title), *lines]) + "\n"


def heading(title: str) -> list[str]:
    """The first lines of a configuration as a recipe."""
    return [
        f"# {' '.join(title.split())}, every option resolved by Burnish {__version__}",
        "# This is a recipe: save it and train it. [default ...] marks options that differ from their default.",
    ]


class Line(NamedTuple):
    """An option of a configuration."""

    path: str
    text: str  # name and value
    words: str  # that explain it

    def lines(self) -> Iterator[tuple[str, str]]:
        """Name and value with what stands behind them; long ones have their words above."""
        indent = self.text[: len(self.text) - len(self.text.lstrip())]
        if self.words and len(self.text) > 2 * COLUMN:
            yield indent, f"# {self.words}"
            yield self.text, ""
        else:
            yield f"{self.text:<{COLUMN}}  " if self.words else self.text, f"# {self.words}" if self.words else ""


def explained(config: RunConfig) -> list[Line]:
    """Every option and every section of a configuration, in order."""
    return list(_section(config, ""))


def _section(section: Any, above: str) -> Iterator[Line]:
    """The options of a section whose path is ``above``."""
    if is_named(section):
        yield _line(above, "name", section.name, _summary(section))
    for name, field in fields(section).items():
        value, words = getattr(section, name), explanation(section, name)
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        nested = dataclasses.is_dataclass(value)
        if not field.is_required() and not is_named(value) and (default is None if nested else value != default):
            words = f"[default {brief(plain(default), 40)}] {words}"
        if nested:
            yield _line(above, name, ..., words)
            yield from _section(value, f"{above}{name}.")
        elif name == "rewards" and not above and value:
            yield _line(above, name, ..., words)
            for label, reward in value.items():
                yield Line(f"rewards.{label}", f"  {show(label)}:", "")
                yield from _section(reward, f"rewards.{label}.")
        else:
            yield _line(above, name, value, words)


def is_named(section: Any) -> bool:
    """Whether a section is an entry of the registry, whose name stands before its options."""
    return isinstance(section, Named | Algorithm) and "name" not in fields(section)


def _line(above: str, name: str, value: Any, words: str) -> Line:
    """An option; ``...`` is the value of a section."""
    text = "  " * above.count(".") + (f"{name}:" if value is ... else f"{name}: {show(plain(value))}")
    return Line(f"{above}{name}", text, words)


def _summary(thing: Any) -> str:
    return " ".join((type(thing).__doc__ or "").split("\n\n")[0].split())
