"""Responses from files: demonstrations, pairs of a chosen and a rejected one, single ones labelled good or bad."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from burnish.data.conversation import ONLY_TEXT, asked, response_of, response_text
from burnish.data.language.prompts import conversation_of, converse_with_media, prompt_of, question
from burnish.data.records import PROMPT, RESPONSE, Record, read_files
from burnish.data.values import find
from burnish.options.language import LanguageDataOptions
from burnish.types.message_keys import unwritable
from burnish.types.prompt import Message, Prompt
from burnish.utils.json_text import parse_json

LABEL = ("label", "kto_tag")
Holds = Literal["demonstrations", "preferences", "judgements"]


@dataclass(frozen=True)
class ResponseRecord:
    """A prompt with one response, or with a chosen and a rejected one."""

    prompt: Prompt
    responses: tuple[str, ...]
    good: bool = True

    @property
    def where(self) -> str:
        """Its file and line, for messages."""
        return self.prompt.where

    @property
    def rows(self) -> list[tuple[Prompt, str]]:
        """Each of its responses, with what it answers."""
        return [(self.prompt, text) for text in self.responses]

    @cached_property
    def uid(self) -> str:
        """A hash of its content."""
        return hashlib.blake2b(json.dumps(self.content, ensure_ascii=False).encode(), digest_size=8).hexdigest()

    @property
    def content(self) -> list[Any]:
        """What makes it the record that it is."""
        return [self.prompt.uid, *self.responses, self.good]


def read_responses(files: str | Sequence[str], options: LanguageDataOptions, holds: Holds) -> list[ResponseRecord]:
    """Read records with responses.

    ``demonstrations``: a question and its response, or messages; every message of the assistant becomes a record of
    its own, with the messages before it as its prompt. ``preferences``: pairs under chosen and rejected, as texts,
    messages of the assistant, or two full conversations. ``judgements``: a question, its response, and a label that is
    true or false (KTO).

    Raises:
        UserError: as ``read_questions``.
    """
    read = {"demonstrations": _demonstrations, "preferences": _preference, "judgements": _judgement}[holds]
    return read_files(files, lambda record: list(read(record, options)), media_folder=options.media_folder)


def _demonstrations(record: Record, options: LanguageDataOptions) -> Iterator[ResponseRecord]:
    response = one_response(record, options)
    if response is not None:
        yield ResponseRecord(question(record, options), (response,))
        return
    conversation = conversation_of(record, options)
    said = [i for i, message in enumerate(conversation.messages) if message.role == "assistant"]
    turns = [i for i in said if conversation.messages[i].learned]
    if said and not turns:
        raise ValueError("has no message of the assistant that is learned: each has a weight, loss or train of 0")
    if not turns:
        wanted = options.response_key or ", ".join(RESPONSE)
        raise ValueError(f"has no response: neither {wanted} nor a message of the assistant")
    for i in turns:
        if i == 0:
            raise ValueError("has messages that begin with the assistant's: it answers nothing")
        message = conversation.messages[i]
        if any(part.kind != "text" for part in message.parts):
            raise ValueError("has a message of the assistant with a picture; a response must be text only")
        _check_text(message)
        prompt = prompt_of(record, conversation, conversation.messages[:i], options)
        yield ResponseRecord(prompt, (_not_empty(message.text, "content"),))


def _preference(record: Record, options: LanguageDataOptions) -> Iterator[ResponseRecord]:
    if record.values.get("tie") or record.values.get("preference") not in (None, "chosen"):
        raise ValueError("is no pair with a winner under chosen, which only reward models learn from; leave it out")
    yield ResponseRecord(*preferred_pair(record, options))


def preferred_pair(record: Record, options: LanguageDataOptions) -> tuple[Prompt, tuple[str, str]]:
    """The prompt of a pair, the chosen response and the rejected one.

    Raises:
        ValueError: one of them is missing, or both are the same.
    """
    if record.values.get("rejected_response") is not None:  # beside a response, or a dialogue that ends with it
        chosen, rejected = last_response(record, options), record.values["rejected_response"]
    else:
        for key in ("chosen", "rejected"):
            if record.values.get(key) is None:
                raise ValueError(f"has no {key}; a pair needs chosen and rejected")
        chosen, rejected = (response_of(record.values[key]) for key in ("chosen", "rejected"))
    if asked(record.values, PROMPT, options.prompt_key)[0]:
        prompt = question(record, options)
    else:
        prompt, chosen, rejected = _common_prompt(record, options, chosen, rejected)
    better, worse = response_text(chosen, "chosen"), response_text(rejected, "rejected")
    if better == worse:
        raise ValueError("has the same text as chosen and as rejected, which prefers nothing")
    return prompt, (better, worse)


def _common_prompt(record: Record, options: LanguageDataOptions, chosen: Any, rejected: Any) -> tuple[Prompt, Any, Any]:
    """The prompt that two full conversations begin with, and their last messages."""
    if not (isinstance(chosen, list) and isinstance(rejected, list) and chosen[:-1] and chosen[:-1] == rejected[:-1]):
        raise ValueError("has no prompt, and chosen and rejected are no conversations that differ in the last message")
    common = converse_with_media(record, chosen[:-1], options)
    return prompt_of(record, common, common.messages, options), chosen[-1:], rejected[-1:]


def _judgement(record: Record, options: LanguageDataOptions) -> Iterator[ResponseRecord]:
    response = last_response(record, options)
    if response is None:
        raise ValueError(f"has no response; give one under {options.response_key or ', '.join(RESPONSE)}")
    key, good = find(record.values, LABEL)
    if not isinstance(good, bool):
        raise ValueError(f"{key or 'label'!r} is {good!r}; it must be true for a good response, false for a bad one")
    yield ResponseRecord(question(record, options), (response,), good)


def last_response(record: Record, options: LanguageDataOptions) -> str | None:
    """The response of a record, or the turn of the assistant that its dialogue ends with; None if it has neither."""
    if (response := one_response(record, options)) is not None:
        return response
    last = conversation_of(record, options).messages[-1]
    if last.role != "assistant":
        return None
    _check_text(last)
    return _not_empty(last.text, "content")


def _check_text(message: Message) -> None:
    """Refuse a response of which more than its text would have to be written."""
    if key := "tool_calls" if message.calls else unwritable(parse_json(message.more or "{}")):
        raise ValueError(ONLY_TEXT.format(key))


def one_response(record: Record, options: LanguageDataOptions) -> str | None:
    """The response of a record; None if there is none."""
    key, value = find(record.values, RESPONSE, options.response_key, "response_key")
    return _not_empty(response_text(value, key), key) if key else None


def _not_empty(text: str, key: str) -> str:
    if not text:
        raise ValueError(f"{key!r} is empty; give the text of the response")
    return text
