"""What judges write, as a number: the formats that published judges were trained to write, by name.

What can't be read has no value: the reward is then missing and counted, never 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from burnish.utils.json_text import parse_json

SHOWN = 60  # last characters of a text that can't be read, in the note
LARGEST = 1 << 14  # last characters in which JSON is looked for
ASPECTS = ("faithfulness", "quality", "text")
EDIT_ASPECTS = ("aspect_1", "aspect_2", "aspect_3", "aspect_4")  # by their numbers
NUMBER = r"[-+]?\d+(?:\.\d+)?"
# possessive: a judge that writes a million spaces is read once, not once for each of them
_SCORED = re.compile(rf"Final Score:\s*+\**+\s*+({NUMBER})")
_ASPECT = re.compile(rf"(Alignment|Coherence|Style)\s+Score\s*+(?:\(1-5\))?\s*+:\s*({NUMBER})")
_BETTER = re.compile(r"Image\s*([12])\s+is\s+better", re.IGNORECASE)
_WINNER = re.compile(r"\s*Image\s*([12])\s*", re.IGNORECASE)
_TAGGED = re.compile(rf"<Score>\s*({NUMBER})\s*</Score>", re.IGNORECASE)
_SECTION = re.compile(r"^[^\w\n]*+(\d)\.\s*+\**+([A-Z][\w &/-]*)", re.MULTILINE)
_SUB_SCORE = re.compile(rf"##\s*Score:\s*+\**+\s*+({NUMBER}|N/?A)", re.IGNORECASE)


@dataclass(frozen=True)
class Read:
    """A verdict that was read; its value is None where none was found."""

    value: float | None
    note: str
    named: Mapping[str, float] = field(default_factory=dict)  # its parts, as they were written


def unified_reward(text: str) -> Read:
    """``Final Score: x`` from 1 to 5, divided by 5 as in flow_grpo."""
    return _one(_SCORED, text, 1, 5, lambda score: score / 5)


def unified_reward_2(text: str) -> Read:
    """``Alignment Score (1-5): x`` and the same of Coherence and Style: their mean, from 1..5 to 0..1."""
    found = {name: float(score) for name, score in _ASPECT.findall(_spoken(text))}
    if len(found) < 3 or not all(1 <= score <= 5 for score in found.values()):
        return _unread(text)
    note = ", ".join(f"{name} {score:.2f}" for name, score in found.items())
    return Read((mean(found.values()) - 1) / 4, note, {name.lower(): score for name, score in found.items()})


def unified_reward_think(text: str) -> Read:
    """``<answer>Image 1 is better</answer>``: 1 if the first of two pictures wins, 0 if the second does."""
    closed = (piece.partition("<answer>") for piece in reversed(text.split("</answer>")[:-1]))
    answer = next((said for _, opened, said in closed if opened), "")
    found = _BETTER.search(answer)
    return _unread(text) if found is None else Read(float(found[1] == "1"), f"picture {found[1]} of 2 is better")


def unified_reward_flex(text: str) -> Read:
    """The last JSON object with a ``winner``, "Image 1" or "Image 2": 1 if the first picture wins, 0 otherwise."""
    for value in reversed(list(_objects(_spoken(text)))):
        said = value.get("winner")
        if isinstance(said, str) and (found := _WINNER.fullmatch(said)):
            return Read(float(found[1] == "1"), f"picture {found[1]} of 2 is better")
    return _unread(text)


def unified_reward_edit(text: str) -> Read:
    """The last JSON object with ``score``, a list of numbers from 0 to 25: their mean, divided by 25."""
    for value in reversed(list(_objects(_spoken(text)))):
        scores = value.get("score")
        if isinstance(scores, list) and scores and all(_within(score, 0, 25) for score in scores):
            return Read(mean(scores) / 25, ", ".join(f"{score:g}" for score in scores))
    return _unread(text)


def rational_rewards(text: str) -> Read:
    """``## Score`` of three sections (faithfulness, quality, text), 1..4 or N/A: the mean of the others as 0..1."""
    return _sections(text, ASPECTS)


def rational_rewards_edit(text: str) -> Read:
    """The same with the four sections of an edit."""
    return _sections(text, EDIT_ASPECTS)


def qwen_aesthetic(text: str) -> Read:
    """``<Score>n</Score>`` from 0 to 5, divided by 5 as in flow_grpo."""
    return _one(_TAGGED, text, 0, 5, lambda score: score / 5)


def by_pattern(pattern: str, answers: dict[str, float]) -> Callable[[str], Read]:
    """The first group of the last match: a number, or one of the answers with its worth."""

    def read(text: str) -> Read:
        found = [match[1] for match in re.finditer(pattern, text) if match[1] is not None]
        if not found:
            return _unread(text)
        said = found[-1].strip()
        if said in answers:
            return Read(answers[said], said)
        try:
            value = float(said)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            return Read(None, f"the judge's verdict is {said!r}, neither a number nor one of its answers")
        return Read(value, said)

    return read


def _one(pattern: re.Pattern[str], text: str, low: float, high: float, scaled: Callable[[float], float]) -> Read:
    """The last match of a pattern, where it is a number within limits."""
    found = pattern.findall(_spoken(text))
    if not found or not low <= float(found[-1]) <= high:
        return _unread(text)
    return Read(scaled(float(found[-1])), found[-1])


def _sections(text: str, aspects: Sequence[str]) -> Read:
    """Scores of numbered sections between the headings ``# Detailed Judgement`` and ``# Summary``."""
    count = len(aspects)
    body = _spoken(text).partition("# Detailed Judgement")[2] or _spoken(text)
    body = re.split(r"^#\s*Summary", body, maxsplit=1, flags=re.MULTILINE)[0]
    starts: list[re.Match[str]] = []
    for match in _SECTION.finditer(body):
        if len(starts) < count and int(match[1]) == len(starts) + 1:  # lists within a section are no sections
            starts.append(match)
    ends = [*(match.start() for match in starts), len(body)][1:]
    scores: dict[int, float | None] = {}
    for start, end in zip(starts, ends, strict=True):
        found = _SUB_SCORE.search(body, start.end(), end)
        if found is not None:
            scores[int(start[1])] = None if found[1].upper().startswith("N") else min(4.0, max(1.0, float(found[1])))
    given = [score for score in scores.values() if score is not None]
    if len(scores) < count or not given:
        return _unread(text)
    said = {aspects[number - 1]: score for number, score in scores.items()}
    note = ", ".join(f"{name} {'N/A' if score is None else f'{score:g}'}" for name, score in said.items())
    return Read((mean(given) - 1) / 3, note, {name: score for name, score in said.items() if score is not None})


def _spoken(text: str) -> str:
    """A text without the thoughts before it, which may name scores that are not the verdict."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text, in order; fences and words around them are left out, and so are objects within."""
    decoder, place = json.JSONDecoder(), 0
    text = text[-LARGEST:]
    while (start := text.find("{", place)) >= 0:
        try:
            _, place = decoder.raw_decode(text, start)
            value = parse_json(text[start:place])
        except (ValueError, RecursionError):
            place = start + 1
            continue
        yield value


def _within(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _unread(text: str) -> Read:
    end = " ".join(text.split())[-SHOWN:]
    return Read(None, f"the judge's verdict can't be read: ...{end!r}")
