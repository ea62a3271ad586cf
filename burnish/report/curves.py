"""Line charts as SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 26
INNER_H = HEIGHT - TOP - BOTTOM
CHARACTER = 6.0  # width of a digit of the labels


@dataclass(frozen=True)
class Series:
    """A line through (update, value); a value of None leaves a gap."""

    name: str
    style: str  # CSS class: validation or training
    points: Sequence[tuple[int, float | None]]
    dots: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over policy updates."""

    title: str
    series: Sequence[Series]
    last: int  # update at the right edge
    reference: tuple[str, float] | None = None  # a dashed line to compare with
    percent: bool = False
    span: float = 0.0  # smallest range of the axis
    zero: bool = False  # the axis starts at 0, so that proportions are visible
    note: str = ""  # below the title
    values: list[float] = field(init=False)

    def __post_init__(self) -> None:
        found = [value for one in self.series for _, value in one.points if value is not None]
        object.__setattr__(self, "values", found + ([self.reference[1]] if self.reference else []))

    def html(self) -> str:
        """The chart with title and legend; "" if there is no value."""
        if not self.values:
            return ""
        note = f"<small>{escape(self.note)}</small>" if self.note else ""
        title = f"<figcaption>{escape(self.title)}{note}</figcaption>"
        return f'<figure class="chart">{title}{self._svg()}{self._legend()}</figure>'

    def _legend(self) -> str:
        names = [(one.style, one.name) for one in self.series if any(v is not None for _, v in one.points)]
        if self.reference:
            names.append(("reference", self.reference[0]))
        if len(names) < 2:
            return ""
        items = "".join(
            f'<li><svg viewBox="0 0 22 8" aria-hidden="true"><path class="line {style}" d="M1 4H21"/></svg>'
            f"{escape(name)}</li>"
            for style, name in names
        )
        return f'<ul class="legend">{items}</ul>'

    def _svg(self) -> str:
        least, most = self._range()
        ticks = nice_ticks(least, most)
        low, high = min(ticks[0], *self.values), max(ticks[-1], *self.values)
        labels = [self.tick(tick, ticks[1] - ticks[0]) for tick in ticks]
        left = max(LEFT, round(8 + CHARACTER * max(map(len, labels))))  # no number is cut
        label = escape(f"{self.title}, over policy updates", quote=True)
        parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">']

        def x(update: float) -> float:
            return left + (WIDTH - RIGHT - left) * update / max(self.last, 1)

        def y(value: float) -> float:
            return TOP + INNER_H * (1 - (value - low) / (high - low))

        for tick, text in zip(ticks, labels, strict=True):
            parts.append(f'<path class="rule" d="M{left} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
            parts.append(f'<text x="{left - 6}" y="{y(tick) + 3.5:.1f}" class="end">{text}</text>')
        for tick in nice_ticks(0, max(self.last, 1), integer=True):
            if 0 <= tick <= max(self.last, 1):
                text = f"{tick:.0f}"
                middle = min(x(tick), WIDTH - CHARACTER * len(text) / 2)
                parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 8}" class="middle">{text}</text>')
        if self.reference:
            parts.append(f'<path class="line reference" d="M{left} {y(self.reference[1]):.1f}H{WIDTH - RIGHT}"/>')
        for one in self.series:
            path = _path([(x(at), None if value is None else y(value)) for at, value in one.points])
            parts.append(f'<path class="line {one.style}" d="{path}"/>')
            for at, value in one.points:
                if value is not None and (one.dots or len(one.points) == 1):
                    label = f"update {at}: {self.tick(value, 0.001)}"
                    parts.append(
                        f'<circle class="dot {one.style}" cx="{x(at):.1f}" cy="{y(value):.1f}" r="3.5">'
                        f"<title>{label}</title></circle>"
                    )
        return "".join([*parts, "</svg>"])

    def _range(self) -> tuple[float, float]:
        low, high = min(self.values), max(self.values)
        if self.zero:
            low, high = min(low, 0.0), max(high, 0.0)
        lack = self.span - (high - low)
        if lack <= 0:
            return low, high
        below = min(lack / 2, low) if low >= 0 else lack / 2  # no negative axis for non-negative values
        if self.percent and high <= 1 < high + lack - below:  # and none above 100 %
            below = lack - (1 - high)
        return low - below, high + lack - below

    def tick(self, value: float, step: float) -> str:
        """Label of a number on an axis with ticks ``step`` apart."""
        if self.percent:
            return f"{100 * value:.0f} %"
        if abs(value) < 1e-9 * step:
            return "0"
        if not 1e-3 <= abs(value) < 1e4:
            return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace(".0e", "e").replace("-", "−")
        digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 3
        return f"{value:.{digits}f}".replace("-", "−")


def nice_ticks(low: float, high: float, *, integer: bool = False) -> list[float]:
    """Three to six round numbers that cover a range; integers if ``integer``."""
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    if integer:
        step = max(1, round(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    path, pen = [], "M"
    for x, y in points:
        if y is None:
            pen = "M"
        else:
            path.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
    return "".join(path)
