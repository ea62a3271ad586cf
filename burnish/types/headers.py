"""What is found out about files of media where they are read first: a digest, and what a picture's header tells.

A file is read once; again only where its size or the time of its last change differ. Imports no torch.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from burnish.utils.media import open_picture

ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}  # what stands near the end of a complete file
TAIL = 64  # bytes in which it is looked for
ORIENTATION, SIDEWAYS = 0x112, (5, 6, 7, 8)  # of EXIF: those that swap width and height
TURNS = (b"eXIf", b"exif", b"Exif", b"xmp")  # without any of these a PNG file has no orientation


@dataclass(frozen=True, slots=True)
class Header:
    """Of a picture."""

    width: int  # before rotation
    height: int
    sideways: bool | None  # whether its orientation swaps them; None: only decoding tells
    complete: bool  # it has the end that its format demands


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it was when it was read."""

    digest: str
    header: Header | None  # of a picture
    problem: str  # why it is no picture
    bytes: int
    changed: int  # nanoseconds since 1970


_files: dict[str, Seen] = {}  # by path
_contents: dict[str, Header] = {}  # of pictures inside of records, by digest


def digest_of(data: bytes) -> str:
    """Of the content of a file."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def located(path: str | Path) -> str:
    """The absolute path of a file, without symbolic links.

    Raises:
        RuntimeError: ~ of an unknown user.
    """
    text = os.fspath(path)
    if text.startswith("~"):
        text = str(Path(text).expanduser())
    folder, name = os.path.split(text)
    if name in ("", ".", ".."):
        return os.path.realpath(text)
    place = os.path.join(_real(os.path.join(os.getcwd(), folder)), name)
    return os.path.realpath(place) if os.path.islink(place) else place


@lru_cache(maxsize=1 << 14)
def _real(folder: str) -> str:
    """A folder without symbolic links; files of a data set share theirs."""
    return os.path.realpath(folder)


def regular(path: str) -> os.stat_result:
    """What the file system tells of a file.

    Raises:
        OSError: there is none, or it is a pipe or a device, whose end never comes.
    """
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
        raise OSError("it is a pipe or a device, not a file")
    return about


def seen(path: str, *, picture: bool) -> Seen:
    """What a file is; many prompts may share one, which is read once.

    Args:
        path: as ``located`` gives it.
        picture: whether it is to be one, whose header is then read too.

    Raises:
        OSError: it can't be read.
    """
    about, known = regular(path), _files.get(path)
    same = known is not None and (known.bytes, known.changed) == (about.st_size, about.st_mtime_ns)
    if known is not None and same and (known.header is not None or known.problem or not picture):
        return known
    data = Path(path).read_bytes()
    header, problem = _header(data) if picture else (None, "")
    _files[path] = Seen(digest_of(data), header, problem, about.st_size, about.st_mtime_ns)
    return _files[path]


def header_of_content(digest: str, read: Callable[[], bytes]) -> Header:
    """The header of a picture that is no file, looked at once.

    Raises:
        OSError: it is no picture.
    """
    found = _contents.get(digest)
    if found is None:
        found, problem = _header(read())
        if found is None:
            raise OSError(problem)
        _contents[digest] = found
    return found


def _header(data: bytes) -> tuple[Header | None, str]:
    """A picture's header, or why there is none."""
    from PIL import UnidentifiedImageError

    sideways = None
    try:
        with open_picture(io.BytesIO(data)) as opened:
            (width, height), kind = opened.size, str(opened.format)
            if kind == "JPEG":
                sideways = opened.getexif().get(ORIENTATION, 1) in SIDEWAYS
            elif kind == "PNG" and not any(mark in data for mark in TURNS):
                sideways = False
            opened.verify()  # of a JPEG file it has read the header
        end = ENDS.get(kind)
        complete = end is not None and end in data[-TAIL:]
    except UnidentifiedImageError:
        return None, "cannot identify image file"
    except Exception as error:  # decoders raise errors of any type
        return None, str(error) or type(error).__name__
    return Header(width, height, sideways, complete), ""
