"""Records of data files in every format: one object each, with its location."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from burnish.utils.errors import ConfigError, UserError
from burnish.utils.hub import hub_data
from burnish.utils.installed import require
from burnish.utils.json_text import parse_json
from burnish.utils.paths import resolve
from burnish.utils.reading import checked_path, read_text, understood
from burnish.utils.user_code import absolute, is_file, load_object, names_code, reason

T = TypeVar("T")
COLUMNS = {".csv": ",", ".tsv": "\t"}  # what separates the cells of a row
LARGEST_CELL = 64 << 20  # characters: an image as base64 may be in one
ROWS = 256  # rows of a table that are converted to Python objects at once
LISTED = 10  # problems that one message lists

SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")  # what the datasets library leaves in its folders

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
    """The files of an option."""
    return [resolve(name) for name in ([files] if isinstance(files, str) else files)]


def read_records(path: Path, prompt: str = PROMPT[0], image: str | None = None) -> Iterator[Record]:
    """The records of a file, of a directory that the datasets library saved, of a data set of the hub, or of user code.

    Args:
        path: as ``files_of`` gives it.
        prompt: the key under which lines of text are.
        image: the key under which images of a folder are, each with its prompt in a .txt file of the same name; None
            reads no such folders.

    Raises:
        UserError: it can't be read.
    """
    name = str(path)
    if path.is_dir() and image is not None and not any((path / name).exists() for name in SAVED):
        yield from _captioned(path, prompt, image)
    elif path.is_dir():
        yield from _rows(name, path, _saved(path))
    elif not path.exists() and names_code(name):
        yield from _numbered(name, (_file_of(name) or Path()).parent, _own(name))
    elif not path.exists() and (hub := hub_data(name)) is not None:
        yield from _rows(hub.path, path.parent, rows_of(hub.load(), hub.path))
    elif not path.exists():
        raise UserError(f"{path} can't be read: there is no such file; correct the path")
    elif path.suffix == ".txt":
        yield from _lines(path, lambda line: {prompt: line})
    elif path.suffix in FORMATS:
        yield from FORMATS[path.suffix](path)
    else:
        raise UserError(
            f"{path} can't be read; give {', '.join(FORMATS)}, .txt with a prompt a line, a folder of images with "
            ".txt captions, or one that the datasets library saved"
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
            problems.append(f"{path}: holds no records{'; name a file that is in it' if path.is_dir() else ''}")
    problems += check(found)
    if problems:
        raise data_error(problems)
    return found


def _captioned(folder: Path, prompt: str, image: str) -> Iterator[Record]:
    """The images of a folder with their prompts."""
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp", ".bmp"):
            caption = file.with_suffix(".txt")
            text = read_text(caption).strip() if caption.is_file() else ""
            problem = "" if text else f"has no prompt; write it into {caption.name} in the same folder"
            # absolute, because relative paths are resolved against the folder, which is part of this one already
            yield Record(str(file), file.parent, {prompt: text, image: str(file.absolute())}, problem)


def _index(path: Path) -> Path:
    """The list of records in a folder: metadata.jsonl, as of kept samples and of datasets' image folders, or the only
    .jsonl, as of pairs, or .parquet below data, as of the hub's repositories; any other path as it is."""
    named = path / "metadata.jsonl"
    lists = [named] if named.is_file() else [*path.glob("*.jsonl"), *path.glob("data/*.parquet")]
    return lists[0] if len(lists) == 1 else path


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


def _lines(path: Path, read: Callable[[str], dict[str, Any]]) -> Iterator[Record]:
    """What the lines of a file hold, but for blank ones."""
    name, folder = str(path), path.parent
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            # some editors write a byte order mark, which is not part of the first line
            raw = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if raw.isspace():
                continue
            try:
                values, problem = read(raw.decode().strip()), ""
            except UnicodeDecodeError as error:
                values, problem = {}, f"byte {error.start} is not UTF-8"
            except ValueError as error:
                values, problem = {}, str(error)
            yield Record(f"{name}:{number}", folder, values, problem)


def _object(text: str) -> dict[str, Any]:
    try:
        record = parse_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(record, dict):
        raise ValueError(f"holds {type(record).__name__}, not an object like {{'prompt': 'a cat'}}")
    return record


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
    yield from _numbered(str(path), path.parent, records)


def _numbered(name: str, folder: Path, records: Iterable[Any]) -> Iterator[Record]:
    for number, values in enumerate(records, 1):
        there = isinstance(values, Mapping)
        problem = "" if there else f"holds {type(values).__name__}, not an object"
        yield Record(f"{name}, record {number}", folder, dict(values) if there else {}, problem)


def _columns(path: Path) -> Iterator[Record]:
    """The rows below the line of names. Cells are text, and empty ones are left out; in .tsv files quotation marks are
    characters like others, unless a cell begins with one."""
    csv.field_size_limit(LARGEST_CELL)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=COLUMNS[path.suffix], strict=path.suffix == ".csv")
        try:
            names = next(rows, [])
            if not all(name.strip() for name in names) or len(set(names)) < len(names):
                raise UserError(f"{path}:1 must name the columns, each by a name of its own")
            line = rows.line_num
            for cells in rows:
                line, first = rows.line_num, line + 1
                if any(cells):
                    extra = f"has {len(cells)} cells, but the first line names {len(names)} columns"
                    values = {name: cell for name, cell in zip(names, cells, strict=False) if cell}
                    yield Record(f"{path}:{first}", path.parent, values, extra if len(cells) != len(names) else "")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not text: byte {error.start} is not UTF-8; save it as UTF-8") from None
        except csv.Error as error:
            raise UserError(f"{path}:{rows.line_num} can't be read: {error}; fix that line") from None


def _rows(name: str, folder: Path, rows: Iterable[dict[str, Any]]) -> Iterator[Record]:
    yield from (Record(f"{name}, row {number}", folder, values) for number, values in enumerate(rows, 1))


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    require("pyarrow", str(path))
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as table:
            for group in range(table.num_row_groups):  # one after the other: all at once would be in memory
                for batch in table.iter_batches(batch_size=ROWS, row_groups=[group]):
                    yield from _objects(batch, f"{path}, after row {number}")
                    number += len(batch)
                arrow.default_memory_pool().release_unused()  # or it keeps what images took
    except (OSError, arrow.ArrowException) as error:
        raise UserError(f"{path} can't be read after row {number}: {error}; restore it") from None


FORMATS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".jsonl": partial(_lines, read=_object),
    ".json": _list,
    **dict.fromkeys(COLUMNS, _columns),
    ".parquet": lambda path: _rows(str(path), path.parent, _parquet(path)),
}


def _saved(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a directory that the datasets library saved."""
    require("datasets", f"{path} is a directory, which")
    import datasets

    if (path / "dataset_dict.json").exists():
        splits = sorted(str(file.parent) for file in path.glob("*/state.json"))
        raise UserError(f"{path} holds several splits; name one: {', '.join(splits) or 'but there is none in it'}")
    with understood(f"{path} is no folder that save_to_disk of the datasets library wrote; name a file that is in it"):
        return rows_of(datasets.Dataset.load_from_disk(str(path)), str(path))


def rows_of(table: Any, name: str) -> Iterator[dict[str, Any]]:
    """The rows of a table of the datasets library; ``name`` is that of the data set, for messages.

    Raises:
        UserError: a value can't be read.
    """
    stored = table.with_format("arrow")  # as stored: images stay encoded
    for start in range(0, len(table), ROWS):
        yield from _objects(stored[start : start + ROWS], f"{name}, after row {start}")


def _objects(batch: Any, where: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = batch.to_pylist()
    except (ValueError, OverflowError) as error:  # texts that are not UTF-8, dates that no calendar has
        raise UserError(f"{where}: a value can't be read: {error}; correct it, or leave that column out") from None
    return found


def _file_of(path: str) -> Path | None:
    """The file of a function or class of the user's; None of one in a package."""
    where = path.rpartition(":")[0]
    return Path(absolute(where)) if is_file(where) else None


def _own(path: str) -> Iterator[Any]:
    """The records that a function or class of the user gives.

    Raises:
        UserError: it fails, or gives nothing that one can go through.
    """
    make, number = load_object(path, "data set"), 0
    try:
        for number, record in enumerate(make(), 1):  # noqa: B007
            yield record
    except (Exception, SystemExit) as error:  # the code is the user's: anything may go wrong in it
        raise UserError(
            f"data set {path} fails at record {number + 1}: {reason(error)}; fix it, or give files"
        ) from error


def check_own(path: str) -> bool:
    """Whether an option names a data set by the path of its code, whose file has to be there; nothing is run.

    Raises:
        UserError: it is not, with the way out.
    """
    own = names_code(path)
    if own and (file := _file_of(path)) is not None and not file.is_file():
        raise UserError(f"{path} is a data set of your code, but there is no {path.rpartition(':')[0]}; write it")
    return own
