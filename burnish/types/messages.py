"""Messages of a conversation: calls and schemas of tools, as OpenAI's format has them, and the other keys."""

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
    return _written(call, f"has a tool call {call!r:.120}")


def _written(value: Any, what: str, *, sort_keys: bool = False) -> str:
    """A value as JSON text, which templates read."""
    try:
        text = json.dumps(value, ensure_ascii=False, sort_keys=sort_keys)
        text.encode()
    except (TypeError, ValueError) as error:  # half of a surrogate pair is a ValueError
        raise ValueError(f"{what}, which no template could write: {error}") from None
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
    return _written(schemas, "'tools' has a schema") if schemas else ""


def _function(value: Any) -> bool:
    found = (value.get("function") or value) if isinstance(value, Mapping) else None
    return isinstance(found, Mapping) and isinstance(found.get("name"), str)


def _without_nothing(value: Any) -> Any:
    """A schema without what is null, as a Parquet column has for the keys of its other rows."""
    if isinstance(value, Mapping):
        return {key: _without_nothing(one) for key, one in value.items() if one is not None}
    return list(map(_without_nothing, value)) if isinstance(value, list) else value


OWN = ("role", "content", "tool_calls")  # keys of a message that are read by name
THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # what is thought before a message, by family of templates
LEARNED = ("weight", "loss", "train")  # whether a turn is learned: OpenAI's, ms-swift's and axolotl's name
SHOWN = ("images", "image", "videos", "video", "audios", "audio")


def read_more(message: Mapping[str, Any]) -> str:
    """What else a message has, as a JSON object, for templates to read; "" without anything.

    Raises:
        ValueError: it has media of its own, or what JSON can't hold.
    """
    more = {key: value for key, value in message.items() if key not in (*OWN, *LEARNED) and value is not None}
    if shown := next((key for key in SHOWN if more.get(key) not in (None, [], "")), None):
        raise ValueError(f"has a message with the key {shown!r}; what it shows or plays must be parts of its content")
    more = {key: value for key, value in more.items() if key not in SHOWN}
    for key in THOUGHTS:
        if key in more and not isinstance(more[key], str):
            raise ValueError(f"has a message whose {key!r} is {more[key]!r:.60}; it must be text")
    return _written(more, f"has a message with {', '.join(more)}", sort_keys=True) if more else ""


def read_learned(message: Mapping[str, Any]) -> bool:
    """Whether a turn is to be learned, where it says so; every one of the assistant is, if it doesn't.

    Raises:
        ValueError: it says neither yes nor no, or is not the assistant's and is to be learned.
    """
    said = {key: message[key] for key in LEARNED if message.get(key) is not None}
    for key, value in said.items():
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise ValueError(f"has a message whose {key!r} is {value!r:.60}; it must be 0 or 1: learned, or not")
        if value and message.get("role") != "assistant":
            raise ValueError(
                f"has a message of {message.get('role')!r} with {key!r}, but only the assistant's are learned"
            )
    return all(said.values())


def unwritable(message: Mapping[str, Any]) -> str:
    """The key of a response whose text only a template could write; "" if there is none."""
    return next((key for key in ("tool_calls", "tool_plan", *THOUGHTS) if message.get(key)), "")
