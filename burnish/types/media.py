"""Pictures and videos by reference: where the pixels come from, and a digest of what is there. Free of torch."""

from __future__ import annotations

import hashlib
import io
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

DEFAULT_FPS = 24.0  # of frames that come without a rate


@dataclass(frozen=True, kw_only=True)
class Media:
    """One picture or one video. Two are equal when their content is, wherever it is kept.

    Pixels are decoded when they are asked for, and never before: a prompt travels as a reference.
    """

    kind: Literal["image", "video"]
    digest: str  # of the content: stable across machines and folders
    path: str | None = field(default=None, compare=False)
    data: bytes | None = field(default=None, compare=False, repr=False)  # an encoded file, where there is no path
    frames: tuple[Media, ...] = field(default=(), compare=False, repr=False)  # of a video given frame by frame
    fps: float = field(default=DEFAULT_FPS, compare=False)  # of such a video; a file knows its own

    @classmethod
    def file(cls, path: str | Path, kind: Literal["image", "video"] = "image") -> Media:
        """A file, which has to stay where it is.

        Raises:
            OSError: it can't be read.
        """
        try:
            resolved = str(Path(path).expanduser().resolve())
        except RuntimeError as error:  # a user that is not there, or links that lead in a circle
            raise ValueError(f"{path} is no file: {error}; restore it") from None
        return cls(kind=kind, digest=_file_digest(resolved), path=resolved)

    @classmethod
    def encoded(cls, data: bytes, kind: Literal["image", "video"] = "image") -> Media:
        """The content of a file."""
        return cls(kind=kind, digest=_digest(data), data=data)

    @classmethod
    def array(cls, pixels: np.ndarray) -> Media:
        """A picture, uint8 [H, W], [H, W, 3] or [H, W, 4]; kept as PNG, which loses nothing.

        Raises:
            ValueError: it is no such array.
        """
        from PIL import Image

        if pixels.dtype.name != "uint8" or pixels.ndim not in (2, 3) or 0 in pixels.shape:
            raise ValueError(f"an array of {pixels.dtype} {list(pixels.shape)} is no picture; give uint8 [H, W, 3]")
        if pixels.ndim == 3 and pixels.shape[2] not in (3, 4):
            raise ValueError(f"an array {list(pixels.shape)} is no picture; its last axis must be 3 colours")
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="PNG")
        return cls.encoded(buffer.getvalue())

    @classmethod
    def movie(cls, frames: Sequence[Media], fps: float = DEFAULT_FPS) -> Media:
        """A video given as pictures."""
        content = f"{fps}" + "".join(frame.digest for frame in frames)
        return cls(kind="video", digest=_digest(content.encode()), frames=tuple(frames), fps=fps)

    def read(self) -> bytes:
        """The encoded file; a video of frames has none."""
        assert not self.frames, "a video of frames is no file"
        return self.data if self.data is not None else Path(str(self.path)).read_bytes()

    def image(self) -> Image:
        """The picture in RGB, turned upright as its camera noted.

        Raises:
            OSError: it can't be read or is no picture.
        """
        from PIL import Image, ImageOps

        with Image.open(io.BytesIO(self.read())) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")

    def video(self, max_frames: int | None = None) -> tuple[np.ndarray, float]:
        """Frames uint8 [T, H, W, 3], evenly spaced where there are more than asked for, and their rate per second.

        Raises:
            OSError: it can't be read or is no video.
            ImportError: it is a file, and PyAV is not installed.
            ValueError: its frames differ in size.
        """
        import numpy as np

        if self.frames:
            kept = _spread(len(self.frames), max_frames)
            frames = [np.asarray(self.frames[i].image()) for i in kept]
            fps, total = self.fps, len(self.frames)
        else:
            frames, fps, total = _decode(self.read(), max_frames)
        if len({frame.shape for frame in frames}) != 1:
            sizes = sorted({f"{frame.shape[1]}x{frame.shape[0]}" for frame in frames})
            raise ValueError(f"the frames of a video differ in size: {', '.join(sizes)}")
        return np.stack(frames), fps * len(frames) / total

    def check(self) -> None:
        """Look whether this is what it says, without decoding all of it.

        Raises:
            OSError, ImportError, ValueError: as ``image`` and ``video``.
        """
        from PIL import Image

        if self.frames:
            for frame in self.frames:
                frame.check()
        elif self.kind == "image":
            with Image.open(io.BytesIO(self.read())) as opened:
                opened.verify()
        else:
            _decode(self.read(), 1)

    def decode(self) -> tuple[int, int]:
        """Go through all of it once, as cheaply as its format allows: width and height, not turned upright.

        Raises:
            OSError, ImportError, ValueError: as ``image`` and ``video``; decoders may raise others.
        """
        from PIL import Image, ImageOps

        if self.frames:
            sizes = {frame.decode() for frame in self.frames}
            if len(sizes) != 1:
                raise ValueError(f"its frames differ in size: {', '.join(f'{w}x{h}' for w, h in sorted(sizes))}")
            return sizes.pop()
        if self.kind == "video":
            return _through(self.read())
        with Image.open(io.BytesIO(self.read())) as opened:
            width, height = opened.size
            # a JPEG: all of its data are read, but few pixels made of them
            opened.draft("RGB", (max(width // 8, 1), max(height // 8, 1)))
            ImageOps.exif_transpose(opened).convert("RGB")
        return width, height


def _spread(count: int, limit: int | None) -> list[int]:
    """Numbers of at most ``limit`` frames, the first and the last among them."""
    if limit is None or count <= limit:
        return list(range(count))
    if limit == 1:
        return [0]
    return [round(i * (count - 1) / (limit - 1)) for i in range(limit)]


def _decode(data: bytes, limit: int | None) -> tuple[list[np.ndarray], float, int]:
    """Frames of a video file, its rate, and how many frames it has."""
    try:
        import av
    except ImportError:
        raise ImportError("video files need PyAV: pip install 'burnish[data]', or give lists of frames") from None
    try:
        if limit == 1:  # a look at the first frame tells whether it is a video
            return [next(_frames(av, data))], DEFAULT_FPS, 1
        total = sum(1 for _ in _frames(av, data, pixels=False)) if limit else None
        kept = set(_spread(total, limit)) if total is not None else None
        frames = [frame for i, frame in enumerate(_frames(av, data)) if kept is None or i in kept]
        with av.open(io.BytesIO(data)) as container:
            rate = container.streams.video[0].average_rate
    except (av.FFmpegError, IndexError, StopIteration) as error:
        raise OSError(f"no video that can be decoded: {error or 'it has no frames'}") from None
    if not frames:
        raise OSError("no video that can be decoded: it has no frames")
    return frames, float(rate or DEFAULT_FPS), len(frames) if total is None else total


def _through(data: bytes) -> tuple[int, int]:
    """Decode every frame of a video file, and keep none: width and height."""
    try:
        import av
    except ImportError:
        raise ImportError("video files need PyAV: pip install 'burnish[data]', or give lists of frames") from None
    try:
        sizes = list(_frames(av, data, pixels=False))
    except (av.FFmpegError, IndexError) as error:
        raise OSError(f"no video that can be decoded: {error}") from None
    if not sizes:
        raise OSError("no video that can be decoded: it has no frames")
    width, height = sizes[0]
    return width, height


def _frames(av: Any, data: bytes, *, pixels: bool = True) -> Iterator[Any]:
    with av.open(io.BytesIO(data)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24") if pixels else (frame.width, frame.height)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _regular(path: str) -> Path:
    """A file that ends: a pipe or a device would be read for ever."""
    if not stat.S_ISREG((found := Path(path)).stat().st_mode) and not found.is_dir():
        raise OSError("it is a pipe or a device")
    return found


@cache
def _file_digest(path: str) -> str:
    return _digest(_regular(path).read_bytes())  # many prompts may show one file, which is read once
