"""What a page can take: short numbers and texts, few points of a curve, media by their path in the run's folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from burnish.config.run_folder import RunFolder
from burnish.report.statistics import Interval

T = TypeVar("T")
MOST_POINTS = 400  # of a curve
MOST_UPDATES = 200  # validations whose samples are shown
MOST_SCORED = 50  # validations whose scores are read: for intervals, data sources and the table of prompts
DIGITS = 6
LONGEST = 120_000  # characters of a text

Points = list[tuple[int, float | None]]


def short(value: float | None) -> float | None:
    """A number with as many digits as a page can show; None for what JSON can't hold."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def shorts(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Numbers by name, the same."""
    return {name: short(value) for name, value in values.items()}


def cut(text: str | None, most: int = LONGEST) -> str | None:
    """A text of at most so many characters; what is left out is said."""
    if text is None or len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most} more characters)"


def chosen(items: Sequence[T], most: int = MOST_UPDATES) -> Sequence[T]:
    """Evenly spaced ones, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def relative(file: Path, folder: RunFolder) -> str | None:
    """A file's path from its run's folder; None for one that is not there."""
    return file.relative_to(folder.path).as_posix() if file.is_file() else None


def fewer(points: Sequence[tuple[int, float | None]], most: int = MOST_POINTS) -> list[int]:
    """Positions of at most ``most`` points: of each stretch the lowest and the highest, and both ends."""
    if len(points) <= most:
        return list(range(len(points)))
    stretches = max(1, (most - 2) // 2)
    kept = {0, len(points) - 1}
    for number in range(stretches):
        rows = range(number * len(points) // stretches, (number + 1) * len(points) // stretches)
        known = [(value, row) for row in rows if (value := points[row][1]) is not None]
        kept |= {min(known)[1], max(known)[1]} if known else {rows.start}
    return sorted(kept)


def series(
    name: str, style: str, points: Points, intervals: Sequence[Interval] = (), *, most: int = MOST_POINTS
) -> dict[str, Any]:
    """A line of a chart; ``intervals`` belong to its points."""
    rows = fewer(points, most)
    line: dict[str, Any] = {
        "name": name, "style": style,
        "x": [points[row][0] for row in rows], "y": [short(points[row][1]) for row in rows],
    }  # fmt: skip
    if any(intervals):
        sides = [intervals[row] or (None, None) for row in rows]  # a band goes straight on where there is none
        line |= {"low": [short(low) for low, _ in sides], "high": [short(high) for _, high in sides]}
    return line
