"""Reading images, videos and sounds that came from somewhere: no program is started for one, and nothing but the
given bytes is opened."""

from __future__ import annotations

import io
import os
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

MOST_PIXELS = 2**26
# formats of pictures alone: PostScript is a program that PIL has Ghostscript run, and others (IPTC) may hold some
IMAGES = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "JPEG2000", "AVIF", "PPM", "TGA", "ICO", "ICNS")
DEEPEST = 2**16 - 1  # value of an image of 16 bits


def open_image(data: bytes) -> Image:
    """``PIL.Image.open``, of ``IMAGES`` alone.

    An image that would take gigabytes of memory is refused by its header alone.

    Raises:
        OSError: it is no image of these formats, or has too many pixels.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        opened = Image.open(io.BytesIO(data), formats=IMAGES)
    except UnidentifiedImageError:
        raise OSError("its format is unknown; save it as PNG") from None
    if opened.width * opened.height > MOST_PIXELS:
        raise OSError(f"it has {opened.width} x {opened.height} pixels, more than {MOST_PIXELS:,}; scale it down")
    return opened


def of_array(values: Any) -> Image:
    """An array [H, W] or [H, W, colours] as an image. Whole numbers up to 255 are of 8 bits, whatever their type.

    Raises:
        OSError, TypeError, ValueError: it is none.
    """
    from PIL.Image import fromarray

    return as_shown(fromarray(in_bytes(values)))


def in_bytes(values: Any) -> Any:
    """An array, of 8 bits where it holds whole numbers up to 255 of whatever type."""
    import numpy as np

    values = np.asarray(values)
    small = values.dtype.kind in "iu" and values.size and values.min() >= 0 and values.max() <= 255
    return values.astype(np.uint8) if small else values


def of_frames(values: Any) -> Any:
    """A video as uint8 [T, H, W, 3], of whole numbers up to 255.

    Raises:
        ValueError: it is none.
    """
    import numpy as np

    values = np.asarray(values)
    right = values.ndim == 4 and values.shape[3] == 3 and values.size and values.dtype.kind in "iu"
    if not right or values.min() < 0 or values.max() > 255:
        raise ValueError(f"an array of {values.dtype} {list(values.shape)} is not a video; give uint8 [T, H, W, 3]")
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
    with _video(data) as video:
        total, rate = sum(1 for _ in video.decode(video=0)), _rate(video)
    kept = set(choose(total, rate))
    with _video(data) as video:
        first = enumerate(islice(video.decode(video=0), max(kept, default=-1) + 1))  # the others are not decoded
        return _pixels(frame for number, frame in first if number in kept), rate, total


def all_frames(data: bytes) -> tuple[list[np.ndarray], float]:
    """Every frame uint8 [H, W, 3] of a video, and its frames per second.

    Raises:
        OSError, ImportError: as ``choose_frames``.
    """
    with _video(data) as video:
        return _pixels(video.decode(video=0)), _rate(video)


def check_video(data: bytes) -> None:
    """Decode the first frame, which shows whether it is a video.

    Raises:
        OSError, ImportError: as ``choose_frames``.
    """
    with _video(data) as video:
        next(video.decode(video=0))


def video_shape(data: bytes) -> tuple[int, int, int, float]:
    """Width, height, number of frames and frames per second of a video, after every frame was decoded once.

    Raises:
        OSError, ImportError: as ``choose_frames``.
    """
    with _video(data) as video:
        sizes = [(frame.width, frame.height) for frame in video.decode(video=0)]
        return *sizes[0], len(sizes), _rate(video)


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

    with _opened(data, "sound", SOUNDS) as sound:
        return np.concatenate(list(_samples(sound, rate)))


def check_sound(data: bytes) -> None:
    """Decode the beginning, which shows whether it is a sound.

    Raises:
        OSError, ImportError: as ``read_sound``.
    """
    with _opened(data, "sound", SOUNDS) as sound:
        next(_samples(sound, 16000))


def _samples(sound: Any, rate: int) -> Iterator[np.ndarray]:
    from av import AudioResampler

    resampler = AudioResampler(format="fltp", rate=rate)  # each channel by itself: their mean is one as loud
    length = 0
    for frame in chain(sound.decode(audio=0), [None]):  # which gives what is left
        for part in resampler.resample(frame):
            length += part.samples
            if length > LONGEST * rate:
                raise OSError(f"it lasts more than {LONGEST} s, the longest that is read")
            yield part.to_ndarray().mean(0)


def _pixels(frames: Iterable[Any]) -> list[np.ndarray]:
    """Decoded frames as uint8 [H, W, 3]; none is an error."""
    pixels: list[np.ndarray] = []
    for frame in frames:
        check_room(len(pixels) + 1, frame.width, frame.height)
        pixels.append(frame.to_ndarray(format="rgb24"))
    if not pixels:
        raise IndexError
    return pixels


def _rate(video: Any) -> float:
    return float(video.streams.video[0].average_rate or DEFAULT_FPS)


def _video(data: bytes) -> AbstractContextManager[Any]:
    return _opened(data, "video", VIDEOS)


@contextmanager
def _opened(data: bytes, what: str, formats: Sequence[str]) -> Iterator[Any]:
    """PyAV's container of a file; what it raises about the file becomes an OSError."""
    try:
        import av
    except ImportError:
        way = ", or give lists of frames" if what == "video" else ""
        raise ImportError(f"{what} files need PyAV: pip install 'burnish[data]'{way}") from None
    try:
        with av.open(io.BytesIO(data), container_options={"format_whitelist": ",".join(formats)}) as container:
            yield container
    except av.FFmpegError as error:
        raise OSError(f"the {what} can't be decoded: {error}") from None
    except (IndexError, StopIteration, ValueError):
        raise OSError(f"the {what} can't be decoded: there is nothing in it") from None


# bytes of media inside of records, which together may be more than a machine's memory

IN_MEMORY = 64 << 20  # bytes that a process keeps in memory before it writes them to the disk


class Unread(ABC):
    """Bytes that lie elsewhere until they are used; pickled, they are bytes."""

    @abstractmethod
    def read(self) -> bytes:
        """They themselves."""

    def __reduce__(self) -> Any:
        return bytes, (self.read(),)


@dataclass(frozen=True, eq=False)
class Spooled(Unread):
    """Bytes of a spool."""

    spool: Spool
    start: int
    length: int

    def read(self) -> bytes:
        return self.spool.read(self.start, self.length)


class Spool:
    """Takes in bytes, in memory or once they are many in a file without a name, which ends with its process."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115  # as long as the process
        self._lock = threading.Lock()  # of the file's position

    def keep(self, data: bytes) -> Spooled:
        """Where the bytes are from now on.

        Raises:
            UserError: they can't be written.
        """
        with self._lock:
            try:
                start = self._file.seek(0, os.SEEK_END)
                self._file.write(data)
            except OSError as error:
                raise UserError(
                    f"images inside of records are kept in a file in {tempfile.gettempdir()}, which can't be "
                    f"written: {error}; free space there, set TMPDIR to another folder, or give the images as files"
                ) from None
        return Spooled(self, start, len(data))

    def read(self, start: int, length: int) -> bytes:
        """What was kept there."""
        with self._lock:
            self._file.seek(start)
            return self._file.read(length)
