"""JSON from untrusted files: every defect is a ValueError or a UserError."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from burnish.utils.errors import UserError
from burnish.utils.reading import read_file

DEEPEST = 100  # nesting depth
LONGEST = 308  # characters of a whole number: float() and math.isfinite() raise OverflowError for longer ones
LARGEST = 64 << 20  # bytes of a model's JSON file; vocabularies have a few MB


def parse_json(content: str | bytes | bytearray, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse JSON.

    Args:
        content: text, or bytes in UTF-8.
        pairs: makes a value of an object's names and values; None makes a dict.

    Raises:
        ValueError: it is not JSON (json.JSONDecodeError), not UTF-8, or nested too deeply.
    """
    try:
        text = content if isinstance(content, str) else content.decode(json.detect_encoding(content), "surrogatepass")
        value = _decoder(pairs).decode(text)
    except RecursionError:
        raise ValueError("is nested too deeply to be read") from None
    if len(text) > 2 * DEEPEST and text.count("[") + text.count("{") > DEEPEST and _is_deep(value):
        raise ValueError("is nested too deeply to be read")
    return value


@lru_cache
def _decoder(pairs: Callable[[list[tuple[str, Any]]], Any] | None) -> json.JSONDecoder:
    """Kept, since making one takes longer than reading a short record."""
    return json.JSONDecoder(object_pairs_hook=pairs, parse_int=_whole)


def _whole(digits: str) -> int:
    if len(digits) > LONGEST:
        raise ValueError(f"has a whole number of {len(digits)} digits, larger than any float")
    return int(digits)


def _is_deep(value: Any) -> bool:
    """Whether a value is nested deeper than pickle, print and copy can handle."""
    level = [value]
    for _ in range(DEEPEST):
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [item for one in inside for item in one]
        if not level:
            return False
    return True


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested objects with their paths, as ``optimizer.lr``; an empty object is a leaf."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file of a model or data set.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it can't be read, or is no JSON object.
    """
    try:
        file.lstat()
    except FileNotFoundError:
        raise
    except OSError:
        pass  # read_file says what is wrong
    raw = read_file(file, LARGEST)
    try:
        content = parse_json(raw)
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}; fetch it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} contains {type(content).__name__}, not a JSON object; fetch it again")
    return content
