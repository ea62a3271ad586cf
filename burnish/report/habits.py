"""Features of responses (tags, openings, phrases) that were frequent before training and are rare now."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from burnish.report.samples import ENOUGH, Sample, Samples, Score, chance
from burnish.types.response_stats import MARKS, TAG

FREQUENT = 0.2  # fraction of responses before
RARE = 1 / 3  # of that fraction, now
MOST = 3  # habits that are listed
ALIKE = 0.7  # overlap of responses above which two features count as one
KINDS = ["tag", "mark", "opening", "phrase"]  # most telling first
PHRASE = 4  # words of a phrase


@dataclass(frozen=True)
class Habit:
    """A feature of responses, with its frequencies."""

    what: str
    before: float  # fraction of responses
    after: float

    def text(self) -> str:
        """Description with both frequencies."""
        was, now = (f"{100 * share:.0f}\N{NO-BREAK SPACE}%" for share in (self.before, self.after))
        return f"{self.what}, {was} → {now} of responses"


def lost_habits(before: Samples, after: Samples) -> list[Habit]:
    """Features that were frequent and are rare now, beyond chance, largest loss first and without duplicates."""
    common = sorted(before.keys() & after.keys())
    pairs = [(before[place], after[place]) for place in common]
    if len({index for index, _ in common}) < ENOUGH or any(one.response is None for pair in pairs for one in pair):
        return []
    was, now = (_where(list(side)) for side in zip(*pairs, strict=True))
    lost: dict[str, Habit] = {}
    # tags come first, so that phrases next to a tag do not hide it
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
    """Indices of the responses that have a feature, by feature."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for i, sample in enumerate(samples):
        for feature in _features(sample):
            found[feature].add(i)
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
