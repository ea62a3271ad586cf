"""JSON objects as text, and the list of what is wrong with a file."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from burnish.utils.errors import ConfigError, UserError
from burnish.utils.json_text import parse_json
from burnish.utils.reading import read_file

SHOWN = 10  # problems that one message lists


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, counted from 1, blank ones left out.

    Raises:
        UserError: it can't be read.
    """
    # some editors write a byte order mark, which is no part of the first line
    lines = read_file(path).removeprefix(codecs.BOM_UTF8).split(b"\n")
    yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def decoded(line: bytes) -> str:
    """The text of a line, without white space around it.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return line.decode().strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None


def parse_object(text: str) -> dict[str, Any]:
    """The JSON object that a text is.

    Raises:
        ValueError: it is none, or has a key twice.
    """
    try:
        record = parse_json(text, _unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(record, dict):
        raise ValueError(f"holds {type(record).__name__}, not an object like {{'prompt': 'a cat'}}")
    return record


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"has {twice!r} twice; keep one")
    return record


def told(problems: Sequence[str], head: str = "") -> UserError:
    """All problems of a file in one error: the first in words, the others counted.

    Args:
        problems: a line each.
        head: what they have in common, and the way out; the problems are then examples of one thing that is wrong.
    """
    if not head:
        return ConfigError(problems[:SHOWN], count=len(problems), way_out="mend such records, or remove them")
    more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return UserError("\n".join([head, *problems[:SHOWN], *more]))


def is_text(value: Any) -> bool:
    """Whether this is text that can be written to a file."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
