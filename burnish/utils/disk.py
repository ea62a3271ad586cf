"""Writing files so that a crash leaves the old content or the new, and so that a disk's refusal is told in words."""

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
_NUMBER = re.compile(r"I/O error.*\(os error (\d+)\)")  # how safetensors tells what the system said


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around whatever writes a file, or into a folder.

    Raises:
        UserError: the disk is full, read-only or broken; the message names the path and the way out.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not the system's: a picture that is none, say
            raise
        raise UserError(refusal(path, error)) from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError" or not (found := _NUMBER.search(str(error))):
            raise
        raise UserError(refusal(path, OSError(int(found[1]), os.strerror(int(found[1]))))) from error


def refusal(path: Path, error: OSError) -> str:
    """What the user is told."""
    if error.errno in FULL:
        return f"no space is left for {path}; make room there and give the same command again"
    why = error.strerror or str(error)
    if error.errno in CLOSED:
        return f"{path} can't be written: {why}; change its permissions, or give another folder to write to"
    return f"{path} can't be written: {why}; see whether its disk is there and in order"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, so that a reader or a crash finds the old content or the new.

    Raises:
        UserError: see ``writing``; the old content is there.
    """
    new = path.with_name(f".{path.name}.new")
    with writing(path):
        try:
            new.unlink(missing_ok=True)
            with new.open("xb") as file:  # never through a link, which a stranger may have left there
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        sync(path.parent)


def sync(folder: Path) -> None:
    """Put the names in a folder on the disk, not only the files: they, too, have to survive a power cut."""
    if os.name == "nt":  # where folders can't be opened, and names are written with the files
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
