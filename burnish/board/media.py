"""Files of a run that a page may show. The folder may come from somebody else."""

from __future__ import annotations

import io
import re
import stat
from functools import lru_cache
from pathlib import Path

from PIL import Image

from burnish.report.media import UNREADABLE

KINDS = {
    ".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp", ".mp4": "video/mp4", ".wav": "audio/wav",
}  # fmt: skip
NAME = r"[^/\\\0]{1,200}"
PLACES = re.compile(rf"(validation/\d{{6,9}}/pictures|reference/pictures|alarms|samples/{NAME})/{NAME}")
LARGEST = 256 << 20  # bytes of a file
SIDES = (96, 192, 384, 768)  # longest sides of small copies


class NoSuchFile(Exception):
    """There is none, or none that may be shown."""


def media_file(run: Path, name: str) -> tuple[Path, str]:
    """A file of a run by its path in the folder, and its media type.

    Raises:
        NoSuchFile: it is none of the media that a run writes, or a link leads to it.
    """
    file = run / name
    kind = KINDS.get(file.suffix)
    if kind is None or not PLACES.fullmatch(name) or {".", ".."} & set(name.split("/")):
        raise NoSuchFile
    place = run
    try:
        for part in name.split("/"):
            place = place / part
            if stat.S_ISLNK(place.lstat().st_mode):
                raise NoSuchFile
        about = file.lstat()
    except (OSError, ValueError):
        raise NoSuchFile from None
    if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
        raise NoSuchFile
    return file, kind


def smaller(file: Path, kind: str, side: int) -> tuple[bytes, str]:
    """A picture of at most about ``side`` pixels, as JPEG where it had to be made smaller.

    Raises:
        NoSuchFile: it can't be read.
    """
    try:
        size = next((one for one in SIDES if one >= side), SIDES[-1])
        return _smaller(str(file), file.stat().st_mtime_ns, kind, size)
    except UNREADABLE:
        raise NoSuchFile from None


@lru_cache(maxsize=2000)
def _smaller(file: str, changed: int, kind: str, side: int) -> tuple[bytes, str]:
    content = Path(file).read_bytes()
    if kind == "image/webp":  # it may move
        return content, kind
    with Image.open(io.BytesIO(content), formats=["PNG", "JPEG"]) as image:
        if max(image.size) <= side:
            return content, kind
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, format="JPEG", quality=85)
    return buffer.getvalue(), "image/jpeg"
