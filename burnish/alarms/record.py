"""Alarms as a run records them, and as a page reads them. The folder may come from somebody else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from burnish.alarms.base import Alarm
from burnish.types.response_stats import Quote
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.reading import read_file

KINDS = ("drift", "level", "reward", "validation")
SHEET = re.compile(r"[\w.-]{1,120}\.png")
LARGEST = 16 << 20  # bytes of a file
MOST, LONGEST, QUOTES = 200, 4000, 16  # alarms of a page, characters of a text, responses of an update


@dataclass(frozen=True)
class Raised:
    """An alarm with what it was raised over."""

    update: int  # at which it was raised
    alarm: Alarm
    over: int | None = None  # the update at which it was no longer so
    sheets: tuple[str, ...] = ()  # names of pictures: of the first update and of this one
    quotes: tuple[tuple[Quote, ...], ...] = ()  # responses, the same

    @property
    def name(self) -> str:
        return self.alarm.name

    def record(self) -> dict[str, Any]:
        """As a line of the file."""
        said = [[vars(quote) for quote in some] for some in self.quotes]
        return {"update": self.update, "sheets": list(self.sheets), "quotes": said} | self.alarm.record()


def read_alarms(file: Path) -> list[Raised]:
    """The alarms of a run, in the order in which they were raised; lines that no run wrote are left out."""
    found: list[Raised] = []
    if not file.is_file() or file.is_symlink():
        return found
    try:
        content = read_file(file, LARGEST)
    except UserError:
        return found
    for text in content.splitlines():
        try:
            line = parse_json(text)
            if "over" in line:
                found = [_ended(one, line) for one in found]
            elif len(found) < MOST:
                found.append(_raised(line))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _ended(one: Raised, line: Mapping[str, Any]) -> Raised:
    if one.name != line["over"] or one.over is not None:
        return one
    return replace(one, over=_whole(line["update"]))


def _raised(line: Mapping[str, Any]) -> Raised:
    """A parsed line.

    Raises:
        ValueError, KeyError, TypeError: it was not written by a run.
    """
    sheets, quotes = line["sheets"], line["quotes"]
    if not isinstance(sheets, list) or not all(isinstance(name, str) and SHEET.fullmatch(name) for name in sheets):
        raise ValueError("no names of pictures")
    if line["kind"] not in KINDS:
        raise ValueError("no kind of alarm")
    alarm = Alarm(
        _text(line["name"]), line["kind"], _whole(line["since"]), _text(line["text"]), _text(line["metric"]),
        _number(line["before"]), _number(line["spread"]),
    )  # fmt: skip
    said = tuple(tuple(_quote(one) for one in some[:QUOTES]) for some in quotes[:2])
    return Raised(_whole(line["update"]), alarm, sheets=tuple(sheets[:2]), quotes=said)


def quotes_of(some: Sequence[Any]) -> list[Quote]:
    """Responses of a parsed file.

    Raises:
        ValueError, KeyError, TypeError: they were not written by a run.
    """
    return [_quote(one) for one in some[:QUOTES]]


def _quote(one: Any) -> Quote:
    return Quote(_text(one["prompt"]), _text(one["response"]), _number(one["reward"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return value[:LONGEST]


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError("no number of an update")
    return value


def _number(value: Any) -> float | None:
    if value is not None and type(value) not in (int, float):
        raise ValueError("no number")
    return None if value is None else float(value)
