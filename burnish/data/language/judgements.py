"""What people said of responses, from files: which of two they prefer, how they score one, which steps are right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from burnish.data.conversation import response_text
from burnish.data.language.drawn import drawn
from burnish.data.language.prompts import question
from burnish.data.language.responses import ResponseRecord, one_response, preferred_pair
from burnish.data.records import Record, read_files
from burnish.data.values import find, number_of, shown
from burnish.options.language import LanguageDataOptions
from burnish.types.prompt import Prompt

Holds = Literal["comparisons", "scores", "steps"]
OUTCOMES = {"chosen": 1.0, "rejected": -1.0, "tie": 0.0}
SCORES = ("scores", "score", "rating")
STEPS = ("steps", "completions")

NOTHING = math.nan  # a label that nobody gave


@dataclass(frozen=True)
class JudgedRecord(ResponseRecord):
    """A prompt with one or two responses, and labels of each step by each head."""

    target: tuple[tuple[float, ...], ...] = ()  # [S][H]; 1, 0, -1 of a pair, else scores; nan where nobody said
    margin: tuple[float, ...] = ()  # [H]
    ends: tuple[int, ...] = ()  # characters of the response at which its steps end; none: it is judged as a whole
    asked: tuple[Prompt, ...] = ()  # of records of pictures: the question about each, which has no response

    @property
    def rows(self) -> list[tuple[Prompt, str]]:
        prompts = self.asked or (self.prompt,) * len(self.responses)
        return list(zip(prompts, self.responses, strict=True))

    @property
    def content(self) -> list[Any]:
        asked = [[prompt.uid for prompt in self.asked]] if self.asked else []
        return [*super().content, repr(self.target), self.margin, self.ends, *asked]


@dataclass(frozen=True)
class Labels:
    """Which labels a reward model learns from."""

    holds: Holds
    heads: tuple[str, ...]
    ties: bool = False  # whether pairs without a winner can be learned
    shares: bool = False  # whether scores have to be from 0 to 1
    separator: str = ""  # between steps
    question: str = ""  # about pictures, which are judged in place of responses


def read_judgements(files: str | Sequence[str], options: LanguageDataOptions, labels: Labels) -> list[JudgedRecord]:
    """Read records with labels.

    ``comparisons``: pairs under chosen and rejected as for DPO, with ``tie: true``, ``preference`` (chosen, rejected
    or tie, or one of them by head) and ``margin`` (a number, or one by head) where they have them. ``scores``: a
    response with its score, or its scores by head. With a question both have pictures in place of responses, as
    ``drawn`` reads them. ``steps``: a list of steps with as many labels.

    Raises:
        UserError: as ``read_questions``.
    """
    read = {"comparisons": _comparison, "scores": _score, "steps": _steps}[labels.holds]
    return read_files(files, lambda record: list(read(record, options, labels)), media_folder=options.media_folder)


def _comparison(record: Record, options: LanguageDataOptions, labels: Labels) -> Iterator[JudgedRecord]:
    asked: tuple[Prompt, ...] = ()
    if labels.question:
        prompt, asked = drawn(record, options, labels.question, "pairs")
        responses = ("", "")
    else:
        prompt, responses = preferred_pair(record, options)
    tie, preference = record.values.get("tie"), record.values.get("preference")
    if tie is not None and not isinstance(tie, bool):
        raise ValueError(f"'tie' is {shown(tie)}; it must be true or false")
    if tie and preference is not None:
        raise ValueError("has 'tie' and 'preference'; keep one")
    outcome = dict.fromkeys(labels.heads, 0.0 if tie else 1.0)
    if preference is not None:
        outcome = _by_head(preference, "preference", labels.heads, _outcome)
    if 0.0 in outcome.values() and not labels.ties:
        raise ValueError("is a tie, which algorithm.ties=null can't learn; set it to rao_kupper or davidson")
    margin = _by_head(record.values.get("margin"), "margin", labels.heads, _margin)
    yield JudgedRecord(
        prompt,
        responses,
        target=(tuple(outcome[head] for head in labels.heads),),
        margin=tuple(0.0 if math.isnan(margin[head]) else margin[head] for head in labels.heads),
        asked=asked,
    )


def _score(record: Record, options: LanguageDataOptions, labels: Labels) -> Iterator[JudgedRecord]:
    key, value = find(record.values, SCORES)
    if not key:
        raise ValueError(f"has no score; give one under {' or '.join(SCORES)}")
    scores = _by_head(value, key, labels.heads, _share if labels.shares else _number)
    target, margin = (tuple(scores[head] for head in labels.heads),), (0.0,) * len(labels.heads)
    if labels.question:
        prompt, asked = drawn(record, options, labels.question, "pictures")
        yield JudgedRecord(prompt, ("",), target=target, margin=margin, asked=asked)
        return
    response = one_response(record, options)
    if response is None:
        raise ValueError("has no response; give one under response, completion or output")
    yield JudgedRecord(question(record, options), (response,), target=target, margin=margin)


def _steps(record: Record, options: LanguageDataOptions, labels: Labels) -> Iterator[JudgedRecord]:
    key, steps = find(record.values, STEPS)
    given = record.values.get("labels")
    if not isinstance(steps, list) or not steps:
        raise ValueError(f"has no list of steps; give one under {' or '.join(STEPS)}")
    if not isinstance(given, list) or len(given) != len(steps):
        raise ValueError(f"'labels' is {shown(given)}; it must be a list with one label for each of {len(steps)} steps")
    texts = [response_text(step, key) for step in steps]
    for text in texts:
        if not text.strip() or labels.separator in text.strip(labels.separator):
            raise ValueError(
                f"{key!r} has the step {shown(text)}; it must have text, and algorithm.separator "
                f"{labels.separator!r} may stand at its end alone"
            )
    text, ends = "", []
    for number, step in enumerate(texts):
        text += step if step.endswith(labels.separator) or number + 1 == len(texts) else step + labels.separator
        ends.append(len(text))
    read = _share if labels.shares else _number
    by_step = [_by_head(one, "labels", labels.heads, read) for one in given]
    yield JudgedRecord(
        question(record, options), (text,),
        target=tuple(tuple(one[head] for head in labels.heads) for one in by_step),
        margin=(0.0,) * len(labels.heads), ends=tuple(ends),
    )  # fmt: skip


def _by_head(value: Any, key: str, heads: Sequence[str], read: Any) -> dict[str, float]:
    """A label for each head; nan where there is none. One that is given alone is of every head."""
    if value is None:
        return dict.fromkeys(heads, NOTHING)
    if not isinstance(value, Mapping):
        if len(heads) > 1:
            raise ValueError(f"{key!r} is {shown(value)}; with heads {', '.join(heads)} it must have one for each")
        return dict.fromkeys(heads, read(value, key))
    if unknown := [name for name in value if name not in heads]:
        raise ValueError(f"{key!r} has {unknown[0]!r}; algorithm.heads has {', '.join(heads)}")
    found = {head: NOTHING if value.get(head) is None else read(value[head], key) for head in heads}
    if all(math.isnan(one) for one in found.values()):
        raise ValueError(f"{key!r} has nothing for any of the heads {', '.join(heads)}")
    return found


def _outcome(value: Any, key: str) -> float:
    if not isinstance(value, str) or value not in OUTCOMES:
        raise ValueError(f"{key!r} is {shown(value)}; it must be one of {', '.join(OUTCOMES)}")
    return OUTCOMES[value]


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) and key == "labels":
        return float(value)
    return number_of(value, key)


def _share(value: Any, key: str) -> float:
    number = _number(value, key)
    if not 0 <= number <= 1:
        raise ValueError(f"{key!r} is {shown(value)}; with algorithm.kind=bce it must be from 0 to 1")
    return number


def _margin(value: Any, key: str) -> float:
    number = _number(value, key)
    if number < 0:
        raise ValueError(f"{key!r} is {shown(value)}; it must not be negative")
    return number
