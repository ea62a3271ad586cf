"""Reading images, videos and sounds that came from somewhere: no program is started for one, and nothing but the
given bytes is opened."""

from __future__ import annotations

import io
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

MOST_PIXELS = 2**26
DEEPEST = 2**16 - 1  # value of an image of 16 bits


def check_pixels(width: int, height: int) -> None:
    """Refuse an image that would take gigabytes of memory, by its header alone.

    Raises:
        OSError: it has too many pixels.
    """
    if width * height > MOST_PIXELS:
        raise OSError(f"it has {width} x {height} pixels, more than {MOST_PIXELS:,}; scale it down")


def open_image(file: Any) -> Image:
    """``PIL.Image.open``, of all formats but PostScript: PIL has that drawn by Ghostscript, which runs it as a program.

    Raises:
        OSError: it is no image, PostScript, or has too many pixels.
    """
    from PIL import Image

    opened = Image.open(file)
    if opened.format == "EPS":
        opened.close()
        raise OSError("it is PostScript, which is a program; save it as PNG")
    try:
        check_pixels(*opened.size)
    except OSError:
        opened.close()
        raise
    return opened


def of_array(values: Any) -> Image:
    """An array [H, W] or [H, W, colours] as an image. Whole numbers up to 255 are of 8 bits, whatever their type.

    Raises:
        OSError, TypeError, ValueError: it is none.
    """
    import numpy as np
    from PIL.Image import fromarray

    values = np.asarray(values)
    if values.dtype.kind in "iu" and values.size and values.min() >= 0 and values.max() <= 255:
        values = values.astype(np.uint8)
    return as_shown(fromarray(values))


def of_frames(values: Any) -> Any:
    """A video as uint8 [T, H, W, 3], of whole numbers up to 255.

    Raises:
        ValueError: it is none.
    """
    import numpy as np

    values = np.asarray(values)
    right = values.ndim == 4 and values.shape[3] == 3 and values.size and values.dtype.kind in "iu"
    if not right or values.min() < 0 or values.max() > 255:
        raise ValueError(f"an array of {values.dtype} {list(values.shape)} is no video; give uint8 [T, H, W, 3]")
    return values.astype(np.uint8)


def as_shown(image: Image) -> Image:
    """An image that has pixels, in 8 bits per colour; see ``as_rgb``.

    Raises:
        OSError: it has none, or as ``as_rgb``.
    """
    if not image.width or not image.height:
        raise OSError(f"an image of {image.width} x {image.height} pixels has nothing to show")
    return as_rgb(image)


def as_rgb(image: Image) -> Image:
    """An image in 8 bits per colour. One of 16 bits keeps the upper 8, where PIL makes everything above 255 white.

    Raises:
        OSError: it holds fractions, or more than 16 bits, of which nobody knows what is white.
    """
    if image.mode != "F" and not image.mode.startswith("I"):
        return image.convert("RGB")
    import numpy as np
    from PIL.Image import fromarray

    values = np.asarray(image)
    if values.dtype.kind not in "iu" or values.min() < 0 or values.max() > DEEPEST:
        raise OSError("its values are not of 8 or 16 bits; save it with 8 bits per colour")
    return fromarray((values >> 8).astype(np.uint8)).convert("RGB")


DEFAULT_FPS = 24.0  # where frames have no frame rate
# formats of one file; others, such as lists of addresses, would have further files and servers opened
VIDEOS = (
    "mov", "mp4", "m4v", "matroska", "webm", "avi", "mpegts", "mpeg", "mpegvideo", "h264", "hevc", "ivf", "flv", "asf",
    "ogg", "gif", "apng", "nut", "mxf", "dv", "wtv", "rm", "vob",
)  # fmt: skip
SOUNDS = ("wav", "w64", "flac", "mp3", "ogg", "mov", "mp4", "m4a", "matroska", "webm", "aac", "aiff", "au", "caf")
LONGEST = 3600  # seconds of a sound: what is longer is refused, not cut
LARGEST = 8 << 30  # bytes of a video's frames in memory: a file of a megabyte may hold thousands of large ones


def choose_frames(data: bytes, choose: Callable[[int, float], Sequence[int]]) -> tuple[list[np.ndarray], float, int]:
    """Some frames uint8 [H, W, 3] of a video, its frames per second, and the number of frames in the file.

    Args:
        data: the file.
        choose: numbers of the frames to return, of their count and their rate.

    Raises:
        OSError: it can't be decoded.
        ImportError: PyAV is not installed.
    """
    with _decoder("video") as av:
        total = sum(1 for _ in _decoded(av, data))
        rate = _rate(av, data)
        kept = set(choose(total, rate))
        first = enumerate(islice(_decoded(av, data), max(kept, default=-1) + 1))  # the others are not decoded
        return _pixels(frame for number, frame in first if number in kept), rate, total


def all_frames(data: bytes) -> tuple[list[np.ndarray], float]:
    """Every frame uint8 [H, W, 3] of a video, and its frames per second.

    Raises:
        OSError, ImportError: as ``choose_frames``.
    """
    with _decoder("video") as av:
        return _pixels(_decoded(av, data)), _rate(av, data)


def check_video(data: bytes) -> None:
    """Decode the first frame, which shows whether it is a video.

    Raises:
        OSError, ImportError: as ``choose_frames``.
    """
    with _decoder("video") as av:
        next(_decoded(av, data))


def video_shape(data: bytes) -> tuple[int, int, int, float]:
    """Width, height, number of frames and frames per second of a video, after every frame was decoded once.

    Raises:
        OSError, ImportError: as ``choose_frames``.
    """
    with _decoder("video") as av:
        sizes = [(frame.width, frame.height) for frame in _decoded(av, data)]
        if not sizes:
            raise IndexError("it has no frames")
        return *sizes[0], len(sizes), _rate(av, data)


def check_room(count: int, width: int, height: int) -> None:
    """Refuse frames that take too much memory together.

    Raises:
        OSError: they do.
    """
    if count * width * height * 3 > LARGEST:
        raise OSError(
            f"{count} frames of {width} x {height} take more than {LARGEST >> 30} GiB of memory; give a "
            "shorter or smaller one, or let a model that sees take fewer: data.video_max_frames, data.video_fps"
        )


def read_sound(data: bytes, rate: int) -> np.ndarray:
    """The sound of a file in one channel, float32 [N], at ``rate`` samples per second.

    Raises:
        OSError: it can't be decoded, or is longer than ``LONGEST``.
        ImportError: PyAV is not installed.
    """
    import numpy as np

    with _decoder("sound") as av:
        parts = list(_sound(av, data, rate))
        if not parts:
            raise IndexError("it has no sound")
        return np.concatenate(parts)


def check_sound(data: bytes) -> None:
    """Decode the beginning, which shows whether it is a sound.

    Raises:
        OSError, ImportError: as ``read_sound``.
    """
    with _decoder("sound") as av:
        next(_sound(av, data, 16000))


def _sound(av: Any, data: bytes, rate: int) -> Iterator[np.ndarray]:
    resampler = av.AudioResampler(format="fltp", rate=rate)  # each channel by itself: their mean is one as loud
    length = 0
    with _opened(av, data, SOUNDS) as container:
        for frame in container.decode(audio=0):
            for part in resampler.resample(frame):
                length += part.samples
                if length > LONGEST * rate:
                    raise OSError(f"it lasts more than {LONGEST} s, the longest that is read")
                yield part.to_ndarray().mean(0)
        for part in resampler.resample(None):
            yield part.to_ndarray().mean(0)


def _decoded(av: Any, data: bytes) -> Iterator[Any]:
    with _opened(av, data, VIDEOS) as container:
        yield from container.decode(video=0)


def _pixels(frames: Iterable[Any]) -> list[np.ndarray]:
    """Decoded frames as uint8 [H, W, 3]; none is an error."""
    pixels: list[np.ndarray] = []
    for frame in frames:
        check_room(len(pixels) + 1, frame.width, frame.height)
        pixels.append(frame.to_ndarray(format="rgb24"))
    if not pixels:
        raise IndexError("it has no frames")
    return pixels


def _rate(av: Any, data: bytes) -> float:
    with _opened(av, data, VIDEOS) as container:
        return float(container.streams.video[0].average_rate or DEFAULT_FPS)


def _opened(av: Any, data: bytes, formats: Sequence[str]) -> Any:
    return av.open(io.BytesIO(data), container_options={"format_whitelist": ",".join(formats)})


@contextmanager
def _decoder(what: str) -> Iterator[Any]:
    """PyAV; what it raises about a file becomes an OSError."""
    try:
        import av
    except ImportError:
        way = ", or give lists of frames" if what == "video" else ""
        raise ImportError(f"{what} files need PyAV: pip install 'burnish[data]'{way}") from None
    try:
        yield av
    except (av.FFmpegError, IndexError, StopIteration) as error:
        raise OSError(f"the {what} can't be decoded: {str(error) or 'it has no frames'}") from None


# bytes of media that are kept on the disk instead of in memory, in a file without a name that ends with its process

IN_MEMORY = 64 << 20  # bytes that a process keeps in memory before it writes further ones to the disk


class Unread:
    """Bytes that lie elsewhere until they are used; pickled, they are bytes."""

    def read(self) -> bytes:
        """They themselves."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        return bytes, (self.read(),)


@dataclass(frozen=True, eq=False)
class Spooled(Unread):
    """Bytes on the disk."""

    file: Spool
    start: int
    length: int

    def read(self) -> bytes:
        return os.pread(self.file.opened().fileno(), self.length, self.start)


@dataclass
class Spool:
    """Takes in bytes, and says where they are."""

    in_memory: int = IN_MEMORY
    _held: int = 0
    _end: int = 0
    _file: IO[bytes] | None = None
    _lock: Any = field(default_factory=threading.Lock)

    def keep(self, data: bytes) -> bytes | Spooled:
        """The bytes, or where they are once many are in memory.

        Raises:
            UserError: they can't be written.
        """
        with self._lock:
            if self._held + len(data) <= self.in_memory:
                self._held += len(data)
                return data
            try:
                written = self.opened().write(data)
                self.opened().flush()
            except OSError as error:
                raise UserError(
                    f"images inside of records are kept in a file in {tempfile.gettempdir()}, which can't be "
                    f"written: {error}; free space there, set TMPDIR to another folder, or give the images as files"
                ) from None
            start, self._end = self._end, self._end + written
            return Spooled(self, start, written)

    def opened(self) -> IO[bytes]:
        """The file."""
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        return self._file
