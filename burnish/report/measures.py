"""What validations are told by in the report: a metric, its name for readers, and what of its change counts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

SPACE = "\N{NO-BREAK SPACE}"
PLUS_MINUS = f"{SPACE}±{SPACE}"
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
    chance: float = 0.0  # changes below this may be chance; infinity if unknown
    digits: int = 3  # decimals
    watched: bool = False  # one of ``STATISTICS`` without a weight; reports fold it
    about: str = ""  # what a statistic counts, and in which unit

    def of(self, row: Row | None) -> float | None:
        """The value in a line of metrics, averaged over data sources; None if missing."""
        return mean(row, self.key)

    @property
    def column(self) -> str:
        """Its name in ``Score``."""
        named = {VARIETY.key: "variety", LENGTH.key: "tokens"}
        return named.get(self.key) or self.key.split("/")[-2]

    def sign(self, before: float, after: float) -> int:
        """1 for a significant rise, -1 for a significant fall, else 0."""
        enough = max(self.enough * abs(before) if self.relative else self.enough, self.chance)
        return 0 if abs(after - before) < enough else 1 if after > before else -1

    def show(self, value: float | None) -> str:
        """The value as text."""
        if value is None:
            return "–"
        if self.percent:
            return f"{100 * value:.{self.digits - 2}f}{SPACE}%".replace("-", "−")
        digits = self.digits if abs(value) < 100 else 1
        return f"{value:.{digits}f}".replace("-", "−")

    def change(self, before: float, after: float) -> str:
        """The change with its sign and confidence interval: +1.1 ± 1.9 points."""
        unit = 10.0**-self.digits  # the difference of what is shown, not of what was rounded for it
        number, _, points = self.show(abs(round(after / unit) - round(before / unit)) * unit).partition(SPACE)
        sign = "" if not float(number) else "+" if after > before else "−"
        words = f"{sign}{number}"
        if 0 < self.chance < math.inf:
            words += f"{PLUS_MINUS}{self.show(self.chance).partition(SPACE)[0]}"
        return f"{words}{SPACE}points" if points else words


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
            measures.append(replace(known, title=title, key=key, better=0, about="only watched"))
    return measures


def mean(row: Row | None, key: str) -> float | None:
    """The value of a metric, averaged over the data sources that ``*`` stands for."""
    if row is None:
        return None
    if "*" not in key:
        only = row.get(key)
        return float(only) if only is not None and math.isfinite(only) else None
    head, _, tail = key.partition("*")
    end = tail.removesuffix("*")
    names = [name for name in row if name.startswith(head) and end in name]
    values = [row[name] for name in names if row[name] is not None and math.isfinite(row[name])]
    return sum(values) / len(values) if values else None
