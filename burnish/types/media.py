"""Images, videos and sounds by reference: where they come from, and a digest of the content. Imports no torch."""

from __future__ import annotations

import hashlib
import io
import math
import os
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from burnish.utils.media import (
    DEFAULT_FPS,
    Spool,
    Unread,
    all_frames,
    as_rgb,
    check_room,
    check_sound,
    check_video,
    choose_frames,
    open_image,
    read_sound,
    video_shape,
)

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

Kind = Literal["image", "video", "audio"]
HIGHEST_RATE = 10**6  # of frames, and of samples of a sound, per second
CHECKED_RATE = 16000  # samples per second at which a sound is decoded to see whether it can be


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How images and videos are made smaller or larger before a model's processor sees them; None leaves them."""

    min_pixels: int | None = None  # of an image
    max_pixels: int | None = None
    fps: float | None = None  # frames per second of a video
    max_frames: int | None = None
    video_max_pixels: int | None = None  # of a frame

    def over(self, other: Fit) -> Fit:
        """These limits, and the other's where these set none."""
        return Fit(**{name: getattr(other, name) if value is None else value for name, value in vars(self).items()})

    @property
    def samples(self) -> bool:
        """Whether frames of a video are chosen, which its processor then takes as they are."""
        return self.fps is not None or self.max_frames is not None

    def image(self, image: Image) -> Image:
        """An image with pixels within the limits, its shape kept."""
        return _resized(image, self.min_pixels, self.max_pixels)

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of what ``image`` makes of an image of this size."""
        return _fitted(width, height, self.min_pixels, self.max_pixels)

    def frame(self, frame: np.ndarray) -> np.ndarray:
        """A frame [H, W, 3] with pixels within the limit."""
        import numpy as np
        from PIL.Image import fromarray

        return (
            frame
            if self.video_max_pixels is None
            else np.asarray(_resized(fromarray(frame), None, self.video_max_pixels))
        )

    def chosen(self, count: int, fps: float, limit: int | None = None) -> list[int]:
        """Numbers of the frames that are taken of ``count``, at most ``limit``, evenly spaced."""
        limits = [self.max_frames, limit, None if self.fps is None else max(1, round(count / fps * self.fps))]
        return evenly_spaced(count, min((one for one in limits if one is not None), default=None))


AS_IT_IS = Fit()
ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}  # what stands in the last bytes of a complete file
ORIENTATION, SIDEWAYS = 0x112, (5, 6, 7, 8)  # of EXIF: those that swap width and height
TURNS = (b"eXIf", b"exif", b"Exif", b"xmp")  # without any of these a PNG file has no orientation


class Header(NamedTuple):
    """What an image's file tells without being decoded."""

    width: int  # after its EXIF rotation
    height: int
    complete: bool  # it has the end that its format demands


_spool = Spool()
_files: dict[str, tuple[tuple[int, int], str]] = {}  # size, time of the last change and digest, by path
_headers: dict[str, Header] = {}  # by digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Media:
    """One image, one video or one sound. Two are equal when their content is, wherever it is stored.

    It is decoded when it is needed, never before: a prompt travels as a reference.
    """

    kind: Kind
    digest: str  # of the content: stable across machines and folders
    path: str | None = field(default=None, compare=False)
    data: bytes | Unread | None = field(default=None, compare=False, repr=False)  # an encoded file without a path
    frames: tuple[Media, ...] = field(default=(), compare=False, repr=False)  # of a video given frame by frame
    fps: float = field(default=DEFAULT_FPS, compare=False)  # of such a video; a file knows its own
    fit: Fit = field(default=AS_IT_IS, compare=False, repr=False)
    wanted: Fit = field(default=AS_IT_IS, compare=False, repr=False)  # what its own record says of that

    @classmethod
    def file(cls, path: str | Path, kind: Kind = "image") -> Media:
        """A file; it must not move while the run needs it. It is read again only where it has changed.

        Raises:
            OSError: it can't be read, or is a pipe or a device, whose end never comes.
        """
        place = os.path.abspath(os.path.expanduser(path))
        about = os.stat(place)
        if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
            raise OSError("it is a pipe or a device, not a file")
        stamp = about.st_size, about.st_mtime_ns
        if _files.get(place, (None,))[0] != stamp:
            data = Path(place).read_bytes()
            _files[place] = stamp, digest_of(data)
            if kind == "image":
                with suppress(Exception):  # of any type; who asks for the header gets it
                    _headers[_files[place][1]] = _header(data)
        return cls(kind=kind, digest=_files[place][1], path=place)

    @classmethod
    def encoded(cls, data: bytes, kind: Kind = "image") -> Media:
        """The content of a file."""
        return cls(kind=kind, digest=digest_of(data), data=_spool.keep(data))

    @classmethod
    def array(cls, pixels: np.ndarray) -> Media:
        """An image, uint8 [H, W], [H, W, 3] or [H, W, 4]; stored as PNG, which is lossless.

        Raises:
            ValueError: the array has another type or shape.
        """
        from PIL import Image

        shown = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
        if pixels.dtype.name != "uint8" or not shown or 0 in pixels.shape:
            raise ValueError(f"an array of {pixels.dtype} {list(pixels.shape)} is not an image; give uint8 [H, W, 3]")
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="PNG")
        return cls.encoded(buffer.getvalue())

    @classmethod
    def sound(cls, samples: np.ndarray, rate: int) -> Media:
        """A sound, [N] or [channels, N]; stored as a WAV file of float32, which is lossless.

        Raises:
            ValueError: it is no such array, or holds what is not finite.
        """
        import numpy as np

        if not 0 < rate <= HIGHEST_RATE:
            raise ValueError(
                f"it has {rate:.6g} samples per second, which is not a sound: that must be from 1 to {HIGHEST_RATE}"
            )
        wave, kind = np.atleast_2d(samples), samples.dtype.kind
        right = kind in "fiu" and wave.ndim == 2 and wave.size and len(wave) <= 8
        if not right or not np.isfinite(wave).all():
            raise ValueError(
                f"an array of {samples.dtype} {list(samples.shape)} is not a sound, which has up to 8 channels "
                "[channels, N] of finite numbers"
            )
        if kind in "iu":
            wave = wave / np.iinfo(samples.dtype).max
        return cls.encoded(_wav(wave.astype("<f4"), rate), "audio")

    @classmethod
    def movie(cls, frames: Sequence[Media], fps: float = DEFAULT_FPS) -> Media:
        """A video given as images."""
        content = f"{fps}" + "".join(frame.digest for frame in frames)
        return cls(kind="video", digest=digest_of(content.encode()), frames=tuple(frames), fps=fps)

    def read(self) -> bytes:
        """The encoded file, which a video given as frames doesn't have."""
        assert not self.frames, "a video of frames is not a file"
        if isinstance(self.data, Unread):
            return self.data.read()
        return self.data if self.data is not None else Path(str(self.path)).read_bytes()

    def image(self) -> Image:
        """The image in RGB, rotated by its EXIF orientation.

        Raises:
            OSError: it can't be read or decoded.
        """
        from PIL import ImageOps

        with open_image(self.read()) as opened:
            ImageOps.exif_transpose(opened, in_place=True)
            return self.fit.image(as_rgb(opened))

    def audio(self, rate: int) -> np.ndarray:
        """The sound in one channel, float32 [N], at ``rate`` samples per second.

        Raises:
            OSError: it can't be read or decoded, or is too long.
            ImportError: PyAV is not installed.
        """
        return read_sound(self.read(), rate)

    def video(self, max_frames: int | None = None) -> tuple[np.ndarray, float]:
        """Frames uint8 [T, H, W, 3], at most ``max_frames`` and evenly spaced, and the frames per second of the result.

        Raises:
            OSError: it can't be read or decoded.
            ImportError: it is a file, and PyAV is not installed.
            ValueError: its frames differ in size.
        """
        import numpy as np

        if self.frames:
            fps, total = self.fps, len(self.frames)
            frames = [np.asarray(self.frames[i].image()) for i in self.fit.chosen(total, fps, max_frames)]
        elif max_frames is None and not self.fit.samples:
            frames, fps = all_frames(self.read())
            total = len(frames)
        else:
            frames, fps, total = choose_frames(
                self.read(), lambda count, rate: self.fit.chosen(count, rate, max_frames)
            )
        frames = [self.fit.frame(frame) for frame in frames]
        if len({frame.shape for frame in frames}) != 1:
            sizes = sorted({f"{frame.shape[1]}x{frame.shape[0]}" for frame in frames})
            raise ValueError(f"the frames of a video differ in size: {', '.join(sizes)}")
        return np.stack(frames), fps * len(frames) / total

    def check(self) -> None:
        """Check that this is an image, a video or a sound, without decoding all of it.

        Raises:
            OSError, ImportError, ValueError: as ``image``, ``video`` and ``audio``.
        """
        if self.frames:
            for frame in self.frames:
                frame.check()
        elif self.kind == "image":
            self.header()
        elif self.kind == "audio":
            check_sound(self.read())
        else:
            check_video(self.read())

    def size(self) -> tuple[int, int]:
        """Width and height of an image as ``image`` gives it, by its header alone.

        Raises:
            OSError: it can't be read.
        """
        header = self.header()
        return self.fit.size(header.width, header.height)

    def header(self) -> Header:
        """Of an image; equal ones are looked at once.

        Raises:
            OSError: it can't be read.
        """
        if self.digest not in _headers:
            _headers[self.digest] = _header(self.read())
        return _headers[self.digest]

    def decode(self) -> None:
        """Decode all of it once, as cheaply as its format allows.

        Raises:
            OSError, ImportError, ValueError: as ``image``, ``video`` and ``audio``; decoders may raise others.
        """
        from PIL import ImageOps

        if self.frames:
            for frame in self.frames:
                frame.decode()
            if len(sizes := {frame.header()[:2] for frame in self.frames}) != 1:
                raise ValueError(f"its frames differ in size: {', '.join(f'{w}x{h}' for w, h in sorted(sizes))}")
        elif self.kind == "video":
            width, height, count, fps = video_shape(self.read())
            check_room(len(self.fit.chosen(count, fps)), width, height)
        elif self.kind == "audio":
            self.audio(CHECKED_RATE)
        else:
            with open_image(self.read()) as opened:
                # JPEG: draft mode reads all of the data, and decodes at an eighth of the size
                opened.draft("RGB", (max(opened.width // 8, 1), max(opened.height // 8, 1)))
                ImageOps.exif_transpose(opened, in_place=True)
                if opened.mode == "RGB":
                    opened.load()  # a copy in another mode would take as much memory again
                else:
                    as_rgb(opened)


def digest_of(data: bytes) -> str:
    """Of the content of a file."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _header(data: bytes) -> Header:
    """Of an image in a file."""
    with open_image(data) as opened:
        (width, height), kind = opened.size, str(opened.format)
        if kind == "PNG" and not any(mark in data for mark in TURNS):
            opened.verify()  # in place of decoding, which asking for its orientation would mean
        elif opened.getexif().get(ORIENTATION) in SIDEWAYS:
            width, height = height, width
    return Header(width, height, kind in ENDS and ENDS[kind] in data[-64:])


def evenly_spaced(count: int, limit: int | None) -> list[int]:
    """Indices of at most ``limit`` of ``count`` frames, the first and the last among them."""
    if limit is None or count <= limit:
        return list(range(count))
    return [round(i * (count - 1) / max(limit - 1, 1)) for i in range(limit)]


def _resized(image: Image, least: int | None, most: int | None) -> Image:
    """An image within bounds of its number of pixels, its shape kept up to rounding."""
    from PIL.Image import Resampling

    size = _fitted(image.width, image.height, least, most)
    return image if size == image.size else image.resize(size, Resampling.BICUBIC)


def _fitted(width: int, height: int, least: int | None, most: int | None) -> tuple[int, int]:
    pixels = width * height
    wanted = max(min(pixels, most or pixels), least or 0)
    if wanted == pixels:
        return width, height
    scale = (wanted / pixels) ** 0.5
    up = math.ceil if wanted > pixels else math.floor
    return max(1, up(width * scale)), max(1, up(height * scale))


def _wav(wave: np.ndarray, rate: int) -> bytes:
    """A WAV file of float32 [channels, N]."""
    channels, width = len(wave), 4
    body = wave.T.tobytes()
    form = struct.pack("<HHIIHH", 3, channels, rate, rate * channels * width, channels * width, 8 * width)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks
