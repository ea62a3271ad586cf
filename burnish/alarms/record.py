"""Alarms as a run records them, and as a page reads them. The folder may come from somebody else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from burnish.types.samples import Quote
from burnish.utils.records import RECORD, read_records

Row = Mapping[str, Any]  # metrics of an update
Update = Annotated[int, Field(ge=0, lt=2**53)]
Sheet = Annotated[str, Field(pattern=r"^[\w.-]{1,120}\.png$")]


@dataclass(config=RECORD, frozen=True)
class Alarm:
    """Something that has moved."""

    name: str
    kind: Literal["drift", "level", "reward", "validation"]
    since: Update  # from which on it is so
    text: str  # a sentence: what, by how much, since when
    metric: str = ""  # whose curve shows it
    before: float | None = None  # its value at the start
    spread: float | None = None  # standard deviation of the first samples, where it is a mean of samples


@dataclass(config=RECORD, frozen=True, kw_only=True)
class Raised(Alarm):
    """An alarm with what it was raised over."""

    update: Update  # at which it was raised
    over: Update | None = None  # at which it was no longer so
    sheets: tuple[Sheet, ...] = ()  # names of images: of the first update and of this one
    quotes: tuple[tuple[Quote, ...], ...] = ()  # responses, the same

    def record(self) -> dict[str, Any]:
        """As a line of the file."""
        return {name: value for name, value in asdict(self).items() if name != "over"}


@dataclass(config=RECORD)
class Over:
    """A line of the file that says that an alarm is over."""

    update: Update
    over: str


_LINE: TypeAdapter[Over | Raised] = TypeAdapter(Over | Raised)


def read_alarms(file: Path) -> list[Raised]:
    """The alarms of a run, in the order in which they were raised; lines that no run wrote are left out."""
    alarms: list[Raised] = []
    for line in read_records(file, _LINE, file.parent):
        if isinstance(line, Raised):
            alarms.append(line)
        else:
            active = [raised for raised in alarms if raised.name == line.over and raised.over is None]
            alarms = [replace(raised, over=line.update) if raised in active else raised for raised in alarms]
    return alarms


def number(row: Row, name: str) -> float | None:
    """A metric, None if it is missing."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def amount(value: float) -> str:
    """A number in a sentence."""
    return f"{value:.3f}" if 0.01 <= abs(value) < 100 or value == 0 else f"{value:.3g}"
