"""Answers to learn from: supervised ones, pairs of a better and a worse one, single ones that are good or bad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.data.language.conversation import Conversation, answered, converse
from burnish.data.language.options import LanguageDataOptions
from burnish.data.language.prompts import conversation_of, prompt_of, question, read_all
from burnish.data.language.records import Record
from burnish.data.language.values import IMAGES, PROMPT, RESPONSE, VIDEOS, find
from burnish.types.prompt import Prompt


@dataclass(frozen=True)
class Demonstration:
    """What the assistant should say to a prompt."""

    prompt: Prompt
    response: str


@dataclass(frozen=True)
class Preference:
    """Two responses to a prompt, the better one first."""

    prompt: Prompt
    chosen: str
    rejected: str


@dataclass(frozen=True)
class Judgement:
    """A response to a prompt that somebody found good or bad."""

    prompt: Prompt
    response: str
    good: bool


def read_demonstrations(files: str | Sequence[str], options: LanguageDataOptions) -> list[Demonstration]:
    """Read supervised samples: a question and its response, or messages in which the assistant speaks.

    Every turn of the assistant becomes a sample of its own, with what was said before as its prompt.

    Raises:
        UserError: as ``read_questions``.
    """
    return read_all(files, lambda record: list(_demonstrations(record, options)))


def read_preferences(files: str | Sequence[str], options: LanguageDataOptions) -> list[Preference]:
    """Read pairs under chosen and rejected: texts, messages of the assistant, or two whole conversations.

    Raises:
        UserError: as ``read_questions``.
    """
    return read_all(files, lambda record: [_preference(record, options)])


def read_judgements(files: str | Sequence[str], options: LanguageDataOptions) -> list[Judgement]:
    """Read single responses whose label is true or false (KTO).

    Raises:
        UserError: as ``read_questions``.
    """
    return read_all(files, lambda record: [_judgement(record, options)])


def _demonstrations(record: Record, options: LanguageDataOptions) -> Iterator[Demonstration]:
    key, value = find(record.values, options.response_key, RESPONSE, "response_key")
    if key:
        yield Demonstration(question(record, options), _filled(answered(value, key), key))
        return
    conversation = conversation_of(record, options)
    spoken = [i for i, message in enumerate(conversation.messages) if message.role == "assistant"]
    if not spoken:
        wanted = options.response_key or ", ".join(RESPONSE)
        raise ValueError(f"has no response: neither {wanted} nor a message of the assistant")
    for i in spoken:
        if i == 0:
            raise ValueError("has messages that begin with the assistant's: it answers nothing")
        message = conversation.messages[i]
        if any(part.kind != "text" for part in message.parts):
            raise ValueError("has a message of the assistant with a picture; a response is text alone")
        prompt = prompt_of(record, conversation, conversation.messages[:i], options)
        yield Demonstration(prompt, _filled(message.text, "content"))


def _preference(record: Record, options: LanguageDataOptions) -> Preference:
    for key in ("chosen", "rejected"):
        if record.values.get(key) is None:
            raise ValueError(f"has no {key}; a pair needs chosen and rejected")
    chosen, rejected = record.values["chosen"], record.values["rejected"]
    if find(record.values, options.prompt_key, PROMPT, "prompt_key")[0]:
        prompt = question(record, options)
    else:
        prompt, chosen, rejected = _shared(record, options, chosen, rejected)
    better, worse = answered(chosen, "chosen"), answered(rejected, "rejected")
    if better == worse:
        raise ValueError("has the same text as chosen and as rejected, which prefers nothing")
    return Preference(prompt, better, worse)


def _shared(record: Record, options: LanguageDataOptions, chosen: Any, rejected: Any) -> tuple[Prompt, Any, Any]:
    """The prompt that two whole conversations begin with, and their last messages."""
    if not (isinstance(chosen, list) and isinstance(rejected, list) and chosen[:-1] and chosen[:-1] == rejected[:-1]):
        raise ValueError("has no prompt, and chosen and rejected are no conversations that differ in the last message")
    _, images = find(record.values, options.images_key, IMAGES, "images_key")
    videos = find(record.values, options.videos_key, VIDEOS, "videos_key")
    said: Conversation = converse(
        chosen[:-1], images, videos, record.folder, system=options.system_prompt, unmarked=options.unmarked
    )
    return prompt_of(record, said, said.messages, options), chosen[-1:], rejected[-1:]


def _judgement(record: Record, options: LanguageDataOptions) -> Judgement:
    key, value = find(record.values, options.response_key, RESPONSE, "response_key")
    if not key:
        raise ValueError(f"has no response; give one under {options.response_key or ', '.join(RESPONSE)}")
    good = record.values.get("label")
    if not isinstance(good, bool):
        raise ValueError(f"'label' is {good!r}; it must be true where the response is good, false where it is bad")
    return Judgement(question(record, options), _filled(answered(value, key), key), good)


def _filled(text: str, key: str) -> str:
    if not text:
        raise ValueError(f"{key!r} is empty; there is nothing to learn from")
    return text
