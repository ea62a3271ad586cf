"""Calls as Gemma 4 and FunctionGemma write them: ``call:NAME{key:value, ...}`` with texts in quotes of their own.

The quotes are special tokens, which are no part of a response's text, so that they may be there or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from burnish.utils.json_text import parse_json

QUOTE = '<|"|>'
MARKS = re.compile(r"<\|tool_call>|<tool_call\|>|<start_function_call>|<end_function_call>")
CALL = re.compile(r"call:\s*([A-Za-z_][\w.-]*)\s*(?=\{)")
KEY = re.compile(r"\s*(?:<\|\"\|>|\")?([\w.-]+)(?:<\|\"\|>|\")?\s*:\s*")
BARE = re.compile(r"[^,\]}]*")

Schemas = Mapping[str, Mapping[str, Any]]


def written_calls(text: str, schemas: Schemas) -> Iterator[tuple[str, list[tuple[str, str]] | dict[str, Any] | None]]:
    """The name of each call with its arguments; None where they can't be read.

    Args:
        text: of the response.
        schemas: JSON schemas of the parameters of each function. Without quotes, their names tell where a value ends,
            and values come as texts.
    """
    text = text.replace("<escape>", QUOTE)
    for block in MARKS.split(text):
        starts = [found for found in CALL.finditer(block) if MARKS.search(text) or found[1] in schemas]
        for number, found in enumerate(starts):
            end = starts[number + 1].start() if number + 1 < len(starts) else len(block)
            yield found[1], _arguments(block[found.end() : end].strip(), schemas.get(found[1], {}))


def _arguments(written: str, schema: Mapping[str, Any]) -> list[tuple[str, str]] | dict[str, Any] | None:
    if QUOTE not in written:
        body = written.rpartition("}")[0]
        if not body:
            return None
        names = "|".join(map(re.escape, schema.get("properties", {}))) or r"(?!)"
        pieces = re.split(rf"(?:^\{{|,)\s*\"?({names})\"?\s*:", body)
        if len(pieces) > 1:
            return [(key, _unquoted(value.strip())) for key, value in zip(pieces[1::2], pieces[2::2], strict=True)]
    try:
        value, _ = _value(written, 0)
    except (ValueError, IndexError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unquoted(value: str) -> str:
    try:
        found = parse_json(value) if value.startswith('"') else value
    except ValueError:
        return value
    return found if isinstance(found, str) else value


def _value(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at a character, and where it ends."""
    if text.startswith(QUOTE, at):
        end = text.index(QUOTE, at + len(QUOTE))
        return text[at + len(QUOTE) : end], end + len(QUOTE)
    if text[at] == '"':
        return json.JSONDecoder().raw_decode(text, at)
    if text[at] in "{[":
        return _several(text, at)
    found = BARE.match(text, at)
    assert found is not None, "it matches nothing, too"
    try:
        return parse_json(found[0]), found.end()
    except ValueError:
        return found[0].strip(), found.end()


def _several(text: str, at: int) -> tuple[Any, int]:
    closing = {"{": "}", "[": "]"}[text[at]]
    values: dict[str, Any] | list[Any] = {} if closing == "}" else []
    at = _behind(text, at + 1)
    while text[at] != closing:
        if isinstance(values, dict):
            key = KEY.match(text, at)
            if key is None:
                raise ValueError("an argument has no name")
            values[key[1]], at = _value(text, key.end())
        else:
            value, at = _value(text, at)
            values.append(value)
        at = _behind(text, at)
        if text[at] == ",":
            at = _behind(text, at + 1)
        elif text[at] != closing:
            raise ValueError("there is something behind a value")
    return values, at + 1


def _behind(text: str, at: int) -> int:
    while text[at].isspace():
        at += 1
    return at
