"""Values of a record under the field's usual keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.data.lines import is_text

PROMPT = ("prompt", "messages", "question", "problem", "query")
IMAGES = ("images", "image")
VIDEOS = ("videos", "video")
ANSWER = ("answer", "solution", "ground_truth", "reward_model.ground_truth", "reference", "target")
RESPONSE = ("response", "completion", "output")


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """What stands under a key; dots lead into nested objects. None where there is nothing."""
    if key in values:
        return values[key]
    here: Any = values
    for step in key.split("."):
        if not isinstance(here, Mapping):
            return None
        here = here.get(step)
    return here


def find(values: Mapping[str, Any], key: str | None, usual: Sequence[str], option: str) -> tuple[str, Any]:
    """The key that holds something, and what.

    Args:
        values: the record.
        key: what the option says.
        usual: where to look if it says nothing.
        option: its name, for messages.

    Returns:
        ("", None) where there is nothing.

    Raises:
        ValueError: several of the usual keys hold something.
    """
    keys = [name for name in ([key] if key else usual) if value_at(values, name) is not None]
    if len(keys) > 1:
        raise ValueError(f"has {keys[0]!r} and {keys[1]!r}; say with data.{option} which one counts")
    return (keys[0], value_at(values, keys[0])) if keys else ("", None)


def text_of(value: Any, key: str, *, numbers: bool = False) -> str:
    """A text.

    Raises:
        ValueError: it is none.
    """
    if numbers and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is {shown(value)}; it must be text")
    if not is_text(value):
        raise ValueError(f"{key!r} holds half of a surrogate pair, which is no character")
    return value


def extra_of(values: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The user's own keys as a JSON object, "" where there are none.

    Raises:
        ValueError: one holds what JSON can't.
    """
    kept = {key: value_at(values, key) for key in keys if value_at(values, key) is not None}
    try:
        return text_of(json.dumps(kept, ensure_ascii=False, sort_keys=True), ", ".join(kept)) if kept else ""
    except TypeError as error:
        raise ValueError(f"data.extra_keys names {', '.join(kept)}, but {error}") from None


def shown(value: Any) -> str:
    """A value, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
