"""What responses often had before training and hardly have now: tags, openings, turns of phrase."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from burnish.report.samples import ENOUGH, Sample, Samples, Score, chance

FREQUENT = 0.2  # share of the responses before
RARE = 1 / 3  # of that share, that is left
MOST = 3  # that are told
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
        return f"{self.what}: in {was} of the responses before, in {now} now"


def lost_habits(before: Samples, after: Samples) -> list[Habit]:
    """What was frequent and is rare now, by more than chance; the largest loss first, each thing once."""
    common = sorted(before.keys() & after.keys())
    pairs = [(before[place], after[place]) for place in common]
    if len({index for index, _ in common}) < ENOUGH or any(one.response is None for pair in pairs for one in pair):
        return []
    sides = [[_features(sample) for sample in side] for side in zip(*pairs, strict=True)]
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for side, found in enumerate(sides):
        for features in found:
            for feature in features:
                counts[feature][side] += 1
    lost = []
    for what, (was, now) in counts.items():
        if was < FREQUENT * len(common) or now > RARE * was:
            continue
        scores = [
            {place: Score("", None, {"": float(what in has)}) for place, has in zip(common, found, strict=True)}
            for found in sides
        ]
        if (was - now) / len(common) > chance(*scores, ""):
            lost.append(Habit(what, was / len(common), now / len(common)))
    lost.sort(key=lambda habit: (habit.after - habit.before, habit.what))
    kept: list[Habit] = []
    for habit in lost:
        alike = [one for one in kept if _same(one, habit)]
        if not alike:
            kept.append(habit)
    return kept[:MOST]


def _same(one: Habit, other: Habit) -> bool:
    """Phrases that share words are one; an opening is one with the tag or phrase that it begins with."""
    words = [set(re.findall(r"\w+", habit.what.partition(" ")[2])) for habit in (one, other)]
    return bool(words[0] & words[1])


def _features(sample: Sample) -> set[str]:
    text = sample.response or ""
    found = {f"the tag <{name}>" for name in TAG.findall(text)}
    found |= {f"mark {what}" for what, sign in MARKS.items() if sign in f"\n{text}"}
    words = re.findall(r"[^\W\d_]+(?:\'[^\W\d_]+)?", TAG.sub(" ", text).lower())
    if words:
        found.add(f"opening “{' '.join(words[:2])}”")
    found |= {f"phrase “{' '.join(words[i : i + PHRASE])}”" for i in range(len(words) - PHRASE + 1)}
    return found
