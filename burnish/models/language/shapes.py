"""What a chat template makes of a form of conversation: templates leave out roles, parts and keys without a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burnish.types.message_keys import OWN, THOUGHTS

if TYPE_CHECKING:
    from burnish.language.model import Chat
    from burnish.models.language.chat import ChatTokenizer

Shape = tuple[Any, ...]


def shape_of(messages: Chat) -> Shape:
    """Equal for conversations of which a template writes the same things."""
    return tuple(
        (
            message["role"],
            tuple((part["type"], bool(part.get("text", "x").strip())) for part in _parts(message)),
            tuple(sorted(key for key in message if key not in OWN and message[key])),
            len(message.get("tool_calls", ())),
        )
        for message in messages
    )


def left_out(chat: ChatTokenizer, messages: Chat) -> str:
    """What of a conversation of this form the template doesn't write, for messages; "" if it writes everything.

    Every text is replaced by a mark that has to be in what the template makes of it. What the model has said may be
    rewritten, and its thoughts left out by a template that knows of thoughts, as models are trained that way.
    """
    from burnish.utils.errors import UserError

    marked = [_marked(message, number) for number, message in enumerate(messages)]
    try:
        text, mark = chat.render(marked, checked=False)
    except UserError:
        return ""  # it refuses them itself, or refuses marks
    text = text.replace(mark, "")
    for number, message in enumerate(marked):
        where = f"message {number + 1} of {len(messages)}, of role {message['role']}"
        called = bool(message.get("tool_calls"))
        # what models have said is rewritten on purpose: thoughts go
        parts = _parts(message) if called or message["role"] != "assistant" else []
        for place, part in enumerate(parts):
            if part["type"] == "text" and part["text"].strip() and part["text"] not in text:
                beside = " beside its tool_calls" if called else ""
                return f"the text of {where}{beside}" if len(parts) == 1 else f"part {place + 1} of {where}"
        if message.get("name") and message["role"] != "tool" and message["name"] not in text:
            return f"the name of {where}"
        if any(message.get(key) for key in THOUGHTS) and not any(map(chat.mentions, THOUGHTS)):
            return f"the {next(key for key in THOUGHTS if message.get(key))} of {where}"
    return ""


def out_of_order(messages: Chat) -> str:
    """The first result by whose id alone one could tell what it answers; "" if results come in the calls' order."""
    waiting: list[Any] = []
    for message in messages:
        if message.get("tool_calls"):
            waiting = [call.get("id") for call in message["tool_calls"]]
        elif (own := message.get("tool_call_id")) in waiting:
            if waiting.index(own):
                return f"the tool_call_id {own!r} of a result that comes before that of an earlier call"
            waiting.pop(0)
    return ""


def _marked(message: dict[str, Any], number: int) -> dict[str, Any]:
    content = [
        part | {"text": f"said{number}x{place}x"} if part["type"] == "text" and part["text"].strip() else part
        for place, part in enumerate(_parts(message))
    ]
    more = {"name": f"name{number}x"} if message.get("name") and message["role"] != "tool" else {}
    more |= {key: f"thought{number}x" for key in THOUGHTS if message.get(key)}
    return {**message, **more, "content": content}


def _parts(message: dict[str, Any]) -> Sequence[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
