"""Pictures, videos and sounds by reference: where they come from, and a digest of the content. Imports no torch."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from burnish.types.headers import SIDEWAYS, Header, digest_of, header_of_content, located, seen
from burnish.utils.media import (
    DEFAULT_FPS,
    Spool,
    Unread,
    all_frames,
    as_rgb,
    check_pixels,
    check_room,
    check_sound,
    check_video,
    choose_frames,
    open_picture,
    read_sound,
    video_shape,
)

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

Kind = Literal["image", "video", "audio"]
MOST_CHANNELS = 8
HIGHEST_RATE = 10**6  # of frames, and of samples of a sound, per second
CHECKED_RATE = 16000  # samples per second at which a sound is decoded to see whether it can be


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How pictures and videos are made smaller or larger before a model's processor sees them; None leaves them."""

    min_pixels: int | None = None  # of a picture
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

    def picture(self, picture: Image) -> Image:
        """A picture with pixels within the limits, its shape kept."""
        return _resized(picture, self.min_pixels, self.max_pixels)

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of what ``picture`` makes of a picture of this size."""
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
_spool = Spool()


@dataclass(frozen=True, kw_only=True, slots=True)
class Media:
    """One picture, one video or one sound. Two are equal when their content is, wherever it is stored.

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
        """A file; it must not move while the run needs it.

        Raises:
            OSError: it can't be read.
            ValueError: the path can't be resolved.
        """
        try:
            place = located(path)
        except RuntimeError as error:  # ~ of an unknown user
            raise ValueError(f"{path} can't be resolved: {error}; correct the path") from None
        return cls(kind=kind, digest=seen(place, picture=kind == "image").digest, path=place)

    @classmethod
    def encoded(cls, data: bytes, kind: Kind = "image") -> Media:
        """The content of a file."""
        return cls(kind=kind, digest=digest_of(data), data=_spool.keep(data))

    @classmethod
    def array(cls, pixels: np.ndarray) -> Media:
        """A picture, uint8 [H, W], [H, W, 3] or [H, W, 4]; stored as PNG, which is lossless.

        Raises:
            ValueError: the array has another type or shape.
        """
        from PIL import Image

        if pixels.dtype.name != "uint8" or pixels.ndim not in (2, 3) or 0 in pixels.shape:
            raise ValueError(f"an array of {pixels.dtype} {list(pixels.shape)} is not a picture; give uint8 [H, W, 3]")
        if pixels.ndim == 3 and pixels.shape[2] not in (3, 4):
            raise ValueError(f"an array {list(pixels.shape)} is not a picture; its last axis must be 3 colours")
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

        if samples.dtype.kind not in "fiu" or samples.ndim not in (1, 2) or not samples.size:
            raise ValueError(f"an array of {samples.dtype} {list(samples.shape)} is not a sound")
        if not 0 < rate <= HIGHEST_RATE:
            raise ValueError(
                f"it has {rate:.6g} samples per second, which is not a sound: that must be from 1 to {HIGHEST_RATE}"
            )
        wave = np.atleast_2d(samples)
        if samples.dtype.kind in "iu":
            wave = wave / np.iinfo(samples.dtype).max
        if len(wave) > MOST_CHANNELS or not np.isfinite(wave).all():
            raise ValueError("a sound has up to 8 channels [channels, N] of finite numbers")
        return cls.encoded(_wav(wave.astype("<f4"), rate), "audio")

    @classmethod
    def movie(cls, frames: Sequence[Media], fps: float = DEFAULT_FPS) -> Media:
        """A video given as pictures."""
        content = f"{fps}" + "".join(frame.digest for frame in frames)
        return cls(kind="video", digest=digest_of(content.encode()), frames=tuple(frames), fps=fps)

    def read(self) -> bytes:
        """The encoded file, which a video given as frames doesn't have."""
        assert not self.frames, "a video of frames is not a file"
        if isinstance(self.data, Unread):
            return self.data.read()
        return self.data if self.data is not None else Path(str(self.path)).read_bytes()

    def image(self) -> Image:
        """The picture in RGB, rotated by its EXIF orientation.

        Raises:
            OSError: it can't be read or decoded.
        """
        from PIL import ImageOps

        with open_picture(io.BytesIO(self.read())) as opened:
            ImageOps.exif_transpose(opened, in_place=True)
            return self.fit.picture(as_rgb(opened))

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
        """Check that this is a picture, a video or a sound, without decoding all of it.

        Raises:
            OSError, ImportError, ValueError: as ``image``, ``video`` and ``audio``.
        """
        if self.frames:
            for frame in self.frames:
                frame.check()
        elif self.kind == "image":
            self._header()
        elif self.kind == "audio":
            check_sound(self.read())
        else:
            check_video(self.read())

    def size(self) -> tuple[int, int]:
        """Width and height of a picture as ``image`` gives it, by its header alone.

        Raises:
            OSError: it can't be read.
        """
        header = self._header()
        width, height, turned = header.width, header.height, header.sideways
        if turned is None:
            from PIL.ExifTags import Base

            with open_picture(io.BytesIO(self.read())) as opened:
                turned = opened.getexif().get(Base.Orientation, 1) in SIDEWAYS
        return self.fit.size(height, width) if turned else self.fit.size(width, height)

    def outline(self) -> tuple[int, int]:
        """Width and height before rotation, of a file that has its beginning and its end; others are decoded.

        What is broken in between shows when it is used.

        Raises:
            OSError, ImportError, ValueError: as ``decode``.
        """
        if self.frames:
            return max(frame.outline() for frame in self.frames)
        if self.kind != "image":
            self.check()
            return 0, 0
        header = self._header()
        check_pixels(header.width, header.height)
        return (header.width, header.height) if header.complete else self.decode()

    def stated(self) -> tuple[int, int]:
        """Width and height of a picture before rotation, by its header alone.

        Raises:
            OSError: it can't be read.
        """
        header = self._header()
        return header.width, header.height

    def _header(self) -> Header:
        """Of a picture: what was found where it was read first, unless its file has changed since.

        Raises:
            OSError: it can't be read.
        """
        if self.data is not None:
            return header_of_content(self.digest, self.read)
        found = seen(str(self.path), picture=True)
        if found.header is None:
            raise OSError(found.problem)
        return found.header

    def decode(self) -> tuple[int, int]:
        """Decode all of it once, as cheaply as its format allows; returns width and height before rotation, if it has.

        Raises:
            OSError, ImportError, ValueError: as ``image``, ``video`` and ``audio``; decoders may raise others.
        """
        from PIL import ImageOps

        if self.frames:
            sizes = {frame.decode() for frame in self.frames}
            if len(sizes) != 1:
                raise ValueError(f"its frames differ in size: {', '.join(f'{w}x{h}' for w, h in sorted(sizes))}")
            return sizes.pop()
        if self.kind == "video":
            width, height, count, fps = video_shape(self.read())
            check_room(len(self.fit.chosen(count, fps)), width, height)
            return width, height
        if self.kind == "audio":
            self.audio(CHECKED_RATE)
            return 0, 0
        with open_picture(io.BytesIO(self.read())) as opened:
            width, height = opened.size
            # JPEG: draft mode reads all of the data, and decodes at an eighth of the size
            opened.draft("RGB", (max(width // 8, 1), max(height // 8, 1)))
            ImageOps.exif_transpose(opened, in_place=True)
            if opened.mode == "RGB":
                opened.load()  # a copy in another mode would take as much memory again
            else:
                as_rgb(opened)
        return width, height


def evenly_spaced(count: int, limit: int | None) -> list[int]:
    """Indices of at most ``limit`` of ``count`` frames, the first and the last among them."""
    if limit is None or count <= limit:
        return list(range(count))
    if limit == 1:
        return [0]
    return [round(i * (count - 1) / (limit - 1)) for i in range(limit)]


def _resized(picture: Image, least: int | None, most: int | None) -> Image:
    """A picture within bounds of its number of pixels, its shape kept up to rounding."""
    from PIL.Image import Resampling

    size = _fitted(picture.width, picture.height, least, most)
    return picture if size == picture.size else picture.resize(size, Resampling.BICUBIC)


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
