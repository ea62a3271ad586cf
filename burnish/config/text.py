"""Configurations as text: explained YAML, and differences."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from burnish import __version__
from burnish.config.plugins import portable
from burnish.config.run import RunConfig
from burnish.config.yaml_text import show
from burnish.registry import Named, explanation, fields
from burnish.rl.algorithm import Algorithm
from burnish.utils.json_text import flattened

COLUMN = 34  # of the explanations


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Every option as plain data, with the names of algorithm, environment and rewards."""
    plain: dict[str, Any] = dataclasses.asdict(config)
    plain = json.loads(json.dumps({name: plain[name] for name in fields(config)}))
    for name in plain:
        if is_named(own := getattr(config, name)):
            plain[name] = {"name": own.name} | plain[name]
    for label, reward in config.rewards.items():
        plain["rewards"][label] = {"name": reward.name} | plain["rewards"][label]
    return plain


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
    head = [
        f"# {' '.join(title.split())}, every option resolved by Burnish {__version__}",
        "# This is a recipe: save it and train it. [default ...] marks options that differ from their default.",
    ]
    return "\n".join([*head, *_section(config, 0)]) + "\n"


def _section(section: Any, depth: int) -> Iterator[str]:
    if is_named(section):
        yield _line(depth, "name", section.name, _summary(section))
    for name, field in fields(section).items():
        value, words = getattr(section, name), explanation(section, name)
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        nested = dataclasses.is_dataclass(value)
        if not field.is_required() and not is_named(value) and (default is None if nested else value != default):
            words = f"[default {_brief(default)}] {words}"
        if nested:
            yield _line(depth, name, None, words)
            yield from _section(value, depth + 1)
        elif name == "rewards" and depth == 0 and value:
            yield _line(depth, name, None, words)
            for label, reward in value.items():
                yield f"  {show(label)}:"
                yield from _section(reward, 2)
        else:
            yield _line(depth, name, value, words, is_value=True)


def is_named(section: Any) -> bool:
    """Whether a section is an entry of the registry, whose name stands before its options."""
    return isinstance(section, Named | Algorithm) and "name" not in fields(section)


def _line(depth: int, name: str, value: Any, words: str, *, is_value: bool = False) -> str:
    indent = "  " * depth
    text = f"{indent}{name}:" + (f" {show(_plain(value))}" if is_value or value is not None else "")
    if len(text) > 2 * COLUMN:
        return f"{indent}# {words}\n{text}"
    return f"{text:<{COLUMN}}  # {words}"


def _brief(value: Any) -> str:
    text = show(_plain(value))
    return text if len(text) <= 40 else text[:37] + "..."


def _plain(value: Any) -> Any:
    """A value as YAML data; options inside lists and maps that have their default are left out."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        given = {name: getattr(value, name) for name in fields(value)}
        return {n: _plain(v) for n, v in given.items() if v != fields(value)[n].get_default(call_default_factory=True)}
    return value


def _summary(thing: Any) -> str:
    return " ".join((type(thing).__doc__ or "").split("\n\n")[0].split())
