"""Messages about invalid options: full name, value, and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pydantic

from burnish.config.foreign import foreign_name
from burnish.config.hardware import KEY, Machine
from burnish.config.names import Context, members_of, options_of
from burnish.config.yaml_text import brief, nest, show
from burnish.registry import CHOICE, explanation, fields, names
from burnish.utils.errors import meant
from burnish.utils.user_code import names_code

# what pydantic calls one of the types that an option may have, behind the option's name
_TYPE = re.compile(r"str|bool|int|float|constrained-\w+|[\w-]+\[.*\]")

NAMED = 120  # most characters shown of an unknown option's name
ELSEWHERE = {  # words that are no options, where they are read
    **dict.fromkeys(("extends", "variants", KEY), "{0} is read from the top of a recipe's file alone; write it there"),
    **dict.fromkeys(fields(Machine), "{0} is read from the command line alone: burnish train RECIPE {0}=VALUE"),
}

_KINDS = {  # what pydantic says of these is about Python
    "string_type": "text; write numbers, true, false and null in quotes if they are meant as text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list, as in [0.9,0.999]",
    "list_type": "a list, as in [a,b]",
    "dict_type": "options by name",
    "dataclass_type": "a section with options of its own, or {} for their defaults",
    "byte_size": "a size, as in 80GB",
    "byte_size_unit": "a size, as in 80GB",
    "missing": "a longer list",
    "too_long": "a shorter list",
    "too_short": "not empty",
}
_BOUNDS = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}


def messages(error: pydantic.ValidationError, context: Context, place: Sequence[str | int] = ()) -> Iterator[str]:
    """One message for each error of pydantic about what is at a place of a configuration.

    Several about the types that an option may have are one, or those about what is inside of a value of the right type.
    """
    either: dict[str, list[Any]] = {}
    inside = set[str]()
    for one in error.errors(include_url=False):
        here = [*place, *one["loc"]]
        end = _end_of_option(here, context)
        option = ".".join(map(str, here[:end]))
        if end == len(here) - 1:
            either.setdefault(option, []).append(one)
        else:
            inside.add(option)
            yield _message(one, [*here[:end], *here[end + 1 :]], context)
    for option in [name for name in either if name not in inside]:
        value, kinds = either[option][0]["input"], dict.fromkeys(says(one).partition(";")[0] for one in either[option])
        yield f"{option} is {brief(value)}; it must be {' or '.join(kinds)}{_sweep(value)}{context.origin(option)}"


def _end_of_option(place: Sequence[str | int], context: Context) -> int:
    """Where pydantic's name of one of several types stands behind an option; the length of the place if none does."""
    for end, part in enumerate(place):
        option, inner = (".".join(map(str, place[:stop])) for stop in (end, end + 1))
        if _TYPE.fullmatch(str(part)) and option in context.options and inner not in context.options:
            return end
    return len(place)


def _sweep(value: Any) -> str:
    return "; --sweep runs each value in turn" if isinstance(value, str) and "," in value else ""


def says(error: Any) -> str:
    """What a value must be, where that is all that is wrong with it."""
    kind, details = error["type"], error.get("ctx", {})
    if kind in _BOUNDS:
        (bound,) = details.values()
        return f"{_BOUNDS[kind]} {bound if isinstance(bound, int) else format(bound, '.10g')}"
    if kind == "literal_error":
        return str(details["expected"]).replace("'", "")
    return _KINDS.get(kind) or str(error["msg"]).removeprefix("Input should be ")


def must(error: Any) -> str:
    """What a value must be, as a sentence."""
    what = says(error)
    return what if what == error["msg"] else f"it must be {what}"


def _message(error: Any, place: Sequence[str | int], context: Context) -> str:
    value, kind, details = error["input"], error["type"], error.get("ctx", {})
    option = ".".join(map(str, place))
    if kind == "unexpected_keyword_argument":
        return unknown([*map(str, place)], value, context)
    if kind == "missing" and isinstance(place[-1], str):
        words = explanation(context.options_at(place[:-1]), place[-1])
        what = words[:1].lower() + words[1:] if words[:2].istitle() else words
        return f"{option} is required: {what} Set it in {context.recipe} or on the command line"
    if kind == CHOICE:
        return _not_chosen(option, value, details, context) + context.origin(option)
    if kind == "value_error":
        return _inconsistent(str(details["error"]), place, value, context) + context.origin(option)
    if kind == "literal_error":
        choices = [choice.strip().strip("'") for choice in details["expected"].replace(" or ", ", ").split(", ")]
        return wrong_choice(option, value, choices) + context.origin(option)
    what = must(error)
    if kind in _KINDS and type(None) in members_of(context.options.get(option, ((), None))[0]):
        what += ", or null"
    option = option.rpartition(".")[0] if kind == "missing" else option  # a value of a tuple
    return f"{option} is {brief(value)}; {what}{_sweep(value)}{context.origin(option)}"


def _not_chosen(option: str, value: Any, details: Any, context: Context) -> str:
    """Message about a section whose name is missing, or is no entry's."""
    choices = names(details["kind"])
    if "name" not in details:
        return f"{option} is {brief(value)}; it must contain options, as in {option}.name={choices[0]}"
    name = details["name"]
    key = option if option == "algorithm" or not isinstance(value, dict) else f"{option}.name"
    if name is None:
        without = f", or {option}=null" if type(None) in members_of(context.options.get(option, ((), None))[0]) else ""
        return f"{option} is required; set {key}=NAME, one of {', '.join(choices)}{without}"
    if (other := another_task(details["kind"], name)) is None:
        of_users = isinstance(value, dict) and names_code(str(value.get("path")))
        return wrong_choice(key, name, choices) + f"; a function of yours takes {key}=function" * of_users
    return (
        f"{key} is {name}, which belongs to task {other}, but this run's is {fields(context.config)['task'].default}; "
        f"set task={other}, or choose one of {', '.join(choices)}"
    )


def another_task(kind: str, name: Any) -> str | None:
    """Another task that has an algorithm or a reward of that name; None if none has."""
    from burnish.config.tasks import TASKS

    for task, config in ((task, one.config) for task, one in TASKS.items()):
        own = {"algorithm": config.algorithm_kind, "reward": config.reward_kind}.get(kind.split()[-1], kind)
        if own != kind and name in names(own):
            return task
    return None


def wrong_choice(option: str, value: Any, choices: Sequence[str]) -> str:
    """``value`` is none of ``choices``."""
    word = str(value).lower()
    near = [one for one in choices if word in one.split("_")] or difflib.get_close_matches(word, choices, n=1)
    return f"{option} is {brief(value)}; {meant(near[:1])}it must be one of {', '.join(choices)}"


def unknown(location: list[str], value: Any, context: Context) -> str:
    """Message about an unknown option: what was meant, or which algorithm or reward has it."""
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        location = [*location, name]
    option, known = ".".join(location), context.every_option()
    short = location[-1] not in {one.rpartition(".")[2] for one in known}
    foreign = foreign_name(option, context.config.algorithm_kind.split()[0], short=short)
    shown = option if len(option) <= NAMED else f"{option[:NAMED]}..."
    if location[0] in ELSEWHERE:
        return f"{shown} is {brief(value)}, but {ELSEWHERE[location[0]].format(location[0])}{context.origin(option)}"
    if option in known:  # with dots in a file
        return f"{shown} has dots, but a file has sections: write {show(nest({option: value}))}{context.origin(option)}"
    if owner := _owner(location, context):
        return f"{shown} is {brief(value)}, but {owner}{context.origin(option)}"
    if foreign:
        return f"{shown} is {foreign}{context.origin(option)}"
    return (
        f"{shown} is {brief(value)}, but there is no such option; {_nearest(location, known)}{context.origin(option)}"
    )


def _nearest(location: Sequence[str], known: Sequence[str]) -> str:
    option, section, leaf = ".".join(location), ".".join(location[:-1]), location[-1]
    near = [] if section in ("", *known) else difflib.get_close_matches(option, known, n=1)
    while section not in ("", *known):
        section = section.rpartition(".")[0]
    siblings = [one.rpartition(".")[2] for one in known if one.rpartition(".")[0] == section]
    same_name = [one for one in known if one.rpartition(".")[2] == leaf]
    close = difflib.get_close_matches(leaf, siblings, n=1) if section == ".".join(location[:-1]) else []
    names = [".".join([*location[:-1], one]) for one in close] or near or same_name
    return meant(names).rstrip() or f"{section or 'a recipe'} has: {', '.join(siblings) or 'no options'}"


def _owner(location: Sequence[str], context: Context) -> str:
    """Which other algorithms or rewards have the option, if any."""
    kinds = {"algorithm": context.config.algorithm_kind, "rewards": context.config.reward_kind}
    kind, word = kinds.get(location[0]), location[0].removesuffix("s")
    above = location[:1] if word == "algorithm" else location[:2]
    inner = ".".join(location[len(above) :])
    mine: Any = context.options_at(above) if kind is not None and inner else None
    others = [name for name in names(str(kind)) if inner in options_of(str(kind), name)] if mine is not None else []
    article = "an" if word == "algorithm" else "a"
    if not others:
        return ""
    return (
        f"{location[-1]} is an option of {', '.join(others)}; {mine.name}, which this run uses, never reads it; "
        f"remove it, or choose {article} {word} that does"
    )


def _inconsistent(message: str, place: Sequence[str | int], value: Any, context: Context) -> str:
    """Message of a section's or an option's own check, with the full name of the option that it begins with."""
    for python, yaml in (("None", "null"), ("True", "true"), ("False", "false")):
        message = re.sub(rf"\b{python}\b", yaml, message)
    first = re.split(r"[\s,;:]", message, maxsplit=1)[0]
    section, option = context.options_at(place), ".".join(map(str, place))
    if section is not None and first in fields(section):
        return f"{option}.{message}"
    if place and first.split(".")[0] == place[-1]:
        return ".".join([*map(str, place[:-1]), message])
    return f"{option}: {message}" if section is not None else f"{option} is {brief(value)}: {message}"
