"""Prompts: what a model is asked, and what rewards know of it; millions of them packed in little memory."""

from __future__ import annotations

import hashlib
import json
import marshal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from json.encoder import encode_basestring
from operator import attrgetter
from typing import Any, Literal

from burnish.types.media import AS_IT_IS, Media
from burnish.types.messages import as_chat, as_text
from burnish.utils.json_text import parse_json

SHOWN = 60  # characters of a prompt in a message
CALL = 128  # bytes around the call of a tool
LabelledTools = Mapping[str | None, Sequence[dict[str, Any]]]  # schemas of functions by the label of prompts; None: all


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a message: text, or the position of the next image, video or sound."""

    kind: Literal["text", "image", "video", "audio"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. Media are parts of their own; a placeholder written in a text is just text."""

    role: str
    parts: tuple[Part, ...]
    calls: tuple[str, ...] = ()  # of tools, as ``read_calls`` returns them
    more: str = ""  # a JSON object of further keys, for templates that read them
    learned: bool = field(default=True, compare=False)  # a turn of the assistant that is to be imitated

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts)

    @property
    def said(self) -> str:
        """The text parts, and the calls of tools in a common form."""
        calls = [as_chat(call)["function"] for call in self.calls]
        return "\n".join([*([self.text] if self.text or not calls else []), *(as_text(**call) for call in calls)])

    @property
    def size(self) -> int:
        """Bytes that a chat template writes of it at most, but for what is around them."""
        written = sum(CALL + 2 * len(call.encode()) for call in self.calls)
        return len(self.text.encode()) + len(self.more.encode()) + written


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the policy is asked. ``uid`` is a hash of the content: stable across runs, files and machines.

    It is computed when it is asked for, since a run may hold millions of prompts.

    Media are in the order of their positions in the messages. Without messages the text is one user message.
    """

    text: str
    negative: str = ""
    answer: str | None = None
    source: str = "default"
    messages: tuple[Message, ...] = ()
    images: tuple[Media, ...] = ()
    videos: tuple[Media, ...] = ()
    audios: tuple[Media, ...] = ()
    inputs: tuple[tuple[str, Media], ...] = ()  # of a generator, by the name of the pipeline's argument: mask_image
    label: str | None = None  # chooses the rewards that score it
    tools: str = ""  # a JSON list of schemas of functions that it tells of, as ``read_tools`` returns it
    extra: str = ""  # a JSON object with the keys of data.extra_keys, which are part of the content
    # a JSON object with all other keys that the user wrote, for rewards: no part of the content, nor of any seed
    record: str = field(default="", compare=False)
    conversational: bool = field(default=False, compare=False)  # whether the record has messages and not a text
    where: str = field(default="", compare=False)  # file and line, for error messages
    part: int = field(default=0, compare=False)  # the entry of the list of files that it comes from

    @property
    def uid(self) -> str:
        content: list[Any] = [self.text, self.negative, self.answer, self.source]
        said = [
            (
                message.role,
                [(part.kind, part.text) for part in message.parts],
                *message.calls,
                *([["more", message.more]] if message.more else ()),
            )
            for message in self.messages
        ]
        more = [said, [media.digest for media in self.media], self.label, self.extra]
        if any(more):  # text-only prompts keep the hash that they had before messages and media existed
            content += more
        if any(media.wanted != AS_IT_IS for media in self.media):
            content.append([repr(media.wanted) for media in self.media])
        if self.tools:
            content.append(["tools", self.tools])
        if self.inputs:
            content.append([(name, media.digest) for name, media in self.inputs])
        return _hashed(json.dumps(content, ensure_ascii=False))

    @property
    def media(self) -> tuple[Media, ...]:
        """What it shows and plays, its further inputs left out."""
        return (*self.images, *self.videos, *self.audios)

    @property
    def name(self) -> str:
        """For error messages: the beginning of its text, with file and line."""
        text = self.text if len(self.text) <= SHOWN else f"{self.text[:SHOWN]}..."
        return f"prompt {text!r}" + (f" ({self.where})" if self.where else "")

    @property
    def unconditional(self) -> Prompt:
        """The negative prompt, with the same media."""
        return replace(self, text=self.negative)

    @property
    def question(self) -> Prompt:
        """What the model gets to see, without what only rewards read."""
        return replace(self, answer=None, source="default", label=None, extra="")

    @property
    def info(self) -> dict[str, Any]:
        """The user's own keys."""
        own = parse_json(self.record) if self.record else {}
        return own | parse_json(self.extra) if self.extra else own

    @property
    def turns(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return self.messages or (Message("user", (Part("text", self.text),)),)

    @property
    def size(self) -> int:
        """Bytes that a chat template writes of it at most, but for what is around messages, and for media."""
        return sum(turn.size for turn in self.turns) + 2 * len(self.tools.encode())

    def told(self, tools: LabelledTools) -> list[dict[str, Any]]:
        """Schemas of the functions that it tells of: its own, and those of its label in ``tools`` with other names."""
        own: list[dict[str, Any]] = parse_json(self.tools) if self.tools else []
        named = {one.get("function", {}).get("name") for one in own}
        shared = tools.get(self.label, tools.get(None, ()))
        return [*own, *(one for one in shared if one.get("function", {}).get("name") not in named)]

    def chat(self) -> list[dict[str, Any]]:
        """The conversation as transformers' chat templates read it."""
        return [
            {
                "role": message.role,
                "content": [
                    {"type": "text", "text": part.text} if part.kind == "text" else {"type": part.kind}
                    for part in message.parts
                ],
            }
            | ({"tool_calls": [as_chat(call) for call in message.calls]} if message.calls else {})
            | (parse_json(message.more) if message.more else {})
            for message in self.turns
        ]


def about_media(text: str, images: tuple[Media, ...], videos: tuple[Media, ...] = ()) -> Prompt:
    """A question about images and videos, which come before it."""
    parts = (*(Part("image") for _ in images), *(Part("video") for _ in videos), Part("text", text))
    return Prompt(text=text, messages=(Message("user", parts),), images=images, videos=videos)


def uid_of_text(text: str, negative: str, answer: str | None, source: str) -> str:
    """The uid of a prompt that has nothing else."""
    # as json.dumps writes a list of them, in a quarter of the time
    given = "null" if answer is None else encode_basestring(answer)
    return _hashed(f"[{encode_basestring(text)}, {encode_basestring(negative)}, {given}, {encode_basestring(source)}]")


def _hashed(content: str) -> str:
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


# what a prompt of text alone has; the first six are its content, and the record is JSON, or what that is made of
FIELDS = ("text", "negative", "answer", "source", "label", "extra", "record", "conversational", "where", "part")
Row = bytes | Prompt
_JSON = json.JSONEncoder(sort_keys=True)
values_of = attrgetter(*FIELDS)
# of this process: the beginning of ``where`` and ``part`` of rows that have the number at its end, and their place here
PLACES: list[tuple[str, int]] = []


class Prompts(Sequence[Prompt]):
    """Prompts in order. One of text alone is made anew each time that it is asked for."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Args: ``rows`` are the prompts as ``packed`` returns them."""
        self.rows = rows

    @classmethod
    def of(cls, prompts: Iterable[Prompt]) -> Prompts:
        return prompts if isinstance(prompts, Prompts) else cls([packed(prompt) for prompt in prompts])

    def __reduce__(self) -> tuple[Any, ...]:
        return Prompts, ([packed(prompt) for prompt in self],)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return Prompts(self.rows[index]) if isinstance(index, slice) else unpacked(self.rows[index])

    def __iter__(self) -> Iterator[Prompt]:
        return map(unpacked, self.rows)

    def __add__(self, other: Prompts) -> Prompts:
        joined = Prompts([*self.rows, *other.rows])
        joined._kinds = self._kinds | {kind: row for kind, row in other._kinds.items() if kind not in self._kinds}
        return joined

    def take(self, places: Iterable[int]) -> Prompts:
        """Those at these places."""
        return Prompts([self.rows[place] for place in places])

    @property
    def kinds(self) -> list[Prompt]:
        """Prompts that checks of media, messages, labels, sources and missing answers need to see: all but those of
        text alone, and of those the first of each kind."""
        return [unpacked(row) for row in self._kinds.values()]

    @cached_property
    def _kinds(self) -> dict[Any, Row]:
        first: dict[Any, Row] = {}
        for row in self.rows:
            if isinstance(row, bytes):
                _, negative, answer, source, label, *_ = marshal.loads(row)
                answered = None if answer is None else bool(answer.strip())
                first.setdefault((bool(negative), answered, source, label), row)
            else:
                first[id(row)] = row
        return first

    def uids(self) -> Iterator[str]:
        """The uid of each."""
        for row in self.rows:
            if isinstance(row, bytes):
                text, negative, answer, source, label, extra, *_ = marshal.loads(row)
                if not label and not extra:
                    yield uid_of_text(text, negative, answer, source)
                    continue
            yield unpacked(row).uid

    def longer(self, size: int) -> Iterator[Prompt]:
        """Those that may have more than ``size`` bytes, and those that show or play something."""
        return (unpacked(row) for row in self.rows if not isinstance(row, bytes) or len(row) > size)


def texts_of(prompts: Sequence[Prompt]) -> Iterator[str]:
    """The text of each, and the negative prompt where there is one."""
    for row in prompts.rows if isinstance(prompts, Prompts) else prompts:
        text, negative = marshal.loads(row)[:2] if isinstance(row, bytes) else (row.text, row.negative)
        yield text
        if negative:
            yield negative


def kinds_of(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """Those of them that ``Prompts.kinds`` names."""
    return prompts.kinds if isinstance(prompts, Prompts) else prompts


def packed(prompt: Prompt) -> Row:
    """A prompt as bytes, if it is text alone."""
    if prompt.messages or prompt.images or prompt.videos or prompt.audios or prompt.inputs or prompt.tools:
        return prompt
    return marshal.dumps(values_of(prompt))


def unpacked(row: Row) -> Prompt:
    """The prompt of a row."""
    if not isinstance(row, bytes):
        return row
    values = dict(zip(FIELDS, marshal.loads(row), strict=True))
    if isinstance(values["record"], dict):
        values["record"] = _JSON.encode(values["record"])
    if isinstance(values["where"], int):
        before, part = PLACES[values["part"]]
        values |= {"where": f"{before}{values['where']}", "part": part}
    return Prompt(**values)
