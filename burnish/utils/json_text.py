"""JSON that somebody else wrote: whatever is wrong with it is one kind of error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from burnish.utils.errors import UserError

DEEPEST = 100  # lists and objects inside each other
LARGEST = 64 << 20  # bytes of a file that describes a model; a vocabulary has a few


def parse_json(content: str | bytes | bytearray, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value that a text is.

    Args:
        content: text, or bytes in UTF-8.
        pairs: makes a value of an object's names and values; None makes a dict.

    Raises:
        ValueError: it is not JSON (json.JSONDecodeError), not UTF-8, or nested deeper than what handles it can follow.
    """
    try:
        value = json.loads(content, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("is nested too deeply to be read") from None
    opening = ("[", "{") if isinstance(content, str) else (b"[", b"{")
    if sum(map(content.count, opening)) > DEEPEST and _is_deep(value):  # type: ignore[arg-type]
        raise ValueError("is nested too deeply to be read")
    return value


def _is_deep(value: Any) -> bool:
    """Whether lists and objects are inside each other more often than pickles, prints and copies of them can stand."""
    level = [value]
    for _ in range(DEEPEST):
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [item for one in inside for item in one]
        if not level:
            return False
    return True


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file that describes a model or data.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it can't be read, or is no JSON object.
    """
    try:
        if file.stat().st_size > LARGEST:
            raise UserError(f"{file} has {file.stat().st_size} bytes, too many for a file that describes something")
        content = parse_json(file.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{file} can't be read: {error.strerror}; restore it") from None
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}; fetch it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} holds {type(content).__name__}, not a JSON object; fetch it again")
    return content
