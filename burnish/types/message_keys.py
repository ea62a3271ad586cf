"""Keys of a message beside role, content and tool_calls: what chat templates read, and what says how to learn it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
    try:
        text = json.dumps(more, ensure_ascii=False, sort_keys=True) if more else ""
        text.encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"has a message with {', '.join(more)}, which no template could read: {error}") from None
    return text


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
