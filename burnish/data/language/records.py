"""Records from files: an object each, with where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.data.lines import decoded, parse_object, read_lines
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json, read_object
from burnish.utils.paths import resolve
from burnish.utils.reading import read_text

ROWS = 256  # rows of a table that are made into Python objects at once
SUFFIXES = (".jsonl", ".json", ".parquet")


@dataclass(frozen=True)
class Record:
    """An object of a file, or why there is none."""

    where: str  # file:line, or file, row n
    folder: Path  # where relative paths start
    values: dict[str, Any]
    problem: str = ""


def files_of(files: str | Sequence[str]) -> list[Path]:
    """The paths that an option names.

    Raises:
        UserError: it names none.
    """
    names = [files] if isinstance(files, str) else list(files)
    if not names:
        raise UserError("the list of data files is empty; name at least one")
    return [resolve(name) for name in names]


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file or of a directory that the datasets library saved, in order, counted from 1.

    Raises:
        UserError: it can't be read at all.
    """
    if path.is_dir():
        yield from _dataset(path)
    elif not path.exists():
        raise UserError(f"{path} can't be read: there is no such file")
    elif path.suffix == ".jsonl":
        for number, line in read_lines(path):
            where = f"{path}:{number}"
            try:
                yield Record(where, path.parent, parse_object(decoded(line)))
            except ValueError as error:
                yield Record(where, path.parent, {}, str(error))
    elif path.suffix == ".json":
        yield from _list(path)
    elif path.suffix == ".parquet":
        yield from _table(path)
    else:
        raise UserError(f"{path} is none of {', '.join(SUFFIXES)} or a directory that the datasets library saved")


def _list(path: Path) -> Iterator[Record]:
    text = read_text(path)
    try:
        records = parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} is not JSON that can be read: {error}; mend it, or give another file") from None
    if not isinstance(records, list):
        raise UserError(f"{path} holds {type(records).__name__}; it must be a list of objects")
    for number, record in enumerate(records, 1):
        where = f"{path}, record {number}"
        if isinstance(record, dict):
            yield Record(where, path.parent, record)
        else:
            yield Record(where, path.parent, {}, f"holds {type(record).__name__}, not an object")


def _table(path: Path) -> Iterator[Record]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"{path} needs pyarrow: pip install 'burnish[data]'") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield Record(f"{path}, row {number}", path.parent, values)
    except (OSError, arrow.ArrowException) as error:
        raise UserError(f"{path} can't be read after row {number}: {error}; restore it") from None


def _dataset(path: Path) -> Iterator[Record]:
    try:
        import datasets
    except ImportError:
        raise UserError(f"{path} is a directory, which needs datasets: pip install 'burnish[data]'") from None
    if (path / "dataset_dict.json").exists():
        splits = read_object(path / "dataset_dict.json").get("splits") or ()
        raise UserError(f"{path} holds several splits; name one: {', '.join(str(path / split) for split in splits)}")
    try:
        table = datasets.Dataset.load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{path} is no directory that the datasets library saved ({error}); give a file, or what save_to_disk wrote"
        ) from None
    stored = table.with_format("arrow")  # as it is kept: pictures stay encoded
    for start in range(0, len(table), ROWS):
        for number, values in enumerate(stored[start : start + ROWS].to_pylist(), start + 1):
            yield Record(f"{path}, row {number}", path, values)
