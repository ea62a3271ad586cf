"""JSON that somebody else wrote: whatever is wrong with it is one kind of error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def parse_json(content: str | bytes | bytearray, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value that a text is.

    Args:
        content: text, or bytes in UTF-8.
        pairs: makes a value of an object's names and values; None makes a dict.

    Raises:
        ValueError: it is not JSON (json.JSONDecodeError), not UTF-8, or nested deeper than Python can follow.
    """
    try:
        return json.loads(content, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("is nested too deeply to be read") from None
