"""Chat templates: where a directory keeps its own, and how messages become text by it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object

RESULT = "<tool_response>\n{}\n</tool_response>"  # as Qwen and Hermes write it


def read_template(path: Path, tokenizer: Any, *, sees: bool) -> Any:
    """The chat template of a directory, or several by name; None where it has none.

    A model that sees is talked to by its processor's, as in transformers: a key of processor_config.json, or
    chat_template.json, where older processors keep theirs. Where these are all that there is, a model that only reads
    is talked to by them, too.

    Raises:
        UserError: a file can't be read.
    """
    own = tokenizer.chat_template
    if own is not None and not sees:
        return own
    for name in ("processor_config.json", "chat_template.json"):
        try:
            found = read_object(path / name).get("chat_template")
        except FileNotFoundError:
            continue
        if found is not None:
            return found
    return own


def rendered(
    path: Path, tokenizer: Any, chat: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, prompt: bool
) -> str:
    """Messages as text.

    Args:
        path: of the model, for messages.
        tokenizer: with the template.
        chat: messages.
        tools: JSON schemas of functions that may be called.
        prompt: end with what a response begins behind.

    Raises:
        UserError: the template refuses them.
    """
    from jinja2.exceptions import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(
            list(chat), tools=list(tools) or None, tokenize=False, add_generation_prompt=prompt
        )
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in chat)
        raise UserError(
            f"the chat template of {path} refuses messages of {roles}: {error}; mend it, or fetch it again"
        ) from error
    return text


def knows_results(path: Path, tokenizer: Any, chat: Sequence[dict[str, Any]]) -> bool:
    """Whether a template has a form of its own for the results of tools: the last message's role then counts.

    Args:
        path, tokenizer: as for ``rendered``.
        chat: messages, the last one of role tool.
    """
    unknown = "role-that-nobody-has"
    plain = rendered(path, tokenizer, chat, (), prompt=True)
    try:
        other = rendered(path, tokenizer, [*chat[:-1], chat[-1] | {"role": unknown}], (), prompt=True)
    except UserError:
        return True
    return other.lower().replace(unknown, "tool") != plain.lower()


def unused_character(text: str) -> str:
    """A character of Unicode's private area that the text does not contain."""
    return next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in text)


def joined(messages: Sequence[dict[str, Any]]) -> str:
    """The text of a conversation."""
    return "".join(plain(message["content"]) for message in messages)


def plain(content: str | Sequence[dict[str, Any]]) -> str:
    """The text of a message."""
    return content if isinstance(content, str) else "".join(p["text"] for p in content if p["type"] == "text")


def filled(path: Path, text: str, place: str, texts: Sequence[str], what: str) -> str:
    """Put in order what stands for each image or video."""
    pieces = text.split(place)
    if len(pieces) - 1 != len(texts):
        raise UserError(
            f"by the chat template of {path} the messages have {len(pieces) - 1} {what} parts, but {len(texts)} "
            f"{what}s came with them; give one {what} for each part"
        )
    return "".join(chain.from_iterable(zip(pieces, [*texts, ""], strict=True)))
