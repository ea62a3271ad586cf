"""Questions for a language model from files. Every problem is reported with its file and row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from burnish.data.conversation import DIALOGUES, Conversation, asked, beside, converse, media_in
from burnish.data.packing import Packer
from burnish.data.records import ANSWER, AUDIOS, IMAGES, PROMPT, VIDEOS, Record, data_error, read_files, read_records
from burnish.data.values import find, listed, templated
from burnish.options.language import LanguageDataOptions
from burnish.types.media import Fit, Kind
from burnish.types.messages import read_tools
from burnish.types.prompt import Message, Prompt, Prompts


def read_questions(files: str | Sequence[str], options: LanguageDataOptions) -> Prompts:
    """Read the questions of all files, in order.

    Raises:
        UserError: a file can't be read, holds nothing, or has wrong records; the message names file and row of the
            first ones and counts the others.
    """
    lines = options.prompt_key or PROMPT[0]
    pack = Packer(lambda record: question(record, options), by_text=options.template is not None)
    return Prompts(read_files(files, pack, lambda path: read_records(path, lines), media_folder=options.media_folder))


def question(record: Record, options: LanguageDataOptions) -> Prompt:
    """One question with its media, its right answer and the keys that rewards read.

    A whole dialogue that ends with the assistant's turn is asked up to there; that turn is the right answer, if the
    record has no other.

    Raises:
        ValueError: a value has the wrong type, or media and placeholders don't match.
    """
    key, value = _asked(record, options)
    conversation = converse_with_media(record, value, options)
    messages = conversation.messages
    if messages[-1].role != "assistant":
        return prompt_of(record, conversation, messages, options)
    if key not in DIALOGUES or len(messages) == 1:
        raise ValueError("has a prompt that ends with a message of the assistant; remove that message")
    prompt = prompt_of(record, conversation, messages[:-1], options)
    return prompt if prompt.answer is not None else replace(prompt, answer=messages[-1].said)


def conversation_of(record: Record, options: LanguageDataOptions) -> Conversation:
    """The messages of a record.

    Raises:
        ValueError: as ``question``.
    """
    return converse_with_media(record, _asked(record, options)[1], options)


def _asked(record: Record, options: LanguageDataOptions) -> tuple[str, Any]:
    """The key of a record's question, and the question by the template, text or messages."""
    key, value = asked(record.values, PROMPT, options.prompt_key)
    if not key:
        wanted = options.prompt_key or " or ".join(PROMPT)
        raise ValueError(f"has no {wanted}; {listed(record.values, 'data.prompt_key')}")
    value = templated(options.template, value, record.values)
    if isinstance(value, str) and not value.strip():
        raise ValueError("has an empty prompt")
    return key, value


def converse_with_media(record: Record, value: Any, options: LanguageDataOptions) -> Conversation:
    """A question or messages of a record, with the record's media in their places.

    Raises:
        ValueError: as ``question``.
    """
    found: dict[Kind, tuple[str, Any]] = {
        "image": find(record.values, IMAGES, options.images_key, "images_key"),
        "video": find(record.values, VIDEOS, options.videos_key, "videos_key"),
        "audio": find(record.values, AUDIOS, options.audios_key, "audios_key"),
    }
    return converse(value, media_in(record, found), record.folder, system=options.system_prompt)


def prompt_of(
    record: Record, conversation: Conversation, messages: Sequence[Message], options: LanguageDataOptions
) -> Prompt:
    """A prompt of the first ``messages`` of a conversation, with the record's answer.

    Raises:
        ValueError: as ``question``.
    """
    kinds = [part.kind for message in messages for part in message.parts]
    fit = fit_of(options)
    media = {
        kind: [replace(one, fit=one.wanted.over(fit)) for one in own[: kinds.count(kind)]]
        for kind, own in conversation.media.items()
    }
    key, value = asked(record.values, PROMPT, options.prompt_key)
    one = len(messages) == 1 and messages[0].role == "user" and not messages[0].more
    plain = one and not any(media.values())
    left_out = (*IMAGES, *VIDEOS, *AUDIOS, options.images_key, options.videos_key, options.audios_key)
    return Prompt(
        text=Conversation(list(messages), media).text(), messages=() if plain else tuple(messages),
        images=tuple(media["image"]), videos=tuple(media["video"]), audios=tuple(media["audio"]),
        tools=read_tools(record.values.get("tools")), conversational=isinstance(value, list),
        **beside(record, key, options, answers=ANSWER, left_out=left_out),
    )  # fmt: skip


def fit_of(options: LanguageDataOptions) -> Fit:
    """The size of images and videos that the options ask for."""
    return Fit(
        min_pixels=options.min_pixels,
        max_pixels=options.max_pixels,
        fps=options.video_fps,
        max_frames=options.video_max_frames,
        video_max_pixels=options.video_max_pixels,
    )


def within_length(prompts: Prompts, lengths: Sequence[int], options: LanguageDataOptions) -> Prompts:
    """The prompts that are short enough; none is truncated.

    Args:
        prompts: questions.
        lengths: tokens of each, vision tokens included.
        options: the limit, and what to do with longer ones.

    Raises:
        UserError: some are too long and ``overlong`` is error, or all of them are.
    """
    limit: Any = options.max_prompt_length  # there is one
    kept = [place for place, length in enumerate(lengths) if length <= limit]
    if len(kept) < len(prompts) and (options.overlong == "error" or not kept):
        over = (place for place, length in enumerate(lengths) if length > limit)
        longer = sorted(((lengths[place], prompts[place].name) for place in over), reverse=True)
        raise data_error(
            [f"{length} tokens: {name}" for length, name in longer],
            f"data.max_prompt_length is {limit}, but {len(longer)} of {len(prompts)} prompts are longer; raise it"
            + (", or remove them with data.overlong=filter" if kept else ""),
        )
    return prompts.take(kept)
