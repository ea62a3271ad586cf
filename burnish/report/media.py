"""Pictures, clips and sounds of a run inside the page, which stays small. The folder may come from somebody else."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from burnish.utils.images import waveform
from burnish.utils.video import clip_format, encode_clip, encode_sound, read_clip

LONGEST = 256  # pixels: larger images and clips are scaled down, so that the page stays small
TINY = 64  # pixels: smaller ones are shown with sharp pixels
HEAVIEST = 1 << 20  # bytes of a file that is shown as it is
PLAYED = 1 << 17  # bytes of a clip, and of a sound, that is shown as it is
BUDGET = 14 << 20  # characters of pictures, clips and sounds on a page; what is beyond is only named
CLIPS = 0.8  # share of it that clips and sounds may take; of further clips one frame is shown
FRAMES = 120  # of a clip that are read
LONG = 10  # seconds of a sound that are read
LOW_RATE = 16000  # samples per second of one that is too large
GONE = '<span class="gone">no picture</span>'
ELSEWHERE = '<span class="gone">too large for this page; it is in the folder of the run</span>'
UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, wave.Error, Image.DecompressionBombError)


@dataclass
class Embedded:
    """Files of a run as HTML, each named by its path, while the page's budget lasts."""

    root: Path
    left: int = BUDGET

    def __call__(self, path: Path, words: str) -> str:
        """The file of a sample with its description, or a note that there is none."""
        make: Callable[[Path, str], str]
        make = {".mp4": self._clip, ".webp": self._moving, ".wav": self._sound}.get(path.suffix, self._picture)
        words = f'{escape(words, quote=True)}" data-file="{escape(path.relative_to(self.root).as_posix(), quote=True)}'
        try:
            return make(path, words) if path.is_file() else GONE
        except UNREADABLE:  # truncated, or something else
            return GONE

    def _clip(self, path: Path, words: str) -> str:
        content = path.read_bytes()
        if clip_format() != "mp4":  # PyAV, which could make it smaller, is missing here
            return (self._video(content, words, "") if len(content) <= HEAVIEST else "") or ELSEWHERE
        frames, fps, sound = read_clip(content, FRAMES)
        height, width = frames.shape[1:3]
        small = [_smaller(Image.fromarray(frame)) for frame in frames]
        if max(height, width) > LONGEST or len(content) > PLAYED:
            content = encode_clip(np.stack([np.asarray(frame) for frame in small]), fps, sound, quality="28")
        size = f' width="{small[0].width}" height="{small[0].height}"' + _sharp(width, height)
        played = self._video(content, words, size, controls=sound is not None)
        return played or self._image(_jpeg(small[len(small) // 2]), "jpeg", words, *small[0].size)

    def _video(self, content: bytes, words: str, size: str, *, controls: bool = True) -> str:
        look = "controls" if controls else "autoplay"
        source = self._source(content, "video/mp4", CLIPS)
        return source and f'<video {look} loop muted playsinline aria-label="{words}"{size} src="{source}"></video>'

    def _moving(self, path: Path, words: str) -> str:
        """An animated picture, and the sound that lies beside it."""
        content = path.read_bytes()
        with Image.open(io.BytesIO(content), formats=["WEBP"]) as image:
            first, (width, height) = _smaller(image.convert("RGB")), image.size
        source = self._source(content, "image/webp", CLIPS) if len(content) <= HEAVIEST else ""
        shown = _tag(source, words, width, height) if source else self._image(_jpeg(first), "jpeg", words, *first.size)
        beside = path.with_suffix(".wav")
        named = words.removesuffix(".webp") + ".wav#sound"
        return shown + (self._heard(beside, named) if beside.is_file() else "")

    def _sound(self, path: Path, words: str) -> str:
        with wave.open(str(path)) as file:
            drawn = Image.fromarray(waveform(values_of(file).T))
        return self._image(_png(drawn), "png", words, *drawn.size) + self._heard(path, f"{words}#sound")

    def _heard(self, path: Path, words: str) -> str:
        content = path.read_bytes()
        with wave.open(io.BytesIO(content)) as file:
            if len(content) > PLAYED:
                content = _shorter(values_of(file), file.getframerate())
        source = self._source(content, "audio/wav", CLIPS)
        return f'<audio controls aria-label="{words}" src="{source}"></audio>' if source else ELSEWHERE

    def _picture(self, path: Path, words: str) -> str:
        content, kind = path.read_bytes(), "png"
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            width, height = image.size
            if max(width, height) > LONGEST or len(content) > HEAVIEST:
                smaller = _smaller(image)
                (width, height), content, kind = smaller.size, _jpeg(smaller), "jpeg"
        return self._image(content, kind, words, width, height)

    def _image(self, content: bytes, kind: str, words: str, width: int, height: int) -> str:
        source = self._source(content, f"image/{kind}")
        return _tag(source, words, width, height) if source else ELSEWHERE

    def _source(self, content: bytes, kind: str, share: float = 1.0) -> str:
        """The content as an address, as long as a share of the budget lasts; then "" """
        address = _address(content, kind)
        if len(address) > self.left - (1 - share) * BUDGET:
            return ""
        self.left -= len(address)
        return address


def _smaller(image: Image.Image) -> Image.Image:
    image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    return image


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, format="JPEG", quality=85)
    return buffer.getvalue()


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def values_of(file: wave.Wave_read) -> np.ndarray:
    """The beginning of a sound of 16 bits: float [N, channels] in [-1, 1]."""
    content = file.readframes(LONG * file.getframerate())
    if file.getsampwidth() != 2 or not content:
        raise ValueError("no sound of 16 bits")
    return np.frombuffer(content, "<i2").reshape(-1, file.getnchannels()) / 32767


def _shorter(values: np.ndarray, rate: int) -> bytes:
    """A sound in one channel and at a lower rate."""
    step = max(1, round(rate / LOW_RATE))
    mono = values.mean(1)
    lower = mono[: len(mono) // step * step].reshape(-1, step).mean(1)
    return encode_sound(lower[None].astype(np.float32), rate // step)


def _tag(source: str, words: str, width: int, height: int) -> str:
    return f'<img{_sharp(width, height)} alt="{words}" width="{width}" height="{height}" src="{source}">'


def _sharp(width: int, height: int) -> str:
    return ' class="pixels"' if max(width, height) <= TINY else ""


def _address(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
