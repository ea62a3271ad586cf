"""Questions and dialogues as the tools of the field write them, as conversations with each image at its position.

alpaca (instruction, input, output), sharegpt and LLaVA (conversations of from and value), queries with a history and a
system message, chat messages of role and content.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from burnish.data.pixels import NAMES, all_of, fitted, media_of
from burnish.data.records import Record
from burnish.data.values import extra_of, find, key_set, record_of, shown, text_at, text_of, value_at
from burnish.types.media import Kind, Media
from burnish.types.messages import read_calls, read_learned, read_more, unwritable
from burnish.types.prompt import Message, Part

KINDS: tuple[Kind, ...] = ("image", "video", "audio")
MARKERS: dict[str, Kind] = {f"<{kind}>": kind for kind in KINDS}
ROLES = ("system", "developer", "user", "assistant", "tool")
ONLY_TEXT = (
    "has {} in a response, which must be text: write there what the model is to write for it, such as "
    "<tool_call>...</tool_call> for a call and <think>...</think> for thoughts"
)


@dataclass
class Conversation:
    """Messages with their media, in the order of their positions."""

    messages: list[Message]
    media: dict[Kind, list[Media]]
    placed: Counter[Kind] = field(default_factory=Counter)  # placeholders met so far, while it is read

    def text(self) -> str:
        """The user's messages, with a marker for each image, video and sound."""
        asked = [message for message in self.messages if message.role == "user"]
        return "\n".join(
            "".join(part.text if part.kind == "text" else f"<{part.kind}>" for part in message.parts)
            for message in asked
        )


def media_in(record: Record, found: Mapping[Kind, tuple[str, Any]]) -> dict[Kind, list[Media]]:
    """The media of a record that stand beside its messages, by kind.

    Args:
        record: as it is stored.
        found: the key and the value of each kind; None where there is none.

    Raises:
        ValueError: one of them is none.
    """
    return {
        kind: [] if value is None else list(all_of(value, kind, record.folder, single=key == "video"))
        for kind, (key, value) in found.items()
    }


def converse(
    value: Any,
    media: dict[Kind, list[Media]],
    folder: Path,
    *,
    system: str | None = None,
) -> Conversation:
    """Read a question. Media without any placeholder come before the text of the first user message, as in TRL's sets.

    In plain text every ``<image>``, ``<video>`` and ``<audio>`` is a placeholder. In chat messages placeholders are
    parts ({"type": "image"}); markers in their texts are placeholders only if the record has media and all of its
    messages are plain strings. Everywhere else they are text.

    Args:
        value: plain text or a list of messages.
        media: those of the record, of every kind.
        folder: that relative paths are resolved against.
        system: system message, if the messages have none.

    Raises:
        ValueError: a value has the wrong type, or placeholders and media don't match.
    """
    supply = Conversation([], media)
    if isinstance(value, str):
        messages = [Message("user", tuple(_split(text_of(value, "prompt"), supply)))]
        way_out = "write <{0}> into the question at each position, or use chat messages, where it is text"
    else:
        messages = _messages(value, supply, folder)
        way_out = 'add a part {{"type": "{0}"}} at each position'
    messages = _with_placeholders(messages, supply)
    for kind, own in media.items():
        if (count := supply.placed[kind]) != len(own):
            mend = way_out.format(kind)
            raise ValueError(f"has {len(own)} {NAMES[kind].split()[1]}s, but {count} placeholders for them; {mend}")
    if system is not None and messages[0].role != "system":
        messages.insert(0, Message("system", (Part("text", system),)))
    return replace(supply, messages=messages)


def _with_placeholders(messages: list[Message], supply: Conversation) -> list[Message]:
    """Messages with placeholders in the first user message, for each kind of media that has none."""
    first = next((i for i, message in enumerate(messages) if message.role == "user"), None)
    if first is None:
        return messages
    further: list[Part] = []
    for kind, media in supply.media.items():
        if not supply.placed[kind]:
            supply.placed[kind] = len(media)
            further += [Part(kind)] * len(media)
    completed = replace(messages[first], parts=(*further, *messages[first].parts))
    return [*messages[:first], completed, *messages[first + 1 :]]


def response_text(value: Any, key: str) -> str:
    """A response: text, or a list with a single message of the assistant.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        role, content = value[0].get("role"), value[0].get("content")
        if key_of_it := unwritable(value[0]):
            raise ValueError(ONLY_TEXT.format(key_of_it))
        if role != "assistant":
            raise ValueError(f"{key!r} has a message of {role!r}; it must be the assistant's")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if odd := [part for part in parts if not isinstance(part, Mapping) or part.get("type") != "text"]:
            raise ValueError(f"{key!r} has a part {shown(odd[0])}; a response must be text only")
        value = "".join(text_of(part.get("text"), key) for part in parts)
    return text_of(value, key)


def _messages(value: Any, supply: Conversation, folder: Path) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"has a prompt that is {shown(value)}; it must be text or a list of messages")
    for message in value:
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            raise ValueError(f"has a message {shown(message)}; its role must be one of {', '.join(ROLES)}")
    strings = all(isinstance(_content(message), str) for message in value)
    marked = strings and any(supply.media.values())
    messages = []
    for message in value:
        parts = tuple(_parts(_content(message), supply, folder, marked=marked))
        calls = read_calls(message.get("tool_calls"))
        if calls and message["role"] != "assistant":
            raise ValueError(f"has a message of {message['role']!r} with tool_calls; they must be the assistant's")
        messages.append(Message(message["role"], parts, calls, read_more(message), read_learned(message)))
    return messages


def _content(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    return "" if content is None and message.get("tool_calls") else content  # as OpenAI's format has it


def _parts(content: Any, supply: Conversation, folder: Path, *, marked: bool) -> Iterator[Part]:
    if isinstance(content, str):
        text = text_of(content, "content")
        yield from _split(text, supply) if marked else [Part("text", text)]
        return
    if not isinstance(content, list):
        raise ValueError(f"has a message with content {shown(content)}; it must be text or a list of parts")
    for part in content:
        if not isinstance(part, Mapping):
            raise ValueError(f"has a part {shown(part)}; it must be an object with a type")
        kind = str(part.get("type")).removesuffix("_url").removeprefix("input_")
        if kind in ("text", "output_text"):
            yield Part("text", text_of(part.get("text"), "text"))
        elif kind in KINDS:
            keys = (kind, f"{kind}_url", f"input_{kind}", "url", "path", "bytes")
            place, given = supply.placed[kind], supply.media[kind]
            if (own := next((part[key] for key in keys if part.get(key) is not None), None)) is not None:
                given.insert(place, media_of(own, kind, folder, part.get("fps")))  # it comes next in order
            if place < len(given):
                given[place] = fitted(given[place], part)
            supply.placed[kind] += 1
            yield Part(kind)
        else:
            raise ValueError(f"has a part of type {part.get('type')!r}; it must be text or {', '.join(KINDS)}")


def _split(text: str, supply: Conversation) -> Iterator[Part]:
    """Text split at its markers."""
    for piece in re.split("(<image>|<video>|<audio>)", text):
        if piece in MARKERS:
            supply.placed[MARKERS[piece]] += 1
            yield Part(MARKERS[piece])
        elif piece:
            yield Part("text", piece)


# forms of records: alpaca, sharegpt and their relatives
INSTRUCTION, CONVERSATIONS = "instruction", "conversations"
DIALOGUES = ("messages", CONVERSATIONS)  # keys of whole dialogues, whose last turn may be the response
# speakers of sharegpt and its relatives, and the role of each in chat messages
SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "model": "assistant", "system": "system", "tool": "tool", "observation": "tool", "tool_response": "tool",
    "function_call": "assistant", "tool_call": "assistant",
}  # fmt: skip


def asked(values: Mapping[str, Any], usual: Sequence[str], key: str | None = None) -> tuple[str, Any]:
    """The key of a record's question, and the question: text, or messages; ("", None) if there is none.

    Args:
        values: the record.
        usual: keys to look for.
        key: the only key to look for, if data.prompt_key names one.

    Raises:
        ValueError: several keys hold one, or a turn is not in a known form.
    """
    name, value = find(values, usual, key, "prompt_key")
    if not name and key is None:
        name, value = find(values, (INSTRUCTION, CONVERSATIONS), None, "prompt_key")
    if name == INSTRUCTION and key is None and values.get("input"):
        value = f"{text_of(value, name)}\n{text_of(values['input'], 'input')}"
    if isinstance(value, list):
        value = [_message(turn, name) for turn in value]
    if name == CONVERSATIONS or (name in (INSTRUCTION, "query") and isinstance(value, str)):
        value = _with_history(values, name, value)
    return name, value


def beside(
    record: Record, key: str, options: Any, *, answers: Sequence[str], left_out: Sequence[str | None]
) -> dict[str, Any]:
    """What a prompt has beside its question, of whatever kind it is.

    Args:
        record: as it is stored.
        key: of its question.
        options: ``PromptOptions``, or those of the same names.
        answers: usual keys of the right answer.
        left_out: keys that rewards read elsewhere.

    Raises:
        ValueError: a value has the wrong type.
    """
    values = record.values
    answer_key, answer = find(values, answers, options.answer_key, "answer_key")
    label = value_at(values, options.label_key or "label")
    taken = (options.answer_key, options.prompt_key, getattr(options, "response_key", None))
    if options.label_key is None and ("label" in taken or not isinstance(label, str)):
        label = None
    # where the question is the value as it is, rewards need no other copy of it
    asked_as_it_is = key if options.template is None and key not in (INSTRUCTION, CONVERSATIONS) else None
    return {
        "source": text_at(values, "data_source") or "default",
        "answer": text_of(answer, answer_key, numbers=True) if answer_key else None,
        "label": None if label is None else text_of(label, options.label_key or "label"),
        "extra": extra_of(values, options.extra_keys),
        "record": record_of(values, key_set(asked_as_it_is, *left_out, *options.extra_keys)),
        "where": record.where,
        "part": record.part,
    }


def response_of(value: Any) -> Any:
    """A response that sharegpt writes as one turn, as messages; others as they are."""
    return [_message(value, "response")] if isinstance(value, Mapping) else value


def _with_history(values: Mapping[str, Any], name: str, value: Any) -> Any:
    """A question with the turns before it and the system message, where the record has some."""
    turns, system = values.get("history") if isinstance(value, str) else None, values.get("system")
    if turns is not None and not (
        isinstance(turns, list) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in turns)
    ):
        raise ValueError(f"'history' is {shown(turns)}; it must be a list of pairs of a question and its response")
    if not turns and not system:
        return value
    before = [
        {"role": role, "content": text_of(said, "history")}
        for pair in turns or ()
        for role, said in zip(("user", "assistant"), pair, strict=True)
    ]
    messages = [*before, {"role": "user", "content": text_of(value, name)}] if isinstance(value, str) else value
    if not system or (messages and messages[0]["role"] == "system"):
        return messages
    return [{"role": "system", "content": text_of(system, "system")}, *messages]


def _message(turn: Any, key: str) -> Any:
    """A turn as a message of role and content; what is one, or can't be read as one, as it is."""
    if not isinstance(turn, Mapping) or "role" in turn or "from" not in turn:
        return turn
    speaker = turn["from"]
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        raise ValueError(f"{key!r} has a turn from {shown(speaker)}; it must be from one of {', '.join(SPEAKERS)}")
    more = {name: value for name, value in turn.items() if name not in ("from", "value")}
    return {**more, "role": SPEAKERS[speaker], "content": text_of(turn.get("value"), f"{key}.value")}
