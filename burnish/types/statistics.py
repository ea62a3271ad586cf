"""Statistics of samples: what responses are like, and how rewards were computed.

Imports no torch, because reports read them too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
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


# of a sample and a reward, as the sum of those that hold
FAILED = 1  # it raised, its process died, or it was late
RETRIED = 2  # it failed and was asked again
TIMED_OUT = 4
REPEATED = 8  # the sample was scored once, together with an equal one
OUTCOMES = {"failed": FAILED, "retried": RETRIED, "timed_out": TIMED_OUT, "repeated": REPEATED}
DROPS = 16  # it has no value, and its group is to be left out

Ran = tuple[float, int]  # seconds from request to score, and which of the above hold

PERCENTILES = {"p50": 0.5, "p95": 0.95, "max": 1.0}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Of a reward and some samples."""

    failed: int = 0
    retried: int = 0
    timed_out: int = 0
    repeated: int = 0
    dropped: int = 0
    seconds: tuple[float, ...] = ()  # one per sample that it was asked about

    def __add__(self, other: Execution) -> Execution:
        return Execution(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def metrics(self, label: str) -> dict[str, float]:
        """By name."""
        counts = {f"reward/{label}/{name}": float(getattr(self, name)) for name in (*OUTCOMES, "dropped")}
        ordered, last = sorted(self.seconds), len(self.seconds) - 1
        late = {name: ordered[round(share * last)] for name, share in PERCENTILES.items() if ordered}
        return counts | {f"reward/{label}/latency_s/{name}": value for name, value in late.items()}


def execution_of(rows: Sequence[Mapping[str, Ran]], dropped: Sequence[bool]) -> dict[str, Execution]:
    """Of the samples of a batch, by reward; ``dropped`` are those that were left out with their group."""
    samples: dict[str, list[tuple[float, int, bool]]] = {}
    for row, left_out in zip(rows, dropped, strict=True):
        for label, (seconds, outcome) in row.items():
            samples.setdefault(label, []).append((seconds, outcome, left_out))
    return {
        label: Execution(
            dropped=sum(left_out for _, _, left_out in own),
            seconds=tuple(seconds for seconds, _, _ in own),
            **{name: sum(bool(outcome & flag) for _, outcome, _ in own) for name, flag in OUTCOMES.items()},
        )
        for label, own in samples.items()
    }


def joined(parts: Iterable[Mapping[str, Execution]]) -> dict[str, Execution]:
    """Of several batches."""
    whole: dict[str, Execution] = {}
    for part in parts:
        for label, execution in part.items():
            whole[label] = whole.get(label, Execution()) + execution
    return whole
