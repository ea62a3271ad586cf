"""JSON of files: every defect is a ValueError or a UserError."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from burnish.utils.errors import UserError
from burnish.utils.reading import read_file


def parse_json(content: str | bytes | bytearray) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON (json.JSONDecodeError), not UTF-8, or nested too deeply.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("is nested too deeply to be read") from None


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested objects with their paths, as ``optimizer.lr``; an empty object is a leaf."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file of a model or data set.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it can't be read, or is no JSON object.
    """
    if not file.exists():
        raise FileNotFoundError(file)
    try:
        content = parse_json(read_file(file))
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}; fetch it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} contains {type(content).__name__}, not a JSON object; fetch it again")
    return content
