"""Tables: rows of .csv and .tsv files, of Parquet files, and of what the datasets library holds."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from burnish.data.lines import repeated
from burnish.utils.errors import UserError
from burnish.utils.reading import read_file

ROWS = 256  # rows of a table that are converted to Python objects at once
COLUMNS = {".csv": ",", ".tsv": "\t"}  # what separates the cells of a row
LARGEST_CELL = 64 << 20  # characters: a picture as base64 may be in one
LARGEST_ROWS = 1 << 29  # bytes of those rows: a file of a kilobyte may repeat one long value in each of them


def read_columns(path: Path) -> Iterator[tuple[int, dict[str, Any], str]]:
    """The rows of a .csv or .tsv file below its line of names: the line of each, its cells, and what is wrong with it.

    Cells are text, and empty ones are left out. In .tsv files quotation marks are characters like others, unless a cell
    begins with one.

    Raises:
        UserError: the file can't be read, or its first line names no columns.
    """
    try:
        text = read_file(path).removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text: byte {error.start} is not UTF-8; save it as UTF-8") from None
    csv.field_size_limit(LARGEST_CELL)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=COLUMNS[path.suffix], strict=path.suffix == ".csv")
    try:
        names = next(rows, [])
        _check_names(path, names)
        line = rows.line_num
        for cells in rows:
            line, first = rows.line_num, line + 1
            if not any(cells):
                continue
            extra = f"has {len(cells)} cells, but the first line names {len(names)} columns"
            values = {name: cell for name, cell in zip(names, cells, strict=False) if cell}
            yield first, values, extra if len(cells) != len(names) else ""
    except csv.Error as error:
        raise UserError(f"{path}:{rows.line_num} can't be read: {error}; mend that line") from None


def _check_names(path: Path, names: list[str]) -> None:
    if not all(name.strip() for name in names):
        raise UserError(f"{path}:1 must name the columns, but has an empty name; name every column there")
    if twice := repeated(names):
        raise UserError(f"{path}:1 names {twice!r} twice; keep one")


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file.

    Raises:
        UserError: it can't be read, or pyarrow is missing.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"{path} needs pyarrow: pip install 'burnish[data]'") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as table:
            names = table.schema_arrow.names
            if twice := repeated(names):
                raise UserError(f"{path} has two columns {twice!r}; keep one")
            for group in range(table.num_row_groups):  # one after the other: all at once would be in memory
                for batch in table.iter_batches(batch_size=_rows_at_once(table, group), row_groups=[group]):
                    yield from _objects(batch, str(path), number)
                    number += len(batch)
                arrow.default_memory_pool().release_unused()  # or it keeps what pictures took
    except (OSError, arrow.ArrowException) as error:
        raise UserError(f"{path} can't be read after row {number}: {error}; restore it") from None


def _rows_at_once(table: Any, group: int) -> int:
    """How many rows of a group fit into memory, should each hold all that its columns hold."""
    about = table.metadata.row_group(group)
    most: int = sum(about.column(i).total_uncompressed_size for i in range(about.num_columns))
    return min(ROWS, max(1, LARGEST_ROWS // max(most, 1)))


def read_saved(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a directory that the datasets library saved.

    Raises:
        UserError: it can't be read, holds several splits, or the library is missing.
    """
    try:
        import datasets
    except ImportError:
        raise UserError(f"{path} is a directory, which needs datasets: pip install 'burnish[data]'") from None
    if (path / "dataset_dict.json").exists():
        splits = sorted(str(file.parent) for file in path.glob("*/state.json"))
        raise UserError(f"{path} holds several splits; name one: {', '.join(splits) or 'but there is none in it'}")
    try:
        table = datasets.Dataset.load_from_disk(str(path))
    except Exception as error:  # whatever the library makes of files that are not its own
        raise UserError(
            f"{path} was not saved by the datasets library ({error}); give a file, or a folder that save_to_disk wrote"
        ) from None
    return rows_of(table, str(path))


def rows_of(table: Any, name: str) -> Iterator[dict[str, Any]]:
    """The rows of a table of the datasets library.

    Args:
        table: of one split.
        name: of the data set, for messages.

    Raises:
        UserError: a value can't be read.
    """
    stored = table.with_format("arrow")  # as stored: pictures stay encoded
    for start in range(0, len(table), ROWS):
        yield from _objects(stored[start : start + ROWS], name, start)


def _objects(batch: Any, name: str, before: int) -> list[dict[str, Any]]:
    """The rows of a part of a table as Python objects; ``before`` are the rows above them."""
    try:
        found: list[dict[str, Any]] = batch.to_pylist()
    except (ValueError, OverflowError) as error:  # texts that are not UTF-8, dates that no calendar has
        row, column = _unreadable(batch)
        raise UserError(
            f"{name}, row {before + row}: {column!r} can't be read: {error}; correct it, or leave that column out"
        ) from None
    return found


def _unreadable(batch: Any) -> tuple[int, str]:
    """The first row with a value that Python can't hold, from 1, and the column that it is in."""
    for row in range(len(batch)):
        for column in batch.column_names:
            try:
                batch.column(column)[row].as_py()
            except (ValueError, OverflowError):
                return row + 1, column
    raise AssertionError("the table was not converted, but each of its values is")
