"""What responses often had before training and hardly have now: tags, openings, turns of phrase."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from burnish.report.samples import ENOUGH, Sample, Samples, Score, chance

FREQUENT = 0.2  # share of the responses before
RARE = 1 / 3  # of that share, that is left
MOST = 3  # that are told
ALIKE = 0.7  # share of responses that two things have in common, above which they are one
KINDS = ["tag", "mark", "opening", "phrase"]  # those that say the most come first
PHRASE = 4  # words of a turn of phrase
TAG = re.compile(r"</?([A-Za-z][\w-]{0,30})>")
MARKS = {"code block": "```", "bold type": "**", "box": r"\boxed", "heading": "\n#", "list": "\n- "}


@dataclass(frozen=True)
class Habit:
    """Something that responses do."""

    what: str
    before: float  # share of the responses
    after: float

    def text(self) -> str:
        """As a sentence begins with it."""
        was, now = (f"{100 * share:.0f}\N{NO-BREAK SPACE}%" for share in (self.before, self.after))
        return f"{self.what}, in {was} of the responses before and in {now} now"


def lost_habits(before: Samples, after: Samples) -> list[Habit]:
    """What was frequent and is rare now, by more than chance; the largest loss first, each thing once."""
    common = sorted(before.keys() & after.keys())
    pairs = [(before[place], after[place]) for place in common]
    if len({index for index, _ in common}) < ENOUGH or any(one.response is None for pair in pairs for one in pair):
        return []
    was, now = (_where(list(side)) for side in zip(*pairs, strict=True))
    lost: dict[str, Habit] = {}
    # a tag is said to be a tag, not the words between it and the next one
    for what in sorted(was, key=lambda one: (KINDS.index(one.partition(" ")[0]), -len(was[one]), one)):
        had, has = was[what], now.get(what, set())
        if len(had) < FREQUENT * len(common) or len(has) > RARE * len(had):
            continue
        if any(len(had & was[other]) > ALIKE * len(had | was[other]) for other in lost):
            continue
        was_marked, now_marked = (
            {place: Score("", None, {"": float(row in rows)}) for row, place in enumerate(common)}
            for rows in (had, has)
        )
        if (len(had) - len(has)) / len(common) > chance(was_marked, now_marked, ""):
            lost[what] = Habit(what, len(had) / len(common), len(has) / len(common))
    return sorted(lost.values(), key=lambda habit: habit.after - habit.before)[:MOST]


def _where(samples: list[Sample]) -> dict[str, set[int]]:
    """In which of some responses, by their places, things are found."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for place, sample in enumerate(samples):
        for feature in _features(sample):
            found[feature].add(place)
    return found


def _features(sample: Sample) -> set[str]:
    text = sample.response or ""
    found = {f"tag <{name}>" for name in TAG.findall(text)}
    found |= {f"mark {what}" for what, sign in MARKS.items() if sign in f"\n{text}"}
    words = re.findall(r"[^\W\d_]+(?:\'[^\W\d_]+)?", TAG.sub(" ", text).lower())
    if words:
        found.add(f"opening “{' '.join(words[:2])}”")
    found |= {f"phrase “{' '.join(words[i : i + PHRASE])}”" for i in range(len(words) - PHRASE + 1)}
    return found
