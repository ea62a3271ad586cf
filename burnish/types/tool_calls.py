"""Calls of tools in a message of the assistant, as OpenAI's format has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from burnish.utils.json_text import parse_json


def read_calls(value: Any) -> tuple[str, ...]:
    """The calls of a message under ``tool_calls``, each as a JSON object of its name, its arguments and its id.

    Raises:
        ValueError: it is no list of calls, or one has no name, or arguments that are no object.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"'tool_calls' is {value!r:.60}; it must be a list of calls")
    return tuple(_call(one) for one in value)


def _call(value: Any) -> str:
    given = value if isinstance(value, Mapping) else {}
    function = given.get("function") or given
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"has a tool call {value!r:.60}; it must have a function with a name")
    arguments = function.get("arguments") or {}
    try:
        found = parse_json(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(found, Mapping):
            raise ValueError("they are no object")
    except (ValueError, TypeError) as error:
        raise ValueError(f"has a call of {name:.60} whose arguments are {arguments!r:.60}: {error}") from None
    call = {"name": name, "arguments": found} | ({"id": given["id"]} if isinstance(given.get("id"), str) else {})
    try:
        text = json.dumps(call, ensure_ascii=False)
        text.encode()
    except (ValueError, TypeError) as error:
        raise ValueError(f"has a tool call {call!r:.120}, which no template could write: {error}") from None
    return text


def as_chat(call: str) -> dict[str, Any]:
    """A call as transformers' chat templates read it."""
    found = parse_json(call)
    function = {"name": found["name"], "arguments": found["arguments"]}
    return {"type": "function", "function": function} | ({"id": found["id"]} if "id" in found else {})


def as_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as Qwen and Hermes write it."""
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def read_tools(value: Any) -> str:
    """The functions that a record under ``tools`` tells of, as a JSON list of schemas; "" if it tells of none.

    They may be in OpenAI's form or bare, in a list or in a list as JSON text. What has another form is no list of
    functions, but a key of the user's.

    Raises:
        ValueError: a schema has half of a surrogate pair.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            return ""
    if not isinstance(value, list) or not all(map(_function, value)):
        return ""
    schemas = [_without_nothing(one if "function" in one else {"type": "function", "function": one}) for one in value]
    text = json.dumps(schemas, ensure_ascii=False) if schemas else ""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"'tools' has a schema that can't be written: {error}") from None
    return text


def _function(value: Any) -> bool:
    found = (value.get("function") or value) if isinstance(value, Mapping) else None
    return isinstance(found, Mapping) and isinstance(found.get("name"), str)


def _without_nothing(value: Any) -> Any:
    """A schema without what is null, as a Parquet column has for the keys of its other rows."""
    if isinstance(value, Mapping):
        return {key: _without_nothing(one) for key, one in value.items() if one is not None}
    return list(map(_without_nothing, value)) if isinstance(value, list) else value
