"""Reading files that users name: errors name the file and say what to do."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from burnish.utils.errors import UserError, first_line, out_of_memory


def checked_path(text: str, what: str = "") -> Path:
    """A path with ``~`` expanded; it need not exist.

    Args:
        text: what the user wrote.
        what: the option, for messages.

    Raises:
        UserError: it is no valid path.
    """
    if not text:
        raise UserError(f"{what or 'a path'} is empty; give a path, or leave the option out")
    subject = f"{what} is {text}" if what else str(text)
    if "${" in text:
        raise UserError(f"{subject}, but only a shell replaces variables; write the path without, or give it there")
    try:
        path = Path(text).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.stat(path)
    except (OSError, RuntimeError, ValueError) as error:  # no such user, a NUL, or half of a surrogate pair
        raise UserError(f"{subject}, which is not a path: {error}; give another") from None
    return path


def read_file(path: Path) -> bytes:
    """The content of a file.

    Raises:
        UserError: it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UserError(f"{path} can't be read: {why}; give another, or restore it") from None


def read_text(path: Path) -> str:
    """The content of a text file, without a byte order mark.

    Raises:
        UserError: it can't be read, or is not UTF-8.
    """
    try:
        return read_file(path).removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text: byte {error.start} is not UTF-8; save it as UTF-8") from None


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Turn any exception of a library about a user's file into a UserError.

    Args:
        what: begins the message, such as "model.path is x, which can't be loaded".

    Raises:
        UserError: with the first line of the library's message.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        said = first_line(error, "no reason is given")
        # diffusers leaves out names of what it could not import
        missing = isinstance(error, ImportError | NameError)
        way = "install the package that this comes from" if missing else "restore its files"
        raise UserError(f"{what}: {type(error).__name__}: {said}; {way}, or give another") from error
