"""Questions for a language model from records. Every problem is reported with its file and row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from burnish.data.language.conversation import Conversation, converse
from burnish.data.language.options import LanguageDataOptions
from burnish.data.language.records import Record, files_of, read_records
from burnish.data.language.values import ANSWER, IMAGES, PROMPT, VIDEOS, extra_of, find, text_of, value_at
from burnish.data.lines import told
from burnish.types.prompt import Message, Prompt

T = TypeVar("T")


def read_questions(files: str | Sequence[str], options: LanguageDataOptions) -> list[Prompt]:
    """Read the questions of all files, in order.

    Raises:
        UserError: a file can't be read, holds nothing, or has wrong records; the message names file and row of the
            first ones and counts the others.
    """
    return read_all(files, lambda record: [question(record, options)])


def read_all(files: str | Sequence[str], read: Callable[[Record], Iterable[T]]) -> list[T]:
    """What ``read`` makes of every record; the problems of all of them together.

    Raises:
        UserError: as ``read_questions``.
    """
    found: list[T] = []
    problems: list[str] = []
    for path in files_of(files):
        empty = True
        for record in read_records(path):
            empty = False
            try:
                found += _read(record, read)
            except ValueError as error:
                problems.append(f"{record.where}: {error}")
        if empty:
            problems.append(f"{path} holds no records")
    if problems:
        raise told(problems)
    return found


def _read(record: Record, read: Callable[[Record], Iterable[T]]) -> Iterable[T]:
    if record.problem:
        raise ValueError(record.problem)
    return read(record)


def question(record: Record, options: LanguageDataOptions) -> Prompt:
    """One question with its media, its right answer and what else rewards want to know.

    Raises:
        ValueError: anything in it is not what it must be.
    """
    conversation = conversation_of(record, options)
    if conversation.messages[-1].role == "assistant":
        raise ValueError("has a prompt whose last message is the assistant's: nothing is left to answer")
    return prompt_of(record, conversation, conversation.messages, options)


def conversation_of(record: Record, options: LanguageDataOptions) -> Conversation:
    """The messages of a record.

    Raises:
        ValueError: as ``question``.
    """
    key, value = find(record.values, options.prompt_key, PROMPT, "prompt_key")
    if not key:
        wanted = options.prompt_key or " or ".join(PROMPT)
        raise ValueError(f"has no {wanted}; its keys are {', '.join(map(repr, record.values)) or 'none'}")
    if isinstance(value, str) and not value.strip():
        raise ValueError("has an empty prompt")
    _, images = find(record.values, options.images_key, IMAGES, "images_key")
    videos = find(record.values, options.videos_key, VIDEOS, "videos_key")
    return converse(value, images, videos, record.folder, system=options.system_prompt, unmarked=options.unmarked)


def prompt_of(
    record: Record, conversation: Conversation, messages: Sequence[Message], options: LanguageDataOptions
) -> Prompt:
    """A prompt of some of a conversation's first messages, with the record's answer.

    Raises:
        ValueError: as ``question``.
    """
    kinds = [part.kind for message in messages for part in message.parts]
    images, videos = conversation.images[: kinds.count("image")], conversation.videos[: kinds.count("video")]
    plain = len(messages) == 1 and messages[0].role == "user" and not images and not videos
    shortened = Conversation(list(messages), images, videos)
    return Prompt(
        text=shortened.text(),
        source=_text_at(record.values, "data_source") or "default",
        answer=_answer(record.values, options),
        messages=() if plain else tuple(messages),
        images=tuple(images),
        videos=tuple(videos),
        label=_label(record.values, options),
        extra=extra_of(record.values, options.extra_keys),
        where=record.where,
    )


def _answer(values: dict[str, Any], options: LanguageDataOptions) -> str | None:
    key, value = find(values, options.answer_key, ANSWER, "answer_key")
    return text_of(value, key, numbers=True) if key else None


def _label(values: dict[str, Any], options: LanguageDataOptions) -> str | None:
    if options.label_key:
        return _text_at(values, options.label_key)
    named = (options.answer_key, options.prompt_key, options.response_key)
    label = values.get("label")
    return text_of(label, "label") if isinstance(label, str) and "label" not in named else None


def _text_at(values: dict[str, Any], key: str) -> str | None:
    value = value_at(values, key)
    return None if value is None else text_of(value, key)


def within_length(prompts: Sequence[Prompt], lengths: Sequence[int], options: LanguageDataOptions) -> list[Prompt]:
    """The prompts that are short enough; nothing is ever cut, least of all through a picture.

    Args:
        prompts: questions.
        lengths: tokens of each, placeholders of pictures included.
        options: the limit, and what happens to longer ones.

    Raises:
        UserError: some are too long and ``overlong`` is error, or all of them are.
    """
    limit = options.max_prompt_length
    if limit is None:
        return list(prompts)
    kept = [prompt for prompt, length in zip(prompts, lengths, strict=True) if length <= limit]
    longer = sorted(_longer(prompts, lengths, limit), reverse=True)
    if longer and (options.overlong == "error" or not kept):
        raise told(
            [f"{length} tokens: {text}" for length, text in longer],
            f"data.max_prompt_length is {limit}, but {len(longer)} of {len(prompts)} prompts are longer; raise it, or "
            "leave them out with data.overlong=filter",
        )
    return kept


def check_positions(prompts: Sequence[Prompt], longest: int, length: Callable[[Prompt], int]) -> None:
    """Refuse questions whose words alone are more than a model has positions for.

    What a question takes with its pictures shows when it is read. Most are shorter in bytes already, and a token is no
    less than one.

    Args:
        prompts: questions.
        longest: positions.
        length: tokens of a question, each picture and video counted as one.

    Raises:
        UserError: there are some; the message names the first ones.
    """
    problems = []
    for prompt in prompts:
        if sum(len(message.text.encode()) for message in prompt.turns) >= longest and length(prompt) >= longest:
            problems.append(f"{length(prompt)} tokens: {prompt.name}")
    if problems:
        raise told(
            problems,
            f"{len(problems)} of {len(prompts)} questions leave no room for a response: the model has {longest} "
            "positions (max_position_embeddings). Shorten them, or set data.max_prompt_length and "
            "data.overlong=filter",
        )


def _longer(prompts: Sequence[Prompt], lengths: Sequence[int], limit: int) -> Iterator[tuple[int, str]]:
    for prompt, length in zip(prompts, lengths, strict=True):
        if length > limit:
            yield length, prompt.name
