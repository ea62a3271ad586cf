"""Atomic writes, and readable errors for full or read-only disks."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from burnish.utils.errors import UserError

FULL = {errno.ENOSPC, errno.EDQUOT}
CLOSED = {errno.EROFS, errno.EACCES, errno.EPERM}
_ERRNO = re.compile(r"I/O error.*\(os error (\d+)\)")  # in messages of safetensors


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Wrap writes to a file or folder.

    Raises:
        UserError: the disk is full, read-only or broken; the message has the path and what to do.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not of the system: an invalid image, for instance
            raise
        raise UserError(write_error(path, error)) from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError" or not (found := _ERRNO.search(str(error))):
            raise
        raise UserError(write_error(path, OSError(int(found[1]), os.strerror(int(found[1]))))) from error


def write_error(path: Path, error: OSError) -> str:
    """Message for a failed write."""
    if error.errno in FULL:
        return f"no space is left for {path}; free some space and run the same command again"
    why = error.strerror or str(error)
    if error.errno in CLOSED:
        return f"{path} can't be written: {why}; change its permissions, or write to another folder"
    return f"{path} can't be written: {why}; check its disk"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers, and a crash, see the old content or the new.

    Raises:
        UserError: see ``writing``; the old content is kept.
    """
    new = path.with_name(f".{path.name}.new")
    with writing(path):
        try:
            new.unlink(missing_ok=True)
            with new.open("xb") as file:  # never through a link: the folder may come from somebody else
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        sync(path.parent)


def sync(folder: Path) -> None:
    """Flush a folder's entries to disk, so that new file names survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
