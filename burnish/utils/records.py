"""Files of records, one JSON object a line, read by their type. They may be cut off, or come from somebody else."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

T = TypeVar("T")
RECORD = ConfigDict(strict=True, allow_inf_nan=False)  # of dataclasses that lines are read into
MOST = 400  # places of which content is kept


def read_records(file: Path, kind: TypeAdapter[T], folder: Path) -> Iterator[T]:
    """The records of a file of a run, one after the other; lines that no run wrote are left out.

    Args:
        file: of lines; none and one that links lead to from elsewhere have no records.
        kind: of a record.
        folder: of the run.
    """
    for line in file.read_bytes().split(b"\n") if file.is_file() and not leads_out(file, folder) else ():
        with suppress(ValidationError):
            yield kind.validate_json(line)


def leads_out(file: Path, folder: Path) -> bool:
    """Whether a path below a folder leads outside, by a link or by dots."""
    try:
        return not file.resolve().is_relative_to(folder.resolve())
    except (RuntimeError, ValueError):  # links that lead in a circle; no name of a file
        return True


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and no bool."""
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 2**53)


def stamp(*files: Path) -> tuple[int, ...]:
    """Changes whenever one of the files does: when it did, in nanoseconds, and its bytes; zeros where there is none."""
    found = []
    for file in files:
        try:
            about = file.stat()
            found += [about.st_mtime_ns, about.st_size]
        except (OSError, ValueError):
            found += [0, 0]
    return tuple(found)


def cached(
    changed: Callable[[Path], Hashable], most: int = MOST
) -> Callable[[Callable[[Path], T]], Callable[[Path], T]]:
    """Decorates what reads something from a place: it is read again only when what ``changed`` gives has changed.

    Of the last ``most`` places the content is kept.
    """

    def decorated(read: Callable[[Path], T]) -> Callable[[Path], T]:
        kept: dict[Path, tuple[Hashable, T]] = {}

        @wraps(read)
        def latest(place: Path) -> T:
            now, known = changed(place), kept.pop(place, None)
            content = known[1] if known is not None and known[0] == now else read(place)
            kept[place] = now, content
            for old in list(kept)[: max(len(kept) - most, 0)]:
                kept.pop(old, None)
            return content

        return latest

    return decorated
