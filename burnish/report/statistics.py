"""Measures of validations, and what of their changes may be chance: samples of a prompt are no independent evidence."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean as mean
from typing import Any

from burnish.alarms.record import number
from burnish.report.samples import Interval, Sample, Samples, Score, Scores
from burnish.types.samples import MARKS, TAG

SPACE = "\N{NO-BREAK SPACE}"
VOTE = re.compile(r"val-(?:core|aux)/.+/([^/]+)/maj@(\d+)/mean")

Row = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """A validation metric in the report."""

    title: str
    key: str  # of metrics, with * for the data source
    better: int  # 1: higher is better, -1: lower is better, 0: neutral
    percent: bool = False
    enough: float = 0.005  # smallest change that counts
    relative: bool = False  # whether ``enough`` is relative to the value before
    digits: int = 3  # decimals
    watched: bool = False  # one of ``STATISTICS`` without a weight; reports fold it
    about: str = ""  # what a statistic counts, and in which unit

    def of(self, row: Row | None) -> float | None:
        """The value in a line of metrics, averaged over data sources; None if missing."""
        return value_of(row, self.key)

    @property
    def column(self) -> str:
        """Its name in ``Score``."""
        named = {VARIETY.key: "variety", LENGTH.key: "tokens"}
        return named.get(self.key) or self.key.split("/")[-2]

    def number(self, value: float) -> str:
        """The value as text, without its unit."""
        digits = self.digits - 2 if self.percent else self.digits if abs(value) < 100 else 1
        return f"{100 * value if self.percent else value:.{digits}f}".replace("-", "−")

    def show(self, value: float | None) -> str:
        """The value as text."""
        if value is None:
            return "–"
        return f"{self.number(value)}{SPACE}%" if self.percent else self.number(value)


@dataclass(frozen=True)
class Change:
    """A measure before and after training."""

    measure: Measure
    before: float
    after: float
    chance: float  # smaller changes may be chance; infinity if unknown

    @property
    def small(self) -> bool:
        """Whether it is too little to matter, be it chance or not."""
        enough = self.measure.enough * (abs(self.before) if self.measure.relative else 1)
        return abs(self.after - self.before) < enough

    @property
    def sign(self) -> int:
        """1 for a significant rise, -1 for a significant fall, else 0."""
        if self.small or abs(self.after - self.before) < self.chance:
            return 0
        return 1 if self.after > self.before else -1

    def shown(self) -> tuple[str, str]:
        """How much, with a sign; and half of the confidence interval, "" where it is unknown."""
        measure, unit = self.measure, 10.0**-self.measure.digits
        # the difference of what is shown, not of what was rounded for it
        number = measure.number(abs(round(self.after / unit) - round(self.before / unit)) * unit)
        sign = "" if not float(number) else "+" if self.after > self.before else "−"
        return f"{sign}{number}", measure.number(self.chance) if 0 < self.chance < math.inf else ""


REWARD = Measure("Validation reward", "val-core/*/reward/mean@*", 1)
EXACT = Measure("Read exactly right", "val-aux/*/ocr_exact/mean@*", 1, percent=True)
STRICT = Measure("Answered right", "val-aux/*/exact/mean@*", 1, percent=True)
FORMAT = Measure("In the form asked for", "val-aux/*/format/mean@*", 1, percent=True)
AGREES = Measure("Judged as people did", "val-aux/*/accuracy/mean@*", 1, percent=True)
GIVEN = Measure("Right among those in form", "val-aux/*/exact_given_format/mean@*", 0, percent=True)
LENGTH = Measure("Tokens of a response", "val-aux/response_length/mean", 0, enough=0.15, relative=True, digits=1)
BORDER = Measure("Border darkness", "val-aux/*/border_darkness/mean@*", -1, enough=0.01)
MEASURES = {
    "accuracy": AGREES, "ocr_exact": EXACT, "border_darkness": BORDER, "exact": STRICT, "format": FORMAT,
    "exact_given_format": GIVEN,
}  # fmt: skip
STATISTICS = {
    "brightness": "mean luminance; white is 1",
    "dark_share": "share of nearly black pixels",
    "high_frequency": "share of the contrast that half the size loses",
    "file_size": "bits per pixel as JPEG",
    "edge_density": "share of neighbouring pixels that differ clearly",
    "colour_entropy": "how many colours; 0 is one, 1 all",
    "saturation": "0 is grey, 1 pure colours",
    "latent_norm": "root mean square of the latents",
    "distinctness": "distance from the mean of the prompt's samples",
}  # rewards that are watched with weight 0, and what they count
VARIETY = Measure("Variety within a prompt", "val-aux/variety", 1, enough=0.15, relative=True)


def votes(rows: Iterable[Row]) -> list[Measure]:
    """What the majority of a prompt's samples is worth to each reward that reads answers, of as many as there are."""
    most: dict[str, int] = {}
    for row in rows:
        for match in filter(None, map(VOTE.fullmatch, row)):
            most[match[1]] = max(most.get(match[1], 0), int(match[2]))
    measures = []
    for name, n in sorted(most.items()):
        if name != "reward":
            known = MEASURES.get(name) or Measure(name.replace("_", " ").capitalize(), "", 0)
            title, key = f"{known.title} by majority of {n}", f"val-aux/*/{name}/maj@{n}/mean"
            measures.append(replace(known, title=title, key=key, better=0, about="logged only"))
    return measures


def value_of(row: Row | None, key: str) -> float | None:
    """The value of a metric, averaged over the data sources that ``*`` stands for."""
    if row is None:
        return None
    if "*" not in key:
        return number(row, key)
    head, _, tail = key.partition("*")
    end = tail.removesuffix("*")
    names = [name for name in row if name.startswith(head) and end in name]
    values = [row[name] for name in names if row[name] is not None and math.isfinite(row[name])]
    return sum(values) / len(values) if values else None


ENOUGH = 4  # fewest prompts for a standard deviation
ENDS = 1.96  # standard errors of an interval that holds 95 %
FREQUENT = 0.2  # fraction of responses with a pattern, before
RARE = 1 / 3  # of that fraction, now
MOST = 3  # lost patterns that are listed
ALIKE = 0.7  # overlap of responses above which two patterns count as one
PATTERNS = ["tag", "mark", "opening", "phrase"]  # most telling first
PHRASE = 4  # words of a phrase


def _variance(values: Sequence[float]) -> float:
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def by_prompt(scores: Scores, name: str) -> dict[str, dict[int, list[float]]]:
    """Values of a column, by data source and prompt."""
    prompts: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (index, _), score in scores.items():
        if (value := score.of(name)) is not None:
            prompts[score.source][index].append(value)
    return {source: dict(by_index) for source, by_index in prompts.items()}


def by_source(scores: Scores, name: str) -> dict[str, tuple[float, Interval]]:
    """The mean of a column with its interval, by data source."""
    means = {}
    for source, prompts in by_prompt(scores, name).items():
        each = [mean(values) for values in prompts.values()]
        # a mean under a condition is one of samples, since prompts keep to it unequally often
        centre = mean([value for values in prompts.values() for value in values] if "_given_" in name else each)
        half = ENDS * math.sqrt(_variance(each) / len(each)) if len(each) >= ENOUGH else None
        means[source] = (centre, None if half is None else (centre - half, centre + half))
    return means


def over_sources(sources: Mapping[str, tuple[float, Interval]]) -> tuple[float, Interval] | None:
    """The mean over data sources, each counted alike."""
    if not sources:
        return None
    centre = mean([value for value, _ in sources.values()])
    halves = [interval[1] - value for value, interval in sources.values() if interval is not None]
    if len(halves) < len(sources):
        return centre, None
    half = math.hypot(*halves) / len(sources)
    return centre, (centre - half, centre + half)


def chance(before: Scores, after: Scores, name: str) -> float:
    """Two standard errors of the change of a mean between two validations.

    Samples are paired by prompt and random numbers. Samples of a prompt are not independent, so the variance is that
    over prompts. Data sources have equal weights, as in the metrics.

    Args:
        before: of one validation.
        after: of another.
        name: ``reward``, or a name of ``values``; ``A_given_B`` is the mean of A where B is 1.

    Returns:
        0 without scores, infinity with too few prompts.
    """
    moves = _moves(before, after, name)
    if not moves:
        return 0.0
    _, _, condition = name.partition("_given_")
    met = [{i for (i, _), one in side.items() if not condition or one.of(condition) == 1} for side in (before, after)]
    every = [move for source in moves for move in source]
    if min(len(every), *map(len, met)) < ENOUGH:  # of a few, a mean says nothing, however alike
        return math.inf
    errors = [_variance(own if len(own) >= ENOUGH else every) / len(own) for own in moves]
    return 2 * math.sqrt(math.fsum(errors)) / len(moves)


def _moves(before: Scores, after: Scores, name: str) -> list[list[float]]:
    """Contribution of every prompt to the change of the mean, by data source."""
    rows: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0] * 4))
    for place in before.keys() & after.keys():
        values = before[place].of(name), after[place].of(name)
        if None in values and "_given_" not in name:
            continue
        row = rows[after[place].source][place[0]]  # before: sum, count; after: sum, count
        for side, value in enumerate(values):
            if value is not None:
                row[2 * side] += value
                row[2 * side + 1] += 1
    moves = []
    for prompts in rows.values():
        was, n_was, now, n_now = (math.fsum(column) for column in zip(*prompts.values(), strict=True))
        if n_was and n_now:
            moves.append([
                len(prompts) * ((row[2] - now / n_now * row[3]) / n_now - (row[0] - was / n_was * row[1]) / n_was)
                for row in prompts.values()
            ])  # fmt: skip
    return moves


@dataclass(frozen=True)
class PassAtK:
    """Mean and best of a prompt's samples: before, after, two standard errors of the change."""

    n: int
    mean: tuple[float, float, float]
    best: tuple[float, float, float]

    @property
    def kind(self) -> str:
        """learning, sharpening, collapse, or "" where the mean did not clearly rise."""
        mean, best = (0 if abs(b - a) <= doubt else 1 if b > a else -1 for a, b, doubt in (self.mean, self.best))
        return {1: "learning", 0: "sharpening", -1: "collapse"}[best] if mean == 1 else ""


def pass_at_k(before: Scores, after: Scores, name: str) -> PassAtK | None:
    """Compare two validations by a column; None where prompts have one sample, or other numbers of them."""
    sides = [by_prompt(side, name) for side in (before, after)]
    counts = {len(values) for side in sides for prompts in side.values() for values in prompts.values()}
    if len(counts) != 1 or (n := counts.pop()) < 2:
        return None
    best: list[Scores] = [
        {(index, 0): Score(source, max(values), {name: max(values)})
         for source, prompts in side.items() for index, values in prompts.items()}
        for side in sides
    ]  # fmt: skip
    compared = []
    for was, now in ((before, after), best):
        means = [over_sources(by_source(side, name)) for side in (was, now)]
        if means[0] is None or means[1] is None:
            return None
        compared.append((means[0][0], means[1][0], chance(was, now, name)))
    return PassAtK(n, *compared)


# patterns of responses (tags, openings, phrases) that were frequent before training and are rare now


@dataclass(frozen=True)
class Pattern:
    """Something that responses have in common, with its frequencies."""

    what: str
    before: float  # fraction of responses
    after: float

    def text(self) -> str:
        """Description with both frequencies."""
        was, now = (f"{100 * share:.0f}\N{NO-BREAK SPACE}%" for share in (self.before, self.after))
        return f"{self.what}, {was} → {now} of responses"


def lost_patterns(before: Samples, after: Samples) -> list[Pattern]:
    """Patterns that were frequent and are rare now, beyond chance, largest loss first and without duplicates."""
    common = sorted(before.keys() & after.keys())
    sides = [[side[place] for place in common] for side in (before, after)]
    if any(sample.response is None for side in sides for sample in side):
        return []
    was, now = map(_rows_by_pattern, sides)
    lost: dict[str, Pattern] = {}
    # tags come first, so that phrases next to a tag do not hide it
    for what in sorted(was, key=lambda one: (PATTERNS.index(one.partition(" ")[0]), -len(was[one]), one)):
        had, has = was[what], now.get(what, set())
        if len(had) < FREQUENT * len(common) or len(has) > RARE * len(had):
            continue
        if any(len(had & was[other]) > ALIKE * len(had | was[other]) for other in lost):
            continue
        with_was, with_now = (
            {place: Score("", float(row in rows), {}) for row, place in enumerate(common)} for rows in (had, has)
        )
        if (len(had) - len(has)) / len(common) > chance(with_was, with_now, "reward"):
            lost[what] = Pattern(what, len(had) / len(common), len(has) / len(common))
    return sorted(lost.values(), key=lambda pattern: pattern.after - pattern.before)[:MOST]


def _rows_by_pattern(samples: Sequence[Sample]) -> dict[str, set[int]]:
    """Positions of the responses that have a pattern, by pattern."""
    rows: defaultdict[str, set[int]] = defaultdict(set)
    for row, sample in enumerate(samples):
        text = sample.response or ""
        words = re.findall(r"[^\W\d_]+(?:\'[^\W\d_]+)?", TAG.sub(" ", text).lower())
        patterns = {f"tag <{name}>" for name in TAG.findall(text)}
        patterns |= {f"mark {what}" for what, sign in MARKS.items() if sign in f"\n{text}"}
        patterns |= {f"opening “{' '.join(words[:2])}”"} if words else set()
        patterns |= {f"phrase “{' '.join(words[i : i + PHRASE])}”" for i in range(len(words) - PHRASE + 1)}
        for pattern in patterns:
            rows[pattern].add(row)
    return rows
