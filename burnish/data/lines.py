"""JSON objects as text, and everything that is wrong with a file in one error."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from burnish.utils.errors import ConfigError, UserError
from burnish.utils.json_text import parse_json
from burnish.utils.reading import read_file

LISTED = 10  # problems that one message lists

T = TypeVar("T")
Source = TypeVar("Source")


def read_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """The lines of a file that are not blank, each with its location "file:line", counted from 1.

    Raises:
        UserError: the file can't be read.
    """
    # some editors write a byte order mark, which is not part of the first line
    lines = BytesIO(
        read_file(path).removeprefix(codecs.BOM_UTF8)
    )  # one at a time: a list of all takes twice the memory
    yield from ((f"{path}:{number}", line.removesuffix(b"\n")) for number, line in enumerate(lines, 1) if line.strip())


def decoded(line: bytes) -> str:
    """The text of a line, without white space around it.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return line.decode().strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: the text is not JSON, not an object, or has a key twice.
    """
    try:
        record = parse_json(text, _unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(record, dict):
        raise ValueError(f"holds {type(record).__name__}, not an object like {{'prompt': 'a cat'}}")
    return record


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError(f"has {repeated([key for key, _ in pairs])!r} twice; keep one")
    return record


def repeated(names: Sequence[str]) -> str | None:
    """The first name that is there again; None where there is none."""
    counts = Counter(names)
    return next((name for name in names if counts[name] > 1), None)


def read_all(
    sources: Iterable[tuple[str, Source]],
    read: Callable[[str, Source], Iterable[T]],
    check: Callable[[list[T]], Iterable[str]] = lambda found: (),
) -> list[T]:
    """Read every record of a data set, and report the problems of all of them together.

    Args:
        sources: records as they are stored, each with its location.
        read: what one of them holds; a ValueError is its problem.
        check: problems of all that was read, each with its location.

    Raises:
        UserError: there are problems; the first ones are listed, the others counted.
    """
    found: list[T] = []
    problems: list[str] = []
    for where, source in sources:
        try:
            found += read(where, source)
        except ValueError as error:
            problems.append(f"{where}: {error}")
    problems += check(found)
    if problems:
        raise data_error(problems)
    return found


def data_error(problems: Sequence[str], head: str = "") -> UserError:
    """All problems of a data set in one error: the first ones listed, the others counted.

    Args:
        problems: one line each.
        head: what they have in common and what to do; the problems are then examples of it.
    """
    if not head:
        return ConfigError(problems[:LISTED], count=len(problems), way_out="correct these records, or remove them")
    more = [f"and {len(problems) - LISTED} more"] if len(problems) > LISTED else []
    return UserError("\n".join([head, *problems[:LISTED], *more]))
