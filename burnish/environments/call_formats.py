"""What a call of a tool is, and what reads calls out of responses: a function, ours or one of the user's.

Special tokens are not part of a response's text, so that marks of calls that are special ([TOOL_CALLS] of Mistral,
<|python_tag|> of Llama) may be there or not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from burnish.registry import options
from burnish.utils.json_text import parse_json

FUNCTION = re.compile(r"<function=([^<>\n]*)>")  # of families that write values between marks, without quotes
PARAMETER = re.compile(r"<parameter=([^<>\n]*)>")
Schemas = Mapping[str, Mapping[str, Any]]  # of parameters, by the name of the function


@dataclass(frozen=True)
class Call:
    """A call, or what is wrong with one."""

    name: str = ""
    arguments: Mapping[str, Any] | None = None
    problem: str = ""


class CallFunction(Protocol):
    """What a function registered as a "call format" is called with."""

    def __call__(self, text: str, schemas: Schemas) -> list[Call]:
        """The calls in a response, in order; none if there is nothing that looks like one. ``schemas`` are JSON schemas
        of the parameters of each function, by which values that are written as text get their types. Options are
        keyword-only."""


@options
class CallFormat:
    """Base of formats of calls: of ours, which hold the options of a function, and of classes of the user."""

    function: ClassVar[Any] = None  # of ours; a class of the user has a method ``read``

    def read(self, text: str, schemas: Schemas) -> list[Call]:
        """The calls in a response; see ``CallFunction``."""
        if self.function is None:
            raise NotImplementedError("it has no read(self, text, schemas)")
        own = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "name"}
        return self.function(text, schemas, **own)  # type: ignore[no-any-return]


def calls_in(text: str, how: Any, schemas: Schemas) -> list[Call]:
    """The calls in a response, in order.

    Args:
        text: of the response.
        how: an entry of kind "call format".
        schemas: JSON schemas of the parameters of each function.

    Raises:
        TypeError: a format of the user returns something else.
    """
    found = how.read(text, schemas)
    other = [type(one).__name__ for one in found if not isinstance(one, Call)] if isinstance(found, list) else []
    if other or not isinstance(found, list):
        said = f"a list with {other[0]}" if other else type(found).__name__
        raise TypeError(f"it returned {said}; return a list of burnish.environments.call_formats.Call")
    return found


def blocks(text: str, opening: re.Pattern[str], closing: str) -> Iterator[tuple[str, str]]:
    """The name in each ``opening``, if it has one, and what stands before the next ``closing``: once through the text,
    however often a response repeats a mark."""
    at = 0
    while (found := opening.search(text, at)) and (end := text.find(closing, found.end())) >= 0:
        yield found[opening.groups], text[found.end() : end]
        at = end + len(closing)


def values(text: str, opening: re.Pattern[str], closing: str) -> list[tuple[str, str]]:
    """Names and values of parameters, each of which may stand on lines of its own."""
    return [(name, value.removeprefix("\n").removesuffix("\n")) for name, value in blocks(text, opening, closing)]


def of_json(text: str, key: str) -> Call:
    """A call that is a JSON object."""
    try:
        return of_object(parse_json(text), key)
    except ValueError:
        return Call(problem=f'a call must be JSON like {{"name": "...", "{key}": {{...}}}}')


def of_object(call: Any, key: str) -> Call:
    """A call that was a JSON object with a name and, by ``key`` or its other name, arguments."""
    if not isinstance(call, Mapping) or "name" not in call:
        return Call(problem=f'a call must be JSON like {{"name": "...", "{key}": {{...}}}}')
    other = {"arguments": "parameters", "parameters": "arguments"}[key]
    return checked(call["name"], call.get(key, call.get(other, {})))


def of_texts(name: str, pairs: list[tuple[str, str]], schemas: Schemas) -> Call:
    """A call whose values are texts, which JSON is made of where the schema wants no text."""
    properties = schemas.get(name, {}).get("properties", {})
    arguments: dict[str, Any] = {}
    for key, value in pairs:
        key, wanted = key.strip(), properties.get(key.strip(), {})
        arguments[key] = value
        if wanted.get("type") != "string":
            with contextlib.suppress(ValueError):
                arguments[key] = parse_json(value)
    return checked(name, arguments)


def checked(name: Any, arguments: Any) -> Call:
    """A call, whose arguments must be an object, or a text that is one."""
    if isinstance(arguments, str):  # as in OpenAI's messages
        with contextlib.suppress(ValueError):
            arguments = parse_json(arguments)
    if not isinstance(arguments, Mapping):
        return Call(name=str(name), problem="arguments must be an object")
    return Call(name=name, arguments=arguments) if isinstance(name, str) else Call(name=str(name), arguments=arguments)
