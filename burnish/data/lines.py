"""JSON objects as text, and everything that is wrong with a file in one error."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from burnish.utils.errors import ConfigError, UserError
from burnish.utils.json_text import parse_json

LISTED = 10  # problems that one message lists


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
    """A JSON object.

    Raises:
        ValueError: the text is not JSON, or not an object.
    """
    try:
        record = parse_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(record, dict):
        raise ValueError(f"holds {type(record).__name__}, not an object like {{'prompt': 'a cat'}}")
    return record


def repeated(names: Sequence[str]) -> str | None:
    """The first name that is there again; None where there is none."""
    counts = Counter(names)
    return next((name for name in names if counts[name] > 1), None)


def data_error(problems: Sequence[str], head: str = "") -> UserError:
    """All problems of a data set in one error: the first ones listed, the others counted.

    Args:
        problems: one line each.
        head: what they have in common and what to do; the problems are then examples of it.
    """
    if not head:
        return ConfigError(problems[:LISTED], count=len(problems), way_out="correct these records, or remove them")
    more = [f"and {len(problems) - LISTED} more"] if len(problems) > LISTED else []
    return UserError("\n".join([head, *problems[:LISTED], *more]))
