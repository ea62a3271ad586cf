"""What judges write, as a number: the formats that published judges were trained to write, by name.

What can't be read has no value: the reward is then missing and counted, never 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import mean
from typing import Any

from burnish.rewards.base import Score

Parser = Callable[[str], Score | None]  # None: there is no score in the text
SHOWN = 60  # last characters of a text that can't be read, in the note
LARGEST = 1 << 14  # last characters in which JSON is looked for
NUMBER = r"[-+]?\d+(?:\.\d+)?"
# possessive: a judge that writes a million spaces is read once, not once for each of them
_ASPECT = re.compile(rf"(Alignment|Coherence|Style)\s+Score\s*+(?:\(1-5\))?\s*+:\s*({NUMBER})")
_BETTER = re.compile(r"Image\s*([12])\s+is\s+better", re.IGNORECASE)
_WINNER = re.compile(r"\s*Image\s*([12])\s*", re.IGNORECASE)
_SECTION = re.compile(r"^[^\w\n]*+(\d)\.\s*+\**+([A-Z][\w &/-]*)", re.MULTILINE)
_SUB_SCORE = re.compile(rf"##\s*Score:\s*+\**+\s*+({NUMBER}|N/?A)", re.IGNORECASE)


def one_number(pattern: str, low: float, high: float) -> Parser:
    """The last match of a pattern, a number within limits, divided by the upper one as in flow_grpo."""
    compiled = re.compile(pattern)

    def parse(text: str) -> Score | None:
        numbers = compiled.findall(_without_thoughts(text))
        right = numbers and low <= float(numbers[-1]) <= high
        return Score(float(numbers[-1]) / high, numbers[-1]) if right else None

    return parse


def unified_reward_2(text: str) -> Score | None:
    """``Alignment Score (1-5): x`` and the same of Coherence and Style: their mean, from 1..5 to 0..1."""
    scores = {name.lower(): float(score) for name, score in _ASPECT.findall(_without_thoughts(text))}
    if len(scores) < 3 or not all(1 <= score <= 5 for score in scores.values()):
        return None
    note = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
    return Score((mean(scores.values()) - 1) / 4, note, scores)


def unified_reward_think(text: str) -> Score | None:
    """``<answer>Image 1 is better</answer>``: 1 if the first of two pictures wins, 0 if the second does."""
    closed = (piece.partition("<answer>") for piece in reversed(text.split("</answer>")[:-1]))
    answer = next((inside for _, opened, inside in closed if opened), "")
    return _winner(_BETTER.search(answer))


def unified_reward_flex(text: str) -> Score | None:
    """The last JSON object with a ``winner``, "Image 1" or "Image 2": 1 if the first picture wins, 0 otherwise."""
    names = [str(value.get("winner")) for value in _objects(text)]
    winners = [score for name in names if (score := _winner(_WINNER.fullmatch(name)))]
    return winners[-1] if winners else None


def _winner(match: re.Match[str] | None) -> Score | None:
    return match and Score(float(match[1] == "1"), f"picture {match[1]} of 2 is better")


def unified_reward_edit(text: str) -> Score | None:
    """The last JSON object with ``score``, a list of numbers from 0 to 25: their mean, divided by 25."""
    for value in reversed(list(_objects(text))):
        scores = value.get("score")
        if isinstance(scores, list) and scores and all(_is_within(score, 0, 25) for score in scores):
            return Score(mean(scores) / 25, ", ".join(f"{score:g}" for score in scores))
    return None


def sections(*aspects: str) -> Parser:
    """``## Score`` of numbered sections, 1..4 or N/A, between the headings ``# Detailed Judgement`` and ``# Summary``:
    the mean of those that have one as 0..1."""

    def parse(text: str) -> Score | None:
        body = _without_thoughts(text)
        body = body.partition("# Detailed Judgement")[2] or body
        body = re.split(r"^#\s*Summary", body, maxsplit=1, flags=re.MULTILINE)[0]
        starts: list[re.Match[str]] = []
        for match in _SECTION.finditer(body):
            if len(starts) < len(aspects) and int(match[1]) == len(starts) + 1:  # lists within a section are none
                starts.append(match)
        ends = [*(match.start() for match in starts), len(body)][1:]
        scores = [_SUB_SCORE.search(body, start.end(), end) for start, end in zip(starts, ends, strict=True)]
        written = {name: score[1] for name, score in zip(aspects, scores, strict=False) if score is not None}
        named = {
            name: min(4.0, max(1.0, float(score)))
            for name, score in written.items()
            if not score.upper().startswith("N")
        }
        if len(written) < len(aspects) or not named:
            return None
        note = ", ".join(f"{name} {f'{named[name]:g}' if name in named else 'N/A'}" for name in written)
        return Score((mean(named.values()) - 1) / 3, note, named)

    return parse


def by_pattern(pattern: str, answers: Mapping[str, float]) -> Parser:
    """The first group of the last match: a number, or one of the answers with its worth."""

    def parse(text: str) -> Score | None:
        matches = [match[1].strip() for match in re.finditer(pattern, text) if match[1] is not None]
        if not matches:
            return None
        last = matches[-1]
        with suppress(ValueError):
            value = float(answers.get(last, last))
            if math.isfinite(value):
                return Score(value, last)
        return Score(None, f"the judge's verdict is {last!r}, neither a number nor one of its answers")

    return parse


def _without_thoughts(text: str) -> str:
    """A text without the thoughts before it, which may name scores that are not the score."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text, in order; fences and words around them are left out, and so are objects within."""
    decoder, place, text = json.JSONDecoder(), 0, _without_thoughts(text)[-LARGEST:]
    while (start := text.find("{", place)) >= 0:
        try:
            value, place = decoder.raw_decode(text, start)
            yield value
        except (ValueError, RecursionError):
            place = start + 1


def _is_within(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def parsed(parse: Parser, text: str) -> Score:
    """The score in a text, which is missing where there is none."""
    end = " ".join(text.split())[-SHOWN:]
    return parse(text) or Score(None, f"the judge's verdict can't be read: ...{end!r}")


PARSERS: Mapping[str, Parser] = {
    "unified_reward": one_number(rf"Final Score:\s*+\**+\s*+({NUMBER})", 1, 5),
    "unified_reward_2": unified_reward_2,
    "unified_reward_think": unified_reward_think,
    "unified_reward_flex": unified_reward_flex,
    "unified_reward_edit": unified_reward_edit,
    "rational_rewards": sections("faithfulness", "quality", "text"),
    "rational_rewards_edit": sections("aspect_1", "aspect_2", "aspect_3", "aspect_4"),  # by their numbers
    "qwen_aesthetic": one_number(rf"(?i)<Score>\s*({NUMBER})\s*</Score>", 0, 5),
}
PAIRS: Sequence[str] = ("unified_reward_think", "unified_reward_flex")  # that compare two samples
