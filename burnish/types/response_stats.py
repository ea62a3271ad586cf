"""Statistics of responses that are watched. Imports no torch, because reports read responses too."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

LONGEST = 20_000  # characters whose form and words are looked at
MOST_TAGS = 8
TAG = re.compile(r"</?([A-Za-z][\w-]{0,30})>")
REFLECTION = re.compile(
    r"\b(?:let\s+me\s+(?:think|reconsider)|actually|wait|correction|mistake|wrong|rethink)\b", re.IGNORECASE
)
MARKS = {"code block": "```", "bold type": "**", "box": r"\boxed", "heading": "\n#", "list": "\n- "}


@dataclass(frozen=True)
class ResponseStats:
    """Statistics of a response that nobody optimises."""

    length: int  # tokens that the policy chose
    truncated: bool  # it did not end by itself
    repeated: float  # share of its runs of four tokens that occurred in it before
    surprisal: float  # mean of -log-prob of its first tokens in nats, expected to be the entropy; NaN without any
    outline: str  # its form: the tags and marks that it has, in order
    reflections: float  # words and phrases by which it reconsiders, in English: wait, actually, let me think


WATCHED = ("length", "truncated", "repeated", "surprisal")  # fields of which the mean is watched
REPORTED = (*WATCHED, "reflections")  # and those that may change without an alarm
UNKNOWN = ResponseStats(0, False, math.nan, math.nan, "", math.nan)


@dataclass(frozen=True)
class Quote:
    """A response that is shown."""

    prompt: str
    response: str
    reward: float | None  # None: missing


def reflections(text: str) -> int:
    """How often a response reconsiders, by the phrases that LightRFT counts."""
    return len(REFLECTION.findall(text[:LONGEST]))


def outline(text: str) -> str:
    """The form of a response: its tags and marks in order of their first use, or what it is without any."""
    text = text[:LONGEST]
    tags = dict.fromkeys(f"<{name.lower()}>" for name in TAG.findall(text))
    marks = [what for what, sign in MARKS.items() if sign in f"\n{text}"]
    if tags or marks:
        return " ".join([*list(tags)[:MOST_TAGS], *marks])
    if re.search(r"[^\W\d_]", text):
        return "words"
    return "no words" if re.search(r"\w", text) else "nothing"
