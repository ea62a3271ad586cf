"""Records from files: one object each, with its location."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from burnish.data.lines import data_error, decoded, parse_object
from burnish.data.own import OwnData, own_data
from burnish.data.tables import COLUMNS, read_columns, read_parquet, read_saved, rows_of
from burnish.utils.errors import UserError
from burnish.utils.hub_data import hub_data
from burnish.utils.json_text import parse_json
from burnish.utils.paths import resolve
from burnish.utils.reading import checked_path, read_file, read_text

T = TypeVar("T")
SUFFIXES = (".jsonl", ".json", *COLUMNS, ".parquet")

# keys of published data sets
PROMPT = ("prompt", "messages", "question", "problem", "query")
IMAGES = ("images", "image")
VIDEOS = ("videos", "video")
AUDIOS = ("audios", "audio")
ANSWER = ("answer", "solution", "ground_truth", "reward_model.ground_truth", "reference", "target")
RESPONSE = ("response", "completion", "output")


@dataclass(slots=True)
class Record:
    """An object of a file, or what is wrong with it."""

    where: str  # file:line, or file, row n
    folder: Path  # that relative paths are resolved against
    values: dict[str, Any]
    problem: str = ""
    part: int = 0  # the entry of the option's list that it comes from


def files_of(files: str | Sequence[str]) -> list[Path]:
    """The files of an option.

    Raises:
        UserError: it names none.
    """
    names = [files] if isinstance(files, str) else list(files)
    if not names:
        raise UserError("the list of data files is empty; name at least one")
    return [resolve(name) for name in names]


def read_records(path: Path, prompt: str = PROMPT[0]) -> Iterator[Record]:
    """The records of a file, of a directory that the datasets library saved, of a data set of the hub, or of user code.

    Args:
        path: as ``files_of`` gives it.
        prompt: the key under which lines of text are.

    Raises:
        UserError: it can't be read.
    """
    name = str(path)
    if path.is_dir():
        yield from _rows(name, path, read_saved(path))
    elif not path.exists() and (own := own_data(name)) is not None:
        yield from _of_code(own)
    elif not path.exists() and (hub := hub_data(name)) is not None:
        yield from _rows(hub.path, path.parent, rows_of(hub.load(), hub.path))
    elif not path.exists():
        raise UserError(f"{path} can't be read: there is no such file; correct the path")
    elif path.suffix == ".txt":
        yield from _lines(path, lambda line: {prompt: line} if line else None)
    elif path.suffix == ".jsonl":
        yield from _lines(path, parse_object)
    elif path.suffix == ".json":
        yield from _list(path)
    elif path.suffix in COLUMNS:
        for line, values, problem in read_columns(path):
            yield Record(f"{path}:{line}", path.parent, values, problem)
    elif path.suffix == ".parquet":
        yield from _rows(name, path.parent, read_parquet(path))
    else:
        raise UserError(
            f"{path} can't be read; give .txt, {', '.join(SUFFIXES)}, or a directory that the datasets library saved"
        )


def read_files(
    files: str | Sequence[str],
    read: Callable[[Record], Iterable[T]],
    records: Callable[[Path], Iterable[Record]] = read_records,
    check: Callable[[list[T]], Iterable[str]] = lambda found: (),
    *,
    media_folder: str | None = None,
) -> list[T]:
    """What ``read`` returns for every record of the files, in order.

    Args:
        files: as an option names them.
        read: what a record holds; a ValueError is its problem.
        records: those of a file.
        check: problems of all that was read, each with its location.
        media_folder: that relative paths are resolved against in place of each file's own.

    Raises:
        UserError: a file can't be read, holds nothing, or has wrong records; the message names file and row of the
            first ones and counts the others.
    """

    media_at = None if media_folder is None else checked_path(media_folder, "data.media_folder")
    found: list[T] = []
    problems: list[str] = []
    for part, path in enumerate(map(_index, files_of(files))):
        record = None
        for record in records(path):
            record.part = part
            record.folder = media_at or record.folder
            try:
                if record.problem:
                    raise ValueError(record.problem)
                found += read(record)
            except ValueError as error:
                problems.append(f"{record.where}: {error}")
        if record is None:
            problems.append(f"{path}: holds no records")
    problems += check(found)
    if problems:
        raise data_error(problems)
    return found


def _index(path: Path) -> Path:
    """The list of records in a folder: metadata.jsonl, as of kept samples and of datasets' image folders, or the only
    .jsonl, as of pairs; any other path as it is."""
    if not path.is_dir():
        return path
    named = path / "metadata.jsonl"
    lists = [named] if named.is_file() else list(path.glob("*.jsonl"))
    return lists[0] if len(lists) == 1 else path


def _list(path: Path) -> Iterator[Record]:
    text = read_text(path)
    try:
        records = parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} can't be read as JSON: {error}; correct it, or give another file") from None
    if not isinstance(records, list):
        raise UserError(
            f"{path} holds {type(records).__name__}; it must be a list of objects; use .jsonl for one object per line"
        )
    for number, record in enumerate(records, 1):
        where = f"{path}, record {number}"
        if isinstance(record, dict):
            yield Record(where, path.parent, record)
        else:
            yield Record(where, path.parent, {}, f"holds {type(record).__name__}, not an object")


def _lines(path: Path, read: Callable[[str], dict[str, Any] | None]) -> Iterator[Record]:
    """What the lines of a file hold, but for blank ones."""
    name, folder = str(path), path.parent
    # some editors write a byte order mark, which is not part of the first line
    lines = BytesIO(read_file(path).removeprefix(codecs.BOM_UTF8))  # a list of all takes twice the memory
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        where = f"{name}:{number}"
        try:
            values = read(decoded(line))
        except ValueError as error:
            yield Record(where, folder, {}, str(error))
            continue
        if values is not None:
            yield Record(where, folder, values)


def _rows(name: str, folder: Path, rows: Iterable[dict[str, Any]]) -> Iterator[Record]:
    yield from (Record(f"{name}, row {number}", folder, values) for number, values in enumerate(rows, 1))


def _of_code(own: OwnData) -> Iterator[Record]:
    for number, values in enumerate(own.load(), 1):
        where = f"{own.path}, record {number}"
        if isinstance(values, Mapping):
            yield Record(where, own.folder, dict(values))
        else:
            yield Record(where, own.folder, {}, f"is {type(values).__name__}; it must be a dictionary")
