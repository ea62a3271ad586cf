"""An alarm, and what raises one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

Row = Mapping[str, Any]  # metrics of an update


@dataclass(frozen=True)
class Alarm:
    """Something that has moved."""

    name: str
    kind: Literal["drift", "level", "reward", "validation"]
    since: int  # the update from which on it is so
    text: str  # a sentence: what, by how much, since when
    metric: str = ""  # whose curve shows it
    before: float | None = None  # its value at the start
    spread: float | None = None  # standard deviation of the first samples, where it is a mean of samples

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


class Detector(Protocol):
    """Looks at one thing in the metrics of every update."""

    name: str
    alarm: Alarm | None  # as long as what raised it lasts

    def add(self, update: int, row: Row) -> None:
        """The metrics of the next update."""


def number(row: Row, name: str) -> float | None:
    """A metric, None if it is missing."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def amount(value: float) -> str:
    """A number in a sentence."""
    return f"{value:.3f}" if 0.01 <= abs(value) < 100 or value == 0 else f"{value:.3g}"
