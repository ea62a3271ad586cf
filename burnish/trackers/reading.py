"""What a tracker is sent, from the files of a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from burnish.trackers.base import Notice, Sample
from burnish.utils.json_text import parse_json
from burnish.utils.reading import read_file

STEP = "training/global_step"
LARGEST = 64 << 20  # bytes of the samples of a validation
NAMED, SAID = 200, 4000  # characters of an alarm's name and text
T = TypeVar("T")
FILE = 32 << 20  # bytes of a picture, clip or sound that is sent


class Progress:
    """Up to which update a tracker has got a run, and its id there: a file that outlives the process."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            found = parse_json(file.read_bytes())
        except (OSError, ValueError):
            found = {}
        found = found if isinstance(found, dict) else {}
        run, step = found.get("id"), found.get("step")
        self.id: str | None = run if isinstance(run, str) else None
        self.step: int = step if type(step) is int and self.id is not None else -1

    def write(self, run: str, step: int) -> None:
        """Remember it. Not flushed to disk: a power cut may have an update sent twice."""
        self.id, self.step = run, step
        new = self.file.with_name(f".{self.file.name}.new")
        new.unlink(missing_ok=True)
        with new.open("x", encoding="utf-8") as file:  # never through a link: the folder may come from somebody else
            file.write(json.dumps({"id": run, "step": step}))
        os.replace(new, self.file)


class _Lines(Generic[T]):
    """Complete lines of a file that a run appends to; those that no run wrote are passed over."""

    def __init__(self, file: Path, read: Callable[[bytes], T | None], update_of: Callable[[T], int]) -> None:
        self.file, self.read, self.update_of = file, read, update_of
        self._offset = 0

    def upto(self, update: int) -> Iterator[T]:
        """The next ones, up to those of an update."""
        if not self.file.is_file() or self.file.is_symlink():
            return
        with self.file.open("rb") as lines:
            lines.seek(self._offset)
            for line in lines:
                found = self.read(line)
                if not line.endswith(b"\n") or (found is not None and self.update_of(found) > update):
                    return
                self._offset += len(line)
                if found is not None:
                    yield found


class Rows:
    """Lines of metrics.jsonl, read as they are written."""

    def __init__(self, file: Path, after: int) -> None:
        """Args: ``after`` is the last update that needs no reading any more."""
        self.after = after
        self._lines = _Lines(file, _row, lambda row: row[STEP])

    def upto(self, update: int) -> Iterator[tuple[int, dict[str, float]]]:
        """The next updates and their metrics, up to one that is known to be there; missing values are left out."""
        for row in self._lines.upto(update):
            if row[STEP] > self.after:
                self.after = row.pop(STEP)
                yield self.after, {name: value for name, value in row.items() if value is not None}


class Notices:
    """Lines of alarms.jsonl, read as they are written."""

    def __init__(self, file: Path, after: int) -> None:
        """Args: ``after`` is the last update whose alarms need no reading any more."""
        self.after = after
        self._lines = _Lines(file, self._notice, lambda notice: notice.update)
        self._texts: dict[str, str] = {}  # of the alarms that were raised

    def upto(self, update: int) -> Iterator[Notice]:
        """The next alarms, raised or over, up to an update; lines that no run wrote are left out."""
        for notice in self._lines.upto(update):
            self._texts[notice.name] = notice.text
            if notice.update > self.after:
                yield notice

    def _notice(self, line: bytes) -> Notice | None:
        try:
            found = parse_json(line)
        except ValueError:
            return None
        if not isinstance(found, dict) or type(found.get("update")) is not int:
            return None
        over = "over" in found
        name = found.get("over" if over else "name")
        text = self._texts.get(name) if over and isinstance(name, str) else found.get("text")
        if not isinstance(name, str) or not isinstance(text, str):
            return None
        return Notice(update=found["update"], name=name[:NAMED], text=text[:SAID], over=over)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or type(row.get(STEP)) is not int:
        return None
    return {name: value for name, value in row.items() if value is None or type(value) in (int, float)}


def read_samples(folder: Path, most: int) -> list[Sample]:
    """The first sample of each of the first prompts of a validation; none if nothing was kept.

    Args:
        folder: of the validation.
        most: prompts.
    """
    if not (folder / "samples.jsonl").is_file() or not most:
        return []
    found: dict[int, Sample] = {}
    for line in read_file(folder / "samples.jsonl", LARGEST).splitlines():
        record = parse_json(line)
        number = int(record["index"])
        if number not in found and len(found) < most:
            found[number] = _sample(folder / "pictures", record)
    return list(found.values())


def _sample(media: Path, record: dict[str, Any]) -> Sample:
    drawn, score = record.get("file"), record.get("reward")
    file = _sendable(media, drawn) if isinstance(drawn, str) else None
    shown = (_sendable(media, name) for name in record.get("images") or ())
    return Sample(
        prompt=str(record["prompt"]),
        text=str(record["response"]) if "response" in record else None,
        file=file,
        shown=[one for one in shown if one is not None],
        score=float(score) if isinstance(score, int | float) and math.isfinite(score) else None,
        note=str(record.get("note") or ""),
    )


def _sendable(media: Path, name: str) -> Path | None:
    """A file that the validation kept, if it is there and not too large."""
    file = media / Path(name).name
    return file if file.is_file() and not file.is_symlink() and file.stat().st_size <= FILE else None
