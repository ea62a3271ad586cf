"""Messages about invalid options: full name, value, and what to do."""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.config.foreign import foreign_name
from burnish.config.run import RunConfig
from burnish.config.text import explanation, fields
from burnish.config.yaml_text import show
from burnish.registry import Choice, lookup, names

NAMED = 120  # most characters shown of an unknown option's name

_KINDS = {
    "string_type": "text; write numbers, true, false and null in quotes if they are meant as text",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list, as in [a,b]",
    "tuple_type": "a list, as in [0.9,0.999]",
    "dict_type": "options by name",
    "dataclass_type": "a section with options of its own",
}
_BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}


@dataclass(frozen=True)
class Context:
    """The configuration that a message is about."""

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
        on_line = any(
            one == option or one.startswith(option + ".") or option.startswith(one + ".") for one in self.given
        )
        holding = (file for file, tree in self.layers if _holds(tree, option.split(".")))
        return "" if on_line else f" (in {next(holding, self.recipe)})"


def _holds(tree: Any, option: Sequence[str]) -> bool:
    """Whether a tree sets an option or one of its sections."""
    for name in option:
        if not isinstance(tree, Mapping):
            return True
        if name not in tree:
            return False
        tree = tree[name]
    return True


def complain(error: Any, path: tuple[str, ...], kind: Any, context: Context) -> str:
    """Message of a pydantic validation error."""
    location, value, error_type = (*path, *map(str, error["loc"])), error["input"], error["type"]
    option = ".".join(location)
    if error_type == "unexpected_keyword_argument":
        return unknown(location, value, context)
    if error_type == "missing" and not location[-1].isdigit():
        return _missing(location, kind, len(path), context)
    if error_type == "value_error":
        return _inconsistent(str(error["ctx"]["error"]), location, kind, len(path)) + context.origin(option)
    if error_type == "literal_error":
        choices = [choice.strip().strip("'") for choice in error["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        return wrong_choice(option, value, choices) + context.origin(option)
    if error_type in _BOUNDS:
        key, sign = _BOUNDS[error_type]
        must = f"{sign} {_bound(error['ctx'][key])}"
    elif error_type == "missing":  # a value of a tuple
        option = ".".join(location[:-1])
        must = f"a list of {_length(kind, error['loc'])} values"
    elif error_type in ("too_long", "too_short"):
        most, least = (error["ctx"].get(f"{bound}_length") for bound in ("max", "min"))
        must = f"a list of {most} values" if most is not None else f"a list of at least {least} values"
    else:
        must = _KINDS.get(error_type, f"otherwise: {error['msg']}")
    sweep = "; --sweep runs each value in turn" if isinstance(value, str) and "," in value else ""
    return f"{option} is {_short(value)}; it must be {must}{sweep}{context.origin(option)}"


def wrong_choice(option: str, value: Any, choices: Sequence[str], *, short: bool = False) -> str:
    """``value`` is none of ``choices``; ``short`` leaves it out if the option already ends in it."""
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    subject = f"{option} is not known" if short else f"{option} is {_short(value)}"
    return f"{subject}; {hint}It must be one of {', '.join(choices)}".replace("; It", "; it").replace("? It", "? It")


def unknown(location: tuple[str, ...], value: Any, context: Context) -> str:
    """Message about an unknown option: what was meant, or which algorithm or reward has it."""
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        location = (*location, name)
    option = ".".join(location)
    known = every_option(context)
    short = location[-1] not in map(_leaf, known)
    foreign = foreign_name(option, context.config.algorithm_kind.split()[0], short=short)
    why = _owner(location, context) or foreign or f"there is no such option; {_nearest(location, known)}"
    shown = option if len(option) <= NAMED else f"{option[:NAMED]}..."
    said = f"{shown} is " if foreign and why == foreign else f"{shown} is {_short(value)}, but "
    return f"{said}{why}{context.origin(option)}"


def _nearest(location: tuple[str, ...], known: Sequence[str]) -> str:
    option, section = ".".join(location), ".".join(location[:-1])
    siblings = [one for one in known if one.rpartition(".")[0] == section]
    same_name = [one for one in known if _leaf(one) == location[-1]]
    close = difflib.get_close_matches(location[-1], [_leaf(one) for one in siblings], n=1)
    near = difflib.get_close_matches(option, known, n=1)
    if close:
        return f"did you mean {'.'.join((*location[:-1], close[0]))}?"
    if near and not siblings:
        return f"did you mean {near[0]}?"
    if same_name:
        return f"did you mean {' or '.join(same_name)}?"
    return f"{section or 'a recipe'} has: {', '.join(map(_leaf, siblings)) or 'no options'}"


def _leaf(option: str) -> str:
    return option.rpartition(".")[2]


def every_option(context: Context) -> list[str]:
    """All dotted options and sections of this run, including those of its algorithm and rewards."""
    found = []
    for name, field in fields(context.config).items():
        found.append(name)
        if name in ("algorithm", "environment"):
            kind = context.config.algorithm_kind if name == "algorithm" else name
            chosen = _chosen(kind, context.tree.get(name))
            found += [f"{name}.{one}" for one in ["name", *_options(chosen, context.tree.get(name))]]
        elif name == "rewards":
            rewards = context.tree.get("rewards")
            for label, tree in rewards.items() if isinstance(rewards, Mapping) else ():
                reward = _chosen(context.config.reward_kind, tree, label)
                found += [f"rewards.{label}", *(f"rewards.{label}.{one}" for one in ["name", *_options(reward, tree)])]
        else:
            found += [f"{name}.{one}" for one in _options(section_class(field.annotation))]
    return found


def section_class(annotation: Any) -> Any:
    """The options class in a type such as ``LoraOptions | None``; None if there is none."""
    candidates = [annotation, *typing.get_args(annotation)]
    return next((one for one in candidates if isinstance(one, type) and dataclasses.is_dataclass(one)), None)


def _length(kind: Any, loc: Sequence[str | int]) -> int:
    """Length of the tuple option of ``kind`` that has no value at ``loc``."""
    annotation = kind
    for name in loc[:-1]:
        if isinstance(name, int):  # an item of a list
            lists = (one for one in (annotation, *typing.get_args(annotation)) if typing.get_origin(one) is list)
            annotation = typing.get_args(next(lists))[0]
        else:
            annotation = fields(section_class(annotation))[name].annotation
    kinds = (one for one in (annotation, *typing.get_args(annotation)) if typing.get_origin(one) is tuple)
    return len(typing.get_args(next(kinds)))


def _options(cls: Any, tree: Any = None) -> Iterator[str]:
    """The options of a class and of its sections, with those of the entries that ``tree`` chooses."""
    if cls is None:
        return
    for name, field in fields(cls).items():
        yield name
        own = tree.get(name) if isinstance(tree, Mapping) else None
        choice = next((one for one in field.metadata if isinstance(one, Choice)), None)
        inner = section_class(field.annotation) if choice is None else _chosen(choice.kind, own)
        yield from (f"{name}.{one}" for one in _options(inner, own))


def _chosen(kind: str, tree: Any, default: str | None = None) -> Any:
    name = tree.get("name", default) if isinstance(tree, Mapping) else default
    return lookup(kind, name) if name in names(kind) else None


def _owner(location: tuple[str, ...], context: Context) -> str:
    """Which other algorithms or rewards have the option, if any."""
    kinds = {"algorithm": context.config.algorithm_kind, "rewards": context.config.reward_kind}
    kind, word = kinds.get(location[0]), location[0].removesuffix("s")
    above = location[:1] if word == "algorithm" else location[:2]
    inner = ".".join(location[len(above) :])
    if kind is None or not inner:
        return ""
    tree = context.tree[location[0]] if word == "algorithm" else context.tree["rewards"].get(location[1])
    mine = _chosen(kind, tree, None if word == "algorithm" else location[1])
    others = [name for name in names(kind) if inner in _options(lookup(kind, name))]
    if not others or mine is None:
        return ""
    article = "an" if word == "algorithm" else "a"
    return (
        f"{location[-1]} is an option of {', '.join(others)}; {mine.name}, which this run uses, never reads it; "
        f"leave it out, or choose {article} {word} that does"
    )


def _missing(location: tuple[str, ...], kind: Any, start: int, context: Context) -> str:
    section = section_class(kind)
    for name in location[start:-1]:
        section = section_class(fields(section)[name].annotation)
    words = explanation(section, location[-1])
    what = f"{'.'.join(location)} is required: {words[:1].lower()}{words[1:]}"
    return f"{what} Set it in {context.recipe} or on the command line"


def _inconsistent(message: str, location: tuple[str, ...], kind: Any, start: int) -> str:
    """Message of a section's or an option's own check, with the full name of the option that it begins with."""
    known = fields(section_class(kind))
    for name in location[start:]:
        section = section_class(known[name].annotation) if name in known else None
        known = fields(section) if section is not None else {}
    for python, yaml in (("None", "null"), ("True", "true"), ("False", "false")):
        message = re.sub(rf"\b{python}\b", yaml, message)
    first = message.split(maxsplit=1)[0].rstrip(",;:")
    if first in known:
        return f"{'.'.join(location)}.{message}"
    if first.split(".")[0] == location[-1]:
        return ".".join((*location[:-1], message))
    return f"{'.'.join(location)}: {message}"


def _bound(bound: float) -> str:
    """A bound as people write it: 1e9, not 1000000000."""
    integer = float(bound).is_integer()
    if integer and abs(bound) >= 1e6 and float(f"{bound:g}") == bound:
        return f"{bound:g}".replace("e+0", "e").replace("e+", "e")
    return show(int(bound) if integer else bound)


def _short(value: Any) -> str:
    text = show(value)
    return text if len(text) <= 60 else text[:57] + "..."
