"""What a user asks for; free of torch, because processes that only score samples read it too."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from burnish.types.media import Media
from burnish.utils.json_text import parse_json

SHOWN = 60  # characters of a prompt in a message


@dataclass(frozen=True)
class Part:
    """A piece of a message: text, or the place of the next picture or video."""

    kind: Literal["text", "image", "video"]
    text: str = ""


@dataclass(frozen=True)
class Message:
    """What one side of a conversation says. Placeholders are parts; what looks like one in a text is text."""

    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """Its words alone."""
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a user asks for. ``uid`` is a hash of the content: stable across runs, files and machines.

    Media stand in the order of their places in the messages. Without messages the text is what one user says.
    """

    text: str
    negative: str = ""
    answer: str | None = None
    source: str = "default"
    messages: tuple[Message, ...] = ()
    images: tuple[Media, ...] = ()
    videos: tuple[Media, ...] = ()
    label: str | None = None  # which rewards judge it
    extra: str = ""  # a JSON object of the user's own, for rewards
    where: str = field(default="", compare=False)  # file and line, for messages

    @cached_property
    def uid(self) -> str:
        content: list[Any] = [self.text, self.negative, self.answer, self.source]
        said = [(message.role, [(part.kind, part.text) for part in message.parts]) for message in self.messages]
        more = [said, [media.digest for media in (*self.images, *self.videos)], self.label, self.extra]
        if any(more):  # prompts of text alone keep the hash that they had before there were others
            content += more
        return hashlib.blake2b(json.dumps(content, ensure_ascii=False).encode(), digest_size=8).hexdigest()

    @property
    def name(self) -> str:
        """What it is called in messages: its beginning, and where it stands."""
        text = self.text if len(self.text) <= SHOWN else f"{self.text[:SHOWN]}..."
        return f"prompt {text!r}" + (f" ({self.where})" if self.where else "")

    @property
    def info(self) -> dict[str, Any]:
        """The user's own keys."""
        return parse_json(self.extra) if self.extra else {}

    @property
    def turns(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return self.messages or (Message("user", (Part("text", self.text),)),)

    def chat(self) -> list[dict[str, Any]]:
        """The conversation as transformers' chat templates read it."""
        return [
            {"role": message.role, "content": [_chat_part(part) for part in message.parts]} for message in self.turns
        ]


def _chat_part(part: Part) -> dict[str, str]:
    return {"type": "text", "text": part.text} if part.kind == "text" else {"type": part.kind}
