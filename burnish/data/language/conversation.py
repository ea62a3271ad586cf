"""Plain questions and chat messages as conversations, each picture in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from burnish.data.language.pixels import Kind, images_of, media_of, videos_of
from burnish.data.language.values import shown, text_of
from burnish.types.media import Media
from burnish.types.prompt import Message, Part

MARKERS: dict[str, Kind] = {"<image>": "image", "<video>": "video"}
ROLES = ("system", "user", "assistant", "tool")
IMAGE_KEYS, VIDEO_KEYS = ("image", "image_url", "url", "path", "bytes"), ("video", "video_url", "url", "path", "bytes")


@dataclass
class Conversation:
    """Messages with their media, in the order of their places."""

    messages: list[Message]
    images: list[Media]
    videos: list[Media]

    def text(self) -> str:
        """What the user says, with a marker for each picture and video."""
        said = [_marked(message) for message in self.messages if message.role == "user"]
        return "\n".join(said)


@dataclass
class _Supply:
    """Media of a record, handed out to the places that ask for one."""

    given: dict[Kind, list[Media]]
    taken: dict[Kind, list[Media]] = field(default_factory=lambda: {"image": [], "video": []})
    asked: dict[Kind, int] = field(default_factory=lambda: {"image": 0, "video": 0})

    def take(self, kind: Kind) -> None:
        if self.asked[kind] < len(self.given[kind]):
            self.taken[kind].append(self.given[kind][self.asked[kind]])
        self.asked[kind] += 1

    def check(self, place: str) -> None:
        for kind, given in self.given.items():
            if self.asked[kind] != len(given):
                name = "pictures" if kind == "image" else "videos"
                raise ValueError(
                    f"has {len(given)} {name}, but {self.asked[kind]} places for them; {place.format(kind)}"
                )


def converse(
    value: Any,
    images: Any,
    videos: tuple[str, Any],
    folder: Path,
    *,
    system: str | None,
    unmarked: Literal["first", "last", "error"] = "error",
) -> Conversation:
    """Read a question.

    In plain text every ``<image>`` and ``<video>`` is a place. In chat messages places are parts
    ({"type": "image"}); only where a record has media and its messages are all plain strings are markers in them
    places. Anywhere else they are words.

    Args:
        value: plain text or a list of messages.
        images: what the record holds under its key for pictures, or None.
        videos: the key for videos ("" if there is none) and what is under it.
        folder: where relative paths start.
        system: what the system says first, if the messages have no system message.
        unmarked: where media go that there are no places for at all: before or behind what the user says first.

    Raises:
        ValueError: anything is not what it must be, or places and media don't match.
    """
    key, moving = videos
    supply = _Supply(
        {
            "image": [] if images is None else list(images_of(images, folder)),
            "video": [] if moving is None else list(videos_of(moving, folder, single=key == "video")),
        }
    )
    if isinstance(value, str):
        messages = [Message("user", tuple(_split(text_of(value, "prompt"), supply)))]
        way_out = "write <{0}> into the question where each belongs, or chat messages, whose texts have no places"
    else:
        messages = _messages(value, supply, folder)
        way_out = 'give a part {{"type": "{0}"}} where each belongs'
    if unmarked != "error":
        messages = _placed(messages, supply, behind=unmarked == "last")
    supply.check(way_out)
    if system is not None and messages[0].role != "system":
        messages.insert(0, Message("system", (Part("text", system),)))
    return Conversation(messages, supply.taken["image"], supply.taken["video"])


def _placed(messages: list[Message], supply: _Supply, *, behind: bool) -> list[Message]:
    """Messages with places for the media of kinds that they have none for, by what the user says first."""
    first = next((place for place, message in enumerate(messages) if message.role == "user"), None)
    if first is None:
        return messages
    further: list[Part] = []
    for kind, given in supply.given.items():
        if not supply.asked[kind]:
            for _ in list(given):
                supply.take(kind)
                further.append(Part(kind))
    parts = messages[first].parts
    placed = Message("user", (*parts, *further) if behind else (*further, *parts))
    return [*messages[:first], placed, *messages[first + 1 :]]


def answered(value: Any, key: str) -> str:
    """A response: text, or a list with the one message of the assistant.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        role, content = value[0].get("role"), value[0].get("content")
        if role != "assistant":
            raise ValueError(f"{key!r} has a message of {role!r}; it must be the assistant's")
        value = "".join(_texts(content, key)) if isinstance(content, list) else content
    return text_of(value, key)


def _texts(parts: Sequence[Any], key: str) -> Iterator[str]:
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise ValueError(f"{key!r} has a part {shown(part)}; a response is text alone")
        yield text_of(part.get("text"), key)


def _messages(value: Any, supply: _Supply, folder: Path) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"has a prompt that is {shown(value)}; it must be text or a list of messages")
    for message in value:
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            raise ValueError(f"has a message {shown(message)}; its role must be one of {', '.join(ROLES)}")
    strings = all(isinstance(message.get("content"), str) for message in value)
    marked = strings and any(supply.given.values())
    return [Message(m["role"], tuple(_parts(m.get("content"), supply, folder, marked=marked))) for m in value]


def _parts(content: Any, supply: _Supply, folder: Path, *, marked: bool) -> Iterator[Part]:
    if isinstance(content, str):
        text = text_of(content, "content")
        yield from _split(text, supply) if marked else [Part("text", text)]
        return
    if not isinstance(content, list):
        raise ValueError(f"has a message with content {shown(content)}; it must be text or a list of parts")
    for part in content:
        if not isinstance(part, Mapping):
            raise ValueError(f"has a part {shown(part)}; it must be an object with a type")
        kind = str(part.get("type")).removesuffix("_url")
        if kind == "text":
            yield Part("text", text_of(part.get("text"), "text"))
        elif kind == "image":
            yield _place(part, "image", IMAGE_KEYS, supply, folder)
        elif kind == "video":
            yield _place(part, "video", VIDEO_KEYS, supply, folder)
        else:
            raise ValueError(f"has a part of type {part.get('type')!r}; it must be text, image or video")


def _place(part: Mapping[str, Any], kind: Kind, keys: Sequence[str], supply: _Supply, folder: Path) -> Part:
    found = next((part[key] for key in keys if part.get(key) is not None), None)
    if found is not None:  # it brings its own, which stands behind those that were placed so far
        supply.given[kind].insert(supply.asked[kind], media_of(found, kind, folder))
    supply.take(kind)
    return Part(kind)


def _split(text: str, supply: _Supply) -> Iterator[Part]:
    """Text around its markers."""
    for piece in re.split("(<image>|<video>)", text):
        if piece in MARKERS:
            supply.take(MARKERS[piece])
            yield Part(MARKERS[piece])
        elif piece:
            yield Part("text", piece)


def _marked(message: Message) -> str:
    return "".join(part.text if part.kind == "text" else f"<{part.kind}>" for part in message.parts)
