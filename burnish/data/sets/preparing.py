"""Writes a named set into a folder: records as lines of JSON, pictures beside them, and where all of it comes from."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from burnish.data.sets.catalogue import FOLDER, GITHUB, SETS, Split, shipped_rows
from burnish.data.sets.reading import pictures_in
from burnish.data.tables import rows_of
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from burnish.utils.http import HttpError, request

LARGEST = 64 << 20  # bytes of a file that is fetched
PATIENCE = 300.0  # seconds for one
KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"RIFF": "webp", b"GIF8": "gif", b"BM": "bmp"}


def prepare(name: str, folder: Path = FOLDER) -> list[tuple[Path, int]]:
    """Write a set below a folder, in one of its name.

    Returns:
        Each file with its number of records.

    Raises:
        UserError: something can't be had, is not what was expected, or would replace other data.
    """
    chosen, target = SETS[name], folder / name
    written = []
    notes = [f"{name}: {chosen.what}", f"licence: {chosen.licence}"]
    for split, source in chosen.splits.items():
        path = target / f"{split}.jsonl"
        rows = list(_stored(_rows(name, source, target), target))
        if source.count is not None and len(rows) != source.count:
            raise UserError(
                f"{source.where} has {len(rows)} records, but {source.count} were expected: it is not the {name} that "
                "Burnish knows; look at it, and read it by its own keys as data.train_files"
            )
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        if path.exists() and path.read_bytes() != content:
            raise UserError(f"{path} is there already with other content; move it away, or give another --output")
        _write(path, content)
        written.append((path, len(rows)))
        notes.append(f"{path.name}: {source.where}, sha256 {hashlib.sha256(content).hexdigest()}")
    _write(target / "SOURCE.txt", ("\n".join(notes) + "\n").encode())
    return written


def _rows(name: str, source: Split, target: Path) -> Iterable[dict[str, Any]]:
    if source.archives is not None:
        return _understood(source, source.archives.rows(target))
    if source.made is not None:
        return source.made()
    if source.shipped:
        return shipped_rows(source.shipped)
    assert source.read is not None, "a set that comes from elsewhere has a reader"
    if source.hub is not None:
        return _understood(source, source.read(rows_of(source.hub.load(), source.hub.path)))
    url = f"{GITHUB}/{source.github}"
    try:
        content = request("GET", url, content=None, seconds=PATIENCE, largest=LARGEST)
    except HttpError as error:
        raise UserError(
            f"{url} can't be fetched: {error}; where it can be reached, run: burnish data prepare {name}, and copy "
            f"the folder data/{name}"
        ) from None
    try:
        return _understood(source, source.read(content.decode()))
    except UnicodeDecodeError as error:
        raise UserError(f"{url} is not text: byte {error.start} is not UTF-8; look at it") from None


def _understood(source: Split, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    number = 0
    try:
        for row in rows:
            number += 1
            yield row
    except (KeyError, ValueError, TypeError, IndexError, SyntaxError, AttributeError, zipfile.BadZipFile) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{source.where} is not as its makers published it, after record {number}: {type(error).__name__}: "
            f"{error}; look at it, and read it by its own keys as data.train_files"
        ) from error


def _stored(rows: Iterable[dict[str, Any]], target: Path) -> Iterator[dict[str, Any]]:
    """Records with their pictures as files, named by their content."""
    for row in rows:
        pictures = [_picture(one, target) for one in pictures_in(row)]
        yield row | {"images": pictures} if pictures else row


def _picture(value: Any, target: Path) -> str:
    content = value.get("bytes") if isinstance(value, dict) else None
    if not isinstance(content, bytes):
        raise UserError(f"{target.name} has a picture that is no encoded one; look at its data set on the hub")
    kind = next((kind for head, kind in KINDS.items() if content.startswith(head)), "img")
    name = f"pictures/{hashlib.sha256(content).hexdigest()[:20]}.{kind}"
    if not (target / name).exists():
        _write(target / name, content)
    return name


def _write(path: Path, content: bytes) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
