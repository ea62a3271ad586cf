"""Images, videos and sounds of records: paths, bytes, base64, arrays, lists of frames; and a look at all of them."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from burnish.data.records import data_error
from burnish.data.values import shown
from burnish.types.media import HIGHEST_RATE, Fit, Kind, Media
from burnish.utils.errors import UserError
from burnish.utils.media import DEFAULT_FPS, as_rgb, in_bytes

IMAGE_SIZES = {"min_pixels": "min_pixels", "max_pixels": "max_pixels"}  # a record's key, and the field of ``Fit``
VIDEO_SIZES = {"fps": "fps", "max_frames": "max_frames", "max_pixels": "video_max_pixels"}
UNKNOWN_SIZES = (
    "resized_height", "resized_width", "nframes", "min_frames", "total_pixels", "video_start", "video_end",
)  # fmt: skip
THREADS = 8  # that decode, at most: decoders release the GIL, and more would not make disks faster
DECODED = 2000  # images, videos and sounds that are decoded; of more, the headers and ends of the others are read
SLOWEST = 1e-3  # frames per second
NAMES: dict[Kind, str] = {"image": "an image", "video": "a video", "audio": "a sound"}
# keys of an object under which it may be
INSIDE: dict[Kind, tuple[str, ...]] = {
    "image": ("bytes", "base64", "path", "image", "url", "array"),
    "video": ("bytes", "base64", "path", "video", "frames", "url"),
    "audio": ("bytes", "base64", "data", "path", "audio", "url"),
}


def all_of(value: Any, kind: Kind, folder: Path, *, single: bool = False) -> tuple[Media, ...]:
    """One image, video or sound, or a list of them; with ``single`` a list holds the frames of one video.

    Raises:
        ValueError: one of them is none.
    """
    several = isinstance(value, list) and not single and not (kind == "image" and _is_array(value))
    return tuple(media_of(item, kind, folder) for item in (value if several else [value]))


def media_of(value: Any, kind: Kind, folder: Path, fps: Any = None) -> Media:
    """One image, video or sound; ``fps`` is how fast frames play.

    Raises:
        ValueError: it is none.
    """
    what = NAMES[kind]
    if isinstance(value, Mapping):
        if kind == "audio" and value.get("array") is not None and type(value.get("sampling_rate")) is int:
            import numpy as np

            try:
                return Media.sound(np.asarray(value["array"]), value["sampling_rate"])
            except (ValueError, TypeError) as error:
                raise ValueError(f"has a sound that can't be read: {error}") from None
        inside = next((value[key] for key in INSIDE[kind] if value.get(key) is not None), None)
        if inside is None:
            keys = ", ".join(map(repr, value))
            raise ValueError(f"has {what} with keys {keys}; give one of {', '.join(INSIDE[kind])}")
        return fitted(media_of(inside, kind, folder, value.get("fps")), value)
    if kind == "image" and (_is_array(value) or hasattr(value, "getbands")):  # of PIL, from code of the user
        return _array(value)
    if kind == "video" and isinstance(value, list):
        if not value:
            raise ValueError("has a video without frames")
        fps = DEFAULT_FPS if fps is None else fps
        if isinstance(fps, bool) or not isinstance(fps, int | float) or not SLOWEST <= fps <= HIGHEST_RATE:
            raise ValueError(
                f"has a video of {shown(fps)} frames per second; it must be a number from {SLOWEST} to {HIGHEST_RATE}"
            )
        return Media.movie([media_of(frame, "image", folder) for frame in value], float(fps))
    if kind == "audio" and (isinstance(value, list) or hasattr(value, "dtype")):
        raise ValueError("has a sound that is an array; give {'array': ..., 'sampling_rate': ...}")
    media = _encoded(value, kind, folder)
    if problem := _problem(media):
        raise ValueError(problem)
    return media


def _is_array(value: Any) -> bool:
    """Whether this is the pixels of one image: [H, W] or [H, W, colours]."""
    if hasattr(value, "dtype"):
        return True
    lengths = []
    while isinstance(value, list) and value:
        lengths.append(len(value))
        value = value[0]
    numbers = isinstance(value, int | float) and not isinstance(value, bool)
    return numbers and (len(lengths) == 2 or (len(lengths) == 3 and lengths[2] in (1, 3, 4)))


def fitted(media: Media, said: Mapping[str, Any]) -> Media:
    """An image or video in the size that its record asks for.

    Args:
        media: it.
        said: the keys beside it, in the words of Qwen's and verl's data.

    Raises:
        ValueError: a size is no positive number, or is said in a way that is not known here.
    """
    if media.kind == "audio":
        return media
    video = media.kind == "video"
    if other := next((key for key in UNKNOWN_SIZES if said.get(key) is not None), None):
        known = "fps, max_frames and max_pixels" if video else "min_pixels and max_pixels"
        raise ValueError(f"has {NAMES[media.kind]} with {other!r}, which is not known; give {known}")
    names = VIDEO_SIZES if video else IMAGE_SIZES
    given = {key: said[key] for key in names if said.get(key) is not None}
    if video and media.frames:
        given.pop("fps", None)  # it says how fast they were taken
    for key, size in given.items():
        right = isinstance(size, int) or (isinstance(size, float) and key == "fps")
        if isinstance(size, bool) or not right or not 0 < size < HIGHEST_RATE**2:
            raise ValueError(f"has {NAMES[media.kind]} with {key} {shown(size)}; it must be a positive number")
    sizes = {names[key]: size for key, size in given.items()}
    if sizes.get("min_pixels", 0) > sizes.get("max_pixels", math.inf):
        raise ValueError(f"has an image with min_pixels {sizes['min_pixels']}, above max_pixels {sizes['max_pixels']}")
    return replace(media, wanted=Fit(**sizes).over(media.wanted)) if sizes else media


def _encoded(value: Any, kind: Kind, folder: Path) -> Media:
    what = NAMES[kind]
    if isinstance(value, bytes):
        return Media.encoded(value, kind)
    if not isinstance(value, str) or not value:
        raise ValueError(f"has {what} that is {shown(value)}; it must be a path, bytes, base64 or an array")
    if value.startswith(("http://", "https://")):
        raise ValueError(f"has {what} at {shown(value)}; download it: Burnish opens no URLs")
    if value.startswith("data:"):
        return Media.encoded(_base64(value.partition(",")[2], what), kind)
    # a string: a Path for each of many files would cost more than looking at them
    path = os.path.join(folder, os.path.expanduser(value.removeprefix("file://")))
    try:
        return Media.file(path, kind)
    except (OSError, ValueError) as error:
        if len(value) > 64 and "." not in value:  # longer than file names are, and without a suffix
            return Media.encoded(_base64(value, what), kind)
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"has {what} {shown(path)} that can't be read: {reason}") from None


def _base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"has {what} that is neither a path nor base64: {shown(text)}") from None


def _array(value: Any) -> Media:
    pixels = in_bytes(as_rgb(value) if hasattr(value, "getbands") else value)  # lists of Parquet have no type
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    return Media.array(pixels)


@lru_cache(maxsize=10_000)
def _problem(media: Media) -> str:
    """Why it can't be decoded, "" if it can, by an image's header, and the beginning of a video or a sound."""
    try:
        media.check()
    except Exception as error:  # decoders raise errors of any type
        return f"has {NAMES[media.kind]} {media.path or 'in bytes'} that can't be decoded: {error}"
    return ""


def check_media(
    found: Iterable[tuple[str, Media]], refusal: Callable[[int, int], str] = lambda width, height: ""
) -> None:
    """Refuse images, videos and sounds that can't be decoded, before a run; equal ones are looked at once.

    Of many, evenly spaced ones are decoded; of the others an image must have a header that can be read, and its end.

    Args:
        found: images, videos and sounds, each with the file and line of its record.
        refusal: why the model can't read images of a width and height; "" if it can.

    Raises:
        UserError: it names the first records; the others are counted.
    """
    records: dict[Media, dict[str, None]] = {}  # of each, the records that name it, in order
    for where, media in found:
        records.setdefault(media, {})[where] = None
    every, refused = -(-len(records) // DECODED), cache(refusal)  # the sizes of a data set repeat

    def look(number: int, media: Media) -> str:
        name = f"has {NAMES[media.kind]} {media.path or 'in bytes'} that"
        try:
            # large ones take seconds to decode, and their header tells whether they are used
            if media.kind == "image" and (why := refused(*media.size())):
                return f"{name} {why}"
            if number % every == 0 or (media.kind == "image" and not media.header().complete):
                media.decode()
        except UserError:  # about the model
            raise
        except Exception as error:  # decoders raise errors of any type
            return f"{name} can't be decoded: {error}"
        return ""

    with ThreadPoolExecutor(max(1, min(THREADS, os.cpu_count() or 1))) as pool:
        told = pool.map(look, range(len(records)), records)
        problems = [
            f"{where}: {problem}" for problem, each in zip(told, records.values(), strict=True) if problem
            for where in each
        ]  # fmt: skip
    if problems:
        raise data_error(problems)
