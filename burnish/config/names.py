"""The options that there are: by place, by name, and what a shell may complete."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from burnish.config.run import RunConfig
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

    def options_at(self, place: Sequence[str | int]) -> Any:
        """The class of options at a place, as names in the tree choose it; None if there is none."""
        kinds: Types = [self.config]
        value: Any = self.tree
        for name in place:
            section = _section(kinds, value)
            if section is not None and name in fields(section):
                kinds = types_of(fields(section)[str(name)])
            elif (inside := _inside(kinds)) is not None:
                kinds = [inside]
            else:
                return None
            value = _get(value, name)
        return _section(kinds, value)

    def every_option(self) -> list[str]:
        """All dotted options and sections, including those of what names choose."""
        return list(_options(self.config, self.tree))


def types_of(field: Any) -> Types:
    """What an option may be, with what marks it."""
    return [*field.metadata, field.annotation]


def options_of(kind: str, name: str) -> list[str]:
    """The options of an entry of a kind, and of their sections."""
    return list(_options(lookup(kind, name), {}))


def completed(context: Context, word: str) -> list[str]:
    """What an override may become: the next part of an option's name, or its values.

    Args:
        context: of the recipe and of the overrides before.
        word: the beginning of an override.
    """
    option, given, value = word.partition("=")
    if given:
        return [f"{option}={one}" for one in _values(context, option.split(".")) if one.startswith(value)]
    options = [one for one in context.every_option() if one.startswith(word)]
    ends = {one: one.find(".", len(word)) for one in options}
    found = dict.fromkeys(f"{one}=" if end < 0 else one[: end + 1] for one, end in ends.items())
    # a section is offered by its dot alone
    return [one for one in found if not (one.endswith("=") and f"{one[:-1]}." in found)]


def _values(context: Context, place: list[str]) -> Iterator[str]:
    """The values of an option that has few; none of the others."""
    *above, name = place if place != ["algorithm", "name"] else place[:1]
    section = context.options_at(above)
    for one in _members(types_of(fields(section)[name])) if section is not None and name in fields(section) else ():
        if isinstance(one, Choice):
            yield from names(one.kind)
        elif one is bool:
            yield from ("true", "false")
        elif typing.get_origin(one) is Literal:
            yield from map(str, typing.get_args(one))
        elif one is type(None):
            yield "null"


def _members(kinds: Types) -> Iterator[Any]:
    """Types and marks, those of unions one by one."""
    for one in kinds:
        if typing.get_origin(one) in UNIONS:
            yield from _members(typing.get_args(one))
        else:
            yield one


def _section(kinds: Types, value: Any) -> Any:
    """The class of options among types: of a choice, the one that the value names."""
    members = list(_members(kinds))
    for one in members:
        if isinstance(one, Choice):
            name = value if isinstance(value, str) else _get(value, "name")
            return lookup(one.kind, name) if name in names(one.kind) else None
    return next((one for one in members if isinstance(one, type) and dataclasses.is_dataclass(one)), None)


def _inside(kinds: Types) -> Any:
    """The type of what a list or a mapping holds; None if it is neither."""
    holders = (one for one in _members(kinds) if typing.get_origin(one) in (list, dict))
    return next((typing.get_args(one)[-1] for one in holders), None)


def _get(value: Any, name: str | int) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    return value[name] if isinstance(value, list) and isinstance(name, int) and name < len(value) else None


def _options(section: Any, tree: Any) -> Iterator[str]:
    """The options of a class and of its sections, with those of the entries that ``tree`` chooses."""
    for name, field in fields(section).items():
        kinds, value = types_of(field), _get(tree, name)
        yield name
        yield from (f"{name}.{one}" for one in _within(kinds, value))
        inside = _inside(kinds)
        for label in value if isinstance(value, Mapping) and inside is not None else ():
            if one := list(_within([inside], value[label])):
                yield f"{name}.{label}"
                yield from (f"{name}.{label}.{option}" for option in one)


def _within(kinds: Types, value: Any) -> Iterator[str]:
    section = _section(kinds, value)
    if any(isinstance(one, Choice) for one in _members(kinds)) and (section is None or "name" not in fields(section)):
        yield "name"
    if section is not None:
        yield from _options(section, value)


def _holds(tree: Any, option: Sequence[str]) -> bool:
    """Whether a tree sets an option or one of its sections."""
    for name in option:
        if not isinstance(tree, Mapping):
            return True
        if name not in tree:
            return False
        tree = tree[name]
    return True
