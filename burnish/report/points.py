"""Curves as plain data: few enough points for a page, in which no peak is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MOST = 400  # points of a curve
DIGITS = 6

Points = list[tuple[int, float | None]]
Interval = tuple[float, float] | None


def fewer(points: Sequence[tuple[int, float | None]], most: int = MOST) -> list[int]:
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
    name: str,
    style: str,
    points: Sequence[tuple[int, float | None]],
    intervals: Sequence[Interval] = (),
    *,
    most: int = MOST,
) -> dict[str, Any]:
    """A line of a chart; ``intervals`` belong to its points."""
    rows = fewer(points, most)
    found: dict[str, Any] = {
        "name": name, "style": style,
        "x": [points[row][0] for row in rows], "y": [short(points[row][1]) for row in rows],
    }  # fmt: skip
    if any(intervals):
        sides = [intervals[row] or (None, None) for row in rows]  # a band goes straight on where there is none
        found |= {"low": [short(low) for low, _ in sides], "high": [short(high) for _, high in sides]}
    return found


def short(value: float | None) -> float | None:
    """A number with as many digits as a page can show; None for what JSON can't hold."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")
