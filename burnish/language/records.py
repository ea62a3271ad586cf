"""Responses from files, and what people said of them: which of two they prefer, how they score one, which steps are
right; of images that were drawn for prompts, too."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from burnish.data.conversation import ONLY_TEXT, asked, response_of, response_text
from burnish.data.images import BEGINNING, KEYS, image_at
from burnish.data.images import Holds as Images
from burnish.data.pixels import all_of
from burnish.data.questions import conversation_of, converse_with_media, fit_of, prompt_of, question
from burnish.data.records import PROMPT, RESPONSE, Record, read_files
from burnish.data.scored import scores_in
from burnish.data.values import find, listed, number_of, shown, templated, text_at, text_of
from burnish.language.algorithms.base import LanguageNeeds
from burnish.language.model.reward_head import about_image
from burnish.options.language import LanguageDataOptions
from burnish.types.messages import unwritable
from burnish.types.prompt import Message, Prompt, about_media
from burnish.utils.json_text import parse_json

LABEL = ("label", "kto_tag")
OUTCOMES = {"chosen": 1.0, "rejected": -1.0, "tie": 0.0}
SCORES = ("scores", "score", "rating")
STEPS = ("steps", "completions")
SAMPLED = ("token_ids", "logprobs", "finished", "turns")  # what is told of how a response was sampled


@dataclass(frozen=True)
class ResponseRecord:
    """A prompt with one response, or with a chosen and a rejected one, and what people said of them."""

    prompt: Prompt
    responses: tuple[str, ...]
    good: bool = True
    # labels of each step by each head, where a reward model learns
    target: tuple[tuple[float, ...], ...] = ()  # [S][H]; 1, 0, -1 of a pair, else scores; nan where nobody said
    margin: tuple[float, ...] = ()  # [H] of a pair
    ends: tuple[int, ...] = ()  # characters of the response at which its steps end; none: it is judged as a whole
    asked: tuple[Prompt, ...] = ()  # of records of images: the question about each, which has no response
    # of a response with scores
    scores: tuple[float, ...] = ()  # NaN where one is missing
    tokens: tuple[int, ...] | None = None  # as it was sampled; None: as its text is tokenized, with its end
    logprobs: tuple[float, ...] = ()  # of these tokens, under the policy that sampled it; none where nobody knows
    finished: bool = True  # false: it was cut

    @property
    def where(self) -> str:
        """Its file and line, for messages."""
        return self.prompt.where

    @property
    def rows(self) -> list[tuple[Prompt, str]]:
        """Each of its responses, with what it answers."""
        return list(zip(self.asked or (self.prompt,) * len(self.responses), self.responses, strict=True))

    @cached_property
    def uid(self) -> str:
        """A hash of its content."""
        asked = [prompt.uid for prompt in self.asked]
        content = repr((self.prompt.uid, self.responses, self.good, self.target, self.margin, self.ends, asked))
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def read_records(files: Any, options: LanguageDataOptions, needs: LanguageNeeds) -> list[ResponseRecord]:
    """Read records with responses, and with the labels that the algorithm, which has these needs, learns from.

    ``demonstrations``: a question and its response, or messages; every message of the assistant becomes a record of
    its own, with the messages before it as its prompt. ``preferences``: pairs under chosen and rejected, as texts,
    messages of the assistant, or two full conversations. ``judgements``: a question, its response, and a label that is
    true or false (KTO).

    For reward models, ``comparisons``: pairs as for DPO, with ``tie: true``, ``preference`` (chosen, rejected or tie,
    or one of them by head) and ``margin`` (a number, or one by head) where they have them. ``scores``: a response with
    its score, or its scores by head. With a question both have images in place of responses, as ``drawn`` reads them.
    ``steps``: a list of steps with as many needs.

    For algorithms that sample, in place of prompts: a response with its scores (data.scores), and where they are known
    with its tokens and their log-probs.

    Raises:
        UserError: as ``read_questions``.
    """
    readers = {
        "prompts": _scored, "demonstrations": _demonstrations, "preferences": _preference, "judgements": _judgement,
        "comparisons": _comparison, "scores": _score, "steps": _steps,
    }  # fmt: skip
    read = readers[needs.data]
    return read_files(files, lambda record: list(read(record, options, needs)), media_folder=options.media_folder)


def _demonstrations(record: Record, options: LanguageDataOptions, needs: LanguageNeeds) -> Iterator[ResponseRecord]:
    response = one_response(record, options)
    if response is not None:
        yield ResponseRecord(question(record, options), (response,))
        return
    conversation = conversation_of(record, options)
    said = [(i, message) for i, message in enumerate(conversation.messages) if message.role == "assistant"]
    learned = [(i, message) for i, message in said if message.learned]
    if not said:
        wanted = options.response_key or ", ".join(RESPONSE)
        raise ValueError(f"has no response: neither {wanted} nor a message of the assistant")
    if not learned:
        raise ValueError("has no message of the assistant that is learned: each has a weight, loss or train of 0")
    if learned[0][0] == 0:
        raise ValueError("has messages that begin with the assistant's: it answers nothing")
    for i, message in learned:
        prompt = prompt_of(record, conversation, conversation.messages[:i], options)
        yield ResponseRecord(prompt, (_said(message),))


def _preference(record: Record, options: LanguageDataOptions, needs: LanguageNeeds) -> Iterator[ResponseRecord]:
    if record.values.get("tie") or record.values.get("preference") not in (None, "chosen"):
        raise ValueError("is not a pair with a winner under chosen, which only reward models learn from; remove it")
    yield preferred_pair(record, options)


def preferred_pair(record: Record, options: LanguageDataOptions) -> ResponseRecord:
    """A prompt with the chosen response and the rejected one.

    Raises:
        ValueError: one of them is missing, or both are the same.
    """
    keys = ("chosen", "rejected")
    if record.values.get("rejected_response") is not None:  # beside a response, or a dialogue that ends with it
        pair: list[Any] = [last_response(record, options), record.values["rejected_response"]]
    elif missing := [key for key in keys if record.values.get(key) is None]:
        raise ValueError(f"has no {missing[0]}; a pair needs chosen and rejected")
    else:
        pair = [response_of(record.values[key]) for key in keys]
    if asked(record.values, PROMPT, options.prompt_key)[0]:
        prompt = question(record, options)
    else:  # of two full conversations all but the last messages
        before, other = (one[:-1] if isinstance(one, list) else [] for one in pair)
        if not before or before != other:
            raise ValueError(
                "has no prompt, and chosen and rejected are no conversations that differ in the last message"
            )
        common = converse_with_media(record, before, options)
        prompt = prompt_of(record, common, common.messages, options)
        pair = [one[-1:] for one in pair]
    better, worse = map(response_text, pair, keys)
    if better == worse:
        raise ValueError("has the same text as chosen and as rejected, which prefers nothing")
    return ResponseRecord(prompt, (better, worse))


def _judgement(record: Record, options: LanguageDataOptions, needs: LanguageNeeds) -> Iterator[ResponseRecord]:
    response = last_response(record, options)
    key, good = find(record.values, LABEL)
    if not isinstance(good, bool):
        raise ValueError(f"{key or 'label'!r} is {good!r}; it must be true for a good response, false for a bad one")
    yield ResponseRecord(question(record, options), (response,), good)


def last_response(record: Record, options: LanguageDataOptions) -> str:
    """The response of a record, or the turn of the assistant that its dialogue ends with.

    Raises:
        ValueError: it has neither.
    """
    if (response := one_response(record, options)) is not None:
        return response
    last = conversation_of(record, options).messages[-1]
    if last.role != "assistant":
        raise ValueError(f"has no response; give one under {options.response_key or ', '.join(RESPONSE)}")
    return _said(last)


def _said(message: Message) -> str:
    """The text of a message of the assistant; refused where more than that would have to be written."""
    if any(part.kind != "text" for part in message.parts):
        raise ValueError("has a message of the assistant with an image; a response must be text only")
    if key := "tool_calls" if message.calls else unwritable(parse_json(message.more or "{}")):
        raise ValueError(ONLY_TEXT.format(key))
    return _not_empty(message.text, "content")


def one_response(record: Record, options: LanguageDataOptions) -> str | None:
    """The response of a record; None if there is none."""
    key, value = find(record.values, RESPONSE, options.response_key, "response_key")
    return _not_empty(response_text(value, key), key) if key else None


def _not_empty(text: str, key: str) -> str:
    if not text:
        raise ValueError(f"{key!r} is empty; give the text of the response")
    return text


def _scored(record: Record, options: LanguageDataOptions, needs: LanguageNeeds) -> Iterator[ResponseRecord]:
    values = {key: value for key, value in record.values.items() if key not in SAMPLED}
    ids, logprobs, finished, turns = (record.values.get(key) for key in SAMPLED)
    if isinstance(values.get("messages"), str):  # as runs keep them, beside the text of the question
        values |= {"messages": parse_json(values["messages"]), "prompt": None}
    asked, tokens = replace(record, values=values), None
    for key, given in (("token_ids", ids), ("logprobs", logprobs)):
        if given is not None and not isinstance(given, list | tuple):
            raise ValueError(f"{key!r} is {shown(given)}; it must be a list of numbers")
    if turns not in (None, 1):
        raise ValueError(f"'turns' is {shown(turns)}; only single responses have scores to learn from; remove it")
    if ids is None and (finished is False or logprobs is not None):
        why = "was cut" if finished is False else "has logprobs"
        raise ValueError(f"has a response that {why}, but no token_ids, which say where it ends; add them")
    if logprobs is None and needs.logprobs:
        raise ValueError(
            "has no logprobs of its token_ids under the policy that wrote them; add them, or take those of the model "
            "before training: algorithm.given_logprobs=reference"
        )
    if ids is None:
        response = last_response(asked, options)
    else:  # which may be empty
        key, value = find(values, RESPONSE, options.response_key, "response_key")
        response = text_of(value, key)
        tokens = tuple(int(_label(token, "token_ids", least=0, must="tokens are 0 or more")) for token in ids)
    known = tuple(number_of(value, "logprobs") for value in logprobs or ())
    if logprobs is not None and len(known) != len(tokens or ()):
        raise ValueError(f"has {len(known)} logprobs of {len(tokens or ())} token_ids; give one of each")
    yield ResponseRecord(
        question(asked, options), (response,), scores=scores_in(record, options.scores or {}), tokens=tokens,
        logprobs=known, finished=finished is not False,
    )  # fmt: skip


def _comparison(record: Record, options: LanguageDataOptions, needs: LanguageNeeds) -> Iterator[ResponseRecord]:
    given = drawn(record, options, needs, "pairs") if needs.question else preferred_pair(record, options)
    tie, preference = record.values.get("tie"), record.values.get("preference")
    if tie is not None and not isinstance(tie, bool):
        raise ValueError(f"'tie' is {shown(tie)}; it must be true or false")
    if tie and preference is not None:
        raise ValueError("has 'tie' and 'preference'; keep one")
    outcome = (0.0 if tie else 1.0,) * len(needs.heads)
    if preference is not None:
        outcome = _by_head(preference, "preference", needs.heads, _outcome)
    if 0.0 in outcome and not needs.ties:
        raise ValueError("is a tie, which algorithm.ties=null can't learn; set it to rao_kupper or davidson")
    margin = _by_head(
        record.values.get("margin"), "margin", needs.heads, partial(_label, least=0.0, must="it must not be negative")
    )
    margin = tuple(0.0 if math.isnan(one) else one for one in margin)
    yield replace(given, target=(outcome,), margin=margin)


def _score(record: Record, options: LanguageDataOptions, needs: LanguageNeeds) -> Iterator[ResponseRecord]:
    key, value = find(record.values, SCORES)
    if not key:
        raise ValueError(f"has no score; give one under {' or '.join(SCORES)}")
    target = (_by_head(value, key, needs.heads, SHARE if needs.shares else _label),)
    if needs.question:
        yield replace(drawn(record, options, needs, "images"), target=target)
    else:
        yield ResponseRecord(question(record, options), (last_response(record, options),), target=target)


def _steps(record: Record, options: LanguageDataOptions, needs: LanguageNeeds) -> Iterator[ResponseRecord]:
    key, steps = find(record.values, STEPS)
    given = record.values.get("labels")
    if not isinstance(steps, list) or not steps:
        raise ValueError(f"has no list of steps; give one under {' or '.join(STEPS)}")
    if not isinstance(given, list) or len(given) != len(steps):
        raise ValueError(f"'labels' is {shown(given)}; it must be a list with one label for each of {len(steps)} steps")
    texts = [response_text(step, key) for step in steps]
    for text in texts:
        if not text.strip() or needs.separator in text.strip(needs.separator):
            raise ValueError(
                f"{key!r} has the step {shown(text)}; it must have text, and algorithm.separator "
                f"{needs.separator!r} may stand at its end alone"
            )
    text, ends = "", []
    for number, step in enumerate(texts):
        text += step if step.endswith(needs.separator) or number + 1 == len(texts) else step + needs.separator
        ends.append(len(text))
    read = SHARE if needs.shares else _label
    target = tuple(_by_head(one, "labels", needs.heads, read) for one in given)
    yield ResponseRecord(question(record, options), (text,), target=target, ends=tuple(ends))


def _by_head(value: Any, key: str, heads: Sequence[str], read: Any) -> tuple[float, ...]:
    """A label for each head; nan where there is none. One that is given alone is of every head."""
    if value is None:
        return (math.nan,) * len(heads)
    if not isinstance(value, Mapping):
        if len(heads) > 1:
            raise ValueError(f"{key!r} is {shown(value)}; with heads {', '.join(heads)} it must have one for each")
        return (read(value, key),)
    if unknown := [name for name in value if name not in heads]:
        raise ValueError(f"{key!r} has {unknown[0]!r}; algorithm.heads has {', '.join(heads)}")
    labels = tuple(math.nan if value.get(head) is None else read(value[head], key) for head in heads)
    if all(map(math.isnan, labels)):
        raise ValueError(f"{key!r} has nothing for any of the heads {', '.join(heads)}")
    return labels


def _outcome(value: Any, key: str) -> float:
    if not isinstance(value, str) or value not in OUTCOMES:
        raise ValueError(f"{key!r} is {shown(value)}; it must be one of {', '.join(OUTCOMES)}")
    return OUTCOMES[value]


def _label(value: Any, key: str, *, most: float = math.inf, least: float = -math.inf, must: str = "") -> float:
    number = float(value) if isinstance(value, bool) and key == "labels" else number_of(value, key)
    if not least <= number <= most:
        raise ValueError(f"{key!r} is {shown(value)}; {must}")
    return number


SHARE = partial(_label, least=0.0, most=1.0, must="with algorithm.kind=bce it must be from 0 to 1")


TEXT = ("prompt", "text", "caption")


def drawn(record: Record, options: LanguageDataOptions, needs: LanguageNeeds, holds: Images) -> ResponseRecord:
    """All that a record shows, and the question about each of its images, behind those that its prompt begins from.

    Args:
        record: a prompt with its image, or with ``chosen`` and ``rejected``, under the keys that generators' data
            have them.
        options: under which key it has its prompt, and of which size images are shown.
        needs: with the question, a text with ``{prompt}`` in it.
        holds: single images or pairs.

    Raises:
        ValueError: something is missing, has the wrong type, or both images are the same.
    """
    key, value = asked(record.values, TEXT, options.prompt_key)
    if not key:
        raise ValueError(f"has no {options.prompt_key or 'prompt'}; {listed(record.values, 'data.prompt_key')}")
    value = templated(options.template, value, record.values)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key!r} is {shown(value)}; with algorithm.question it must be the text drawn for")
    images = [image_at(record, usual) for usual in KEYS[holds]]
    moving = [one for one in images if one.kind == "video" or str(one.path).lower().endswith(".gif")]
    if moving:
        raise ValueError(  # it would be judged by its first frame, if at all
            f"has {moving[0].path or 'a clip'}: algorithm.question is asked about single images; give a frame of each "
            "clip (as a reward, the model then scores clips by their frames)"
        )
    if len(images) == 2 and images[0] == images[1]:
        raise ValueError("has the same image as chosen and as rejected, which prefers nothing")
    _, before = find(record.values, BEGINNING[holds], options.images_key, "images_key")
    fit = fit_of(options)
    begun = () if before is None else all_of(before, "image", record.folder)
    begun, after = (tuple(replace(media, fit=fit) for media in some) for some in (begun, images))
    source = text_at(record.values, "data_source") or "default"
    every = replace(about_media(value, (*begun, *after)), source=source, where=record.where, part=record.part)
    about = tuple(about_image(needs.question, value, (*begun, one)) for one in after)
    return ResponseRecord(every, ("",) * len(after), asked=about)
