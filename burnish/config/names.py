"""The options that there are: by place, by name, and what a shell may complete."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from burnish.config.run import RunConfig
from burnish.config.yaml_text import at
from burnish.registry import Choice, fields, lookup, names

UNIONS: tuple[Any, ...] = (typing.Union, types.UnionType, typing.Annotated)
Types = Sequence[Any]  # what an option may be, with what marks it


@dataclass(frozen=True)
class Context:
    """A configuration before it is checked, for messages about it."""

    layers: Sequence[tuple[str, Mapping[str, Any]]]  # the recipe, then the recipes that it extends: file, content
    given: Mapping[str, Any]  # dotted options of the command line
    tree: Mapping[str, Any]
    config: type[RunConfig]  # of the task

    @property
    def recipe(self) -> str:
        """File name of the recipe."""
        return self.layers[0][0]

    def origin(self, option: str) -> str:
        """`` (in FILE)`` for an option that was not given on the command line."""
        if any(one == option or one.startswith(f"{option}.") or option.startswith(f"{one}.") for one in self.given):
            return ""
        holding = (file for file, tree in self.layers if _holds(tree, option.split(".")))
        return f" (in {next(holding, self.recipe)})"

    @cached_property
    def options(self) -> dict[str, tuple[Types, Any]]:
        """All dotted options and sections, those of what names choose too: what each may be, and a section's class."""
        return {path: (kinds, section) for path, kinds, section in _walk([self.config], self.tree, "")}

    def options_at(self, place: Sequence[str | int]) -> Any:
        """The class of options at a place, as names in the tree choose it; None if there is none."""
        return self.options.get(".".join(map(str, place)), ((), None))[1]

    def every_option(self) -> list[str]:
        """All dotted options and sections, including those of what names choose."""
        return [path for path in self.options if path]


def options_of(kind: str, name: str) -> list[str]:
    """The options of an entry of a kind, and of their sections."""
    return [path for path, *_ in _walk([lookup(kind, name)], {}, "") if path]


def completed(context: Context, word: str) -> list[str]:
    """What an override may become: the next part of an option's name, or its values.

    Args:
        context: of the recipe and of the overrides before.
        word: the beginning of an override.
    """
    option, given, value = word.partition("=")
    if given:
        kinds, _ = context.options.get(option, ((), None))
        return [f"{option}={one}" for one in _values(kinds) if one.startswith(value)]
    options = [one for one in context.every_option() if one.startswith(word)]
    ends = {one: one.find(".", len(word)) for one in options}
    found = dict.fromkeys(f"{one}=" if end < 0 else one[: end + 1] for one, end in ends.items())
    # a section is offered by its dot alone
    return [one for one in found if not (one.endswith("=") and f"{one[:-1]}." in found)]


def _values(kinds: Types) -> Iterator[str]:
    """The values of an option that has few; none of the others."""
    for one in members_of(kinds):
        if isinstance(one, Choice):
            yield from names(one.kind)
        elif one is bool:
            yield from ("true", "false")
        elif typing.get_origin(one) is Literal:
            yield from map(str, typing.get_args(one))
        elif one is type(None):
            yield "null"


def members_of(kinds: Types) -> Iterator[Any]:
    """Types and marks, those of unions one by one."""
    for one in kinds:
        if typing.get_origin(one) in UNIONS:
            yield from members_of(typing.get_args(one))
        else:
            yield one


def _section(kinds: Types, value: Any) -> Any:
    """The class of options among types: of a choice, the one that the value names."""
    members = list(members_of(kinds))
    for one in members:
        if isinstance(one, Choice):
            name = value if isinstance(value, str) else at(value, "name")
            return lookup(one.kind, name) if name in names(one.kind) else None
    return next((one for one in members if isinstance(one, type) and dataclasses.is_dataclass(one)), None)


def _walk(kinds: Types, tree: Any, path: str) -> Iterator[tuple[str, Types, Any]]:
    """An option and what is in it, with the entries that ``tree`` chooses: path, what it may be, class of options."""
    members, section = list(members_of(kinds)), _section(kinds, tree)
    yield path, kinds, section
    above = f"{path}." if path else ""
    if any(isinstance(one, Choice) for one in members) and (section is None or "name" not in fields(section)):
        yield f"{above}name", kinds, None
    for name, field in fields(section).items() if section is not None else ():
        yield from _walk([*field.metadata, field.annotation], at(tree, name), f"{above}{name}")
    holder = next((one for one in members if typing.get_origin(one) in (list, dict)), None)
    held = dict(enumerate(tree)) if isinstance(tree, list) else tree
    for label, value in held.items() if holder is not None and isinstance(held, Mapping) else ():
        inside = list(_walk([typing.get_args(holder)[-1]], value, f"{above}{label}"))
        yield from inside if len(inside) > 1 else ()


def _holds(tree: Any, option: Sequence[str]) -> bool:
    """Whether a tree sets an option or one of its sections."""
    for name in option:
        if not isinstance(tree, Mapping):
            return True
        if name not in tree:
            return False
        tree = tree[name]
    return True
