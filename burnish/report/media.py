"""Images, clips and sounds of a run, small enough for a page or a card. The folder may come from somebody else."""

from __future__ import annotations

import base64
import io
import itertools
import wave
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageSequence

from burnish.types.media import evenly_spaced
from burnish.utils.images import strip, waveform
from burnish.utils.media import choose_frames, read_sound
from burnish.utils.records import leads_out
from burnish.utils.video import encode_clip, encode_sound

LONGEST = 256  # pixels: larger images and clips are scaled down
HEAVIEST = 1 << 20  # bytes of a file that is taken as it is
PLAYED = 1 << 17  # bytes of a clip, and of a sound, that is taken as it is
BUDGET = 14 << 20  # characters of all media on a page
FRAMES = 120  # of a clip that are read
SECONDS = 10  # of a sound that are read
AUDIO_RATE, LOW_RATE = 48000, 16000  # samples per second of a sound that is too large
STRIP = 3  # frames of a clip in one image
UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, wave.Error, Image.DecompressionBombError, ImportError)

Embedded = dict[str, Any]  # addresses of an image, a video and a sound, and the size in pixels


def embedded(folder: Path, names: Iterable[str]) -> dict[str, Embedded]:
    """Media by their path in a run's folder, as data: addresses; those beyond the budget of a page are left out."""
    media: dict[str, Embedded] = {}
    left = BUDGET
    for name in dict.fromkeys(names):
        try:
            made = {} if leads_out(folder / name, folder) else _embed(folder / name)
        except UNREADABLE:  # truncated, or something else
            continue
        size = sum(len(value) for value in made.values() if isinstance(value, str))
        if made and size <= left:
            media[name] = made
            left -= size
    return media


class Medium(NamedTuple):
    """What a file holds: an image is a frame, and a sound by itself has none."""

    frames: list[np.ndarray]  # uint8 [H, W, 3]
    rate: float  # of frames, per second
    sound: tuple[np.ndarray, int] | None  # [channels, N] in [-1, 1], and samples per second


def read_medium(path: Path, most: int = FRAMES) -> Medium:
    """The first frames of an image or a clip, or the beginning of a sound."""
    match path.suffix:
        case ".wav":
            with wave.open(str(path)) as file:
                content = file.readframes(SECONDS * file.getframerate())
                if file.getsampwidth() != 2 or not content:
                    raise ValueError("no sound of 16 bits")
                values = np.frombuffer(content, "<i2").reshape(-1, file.getnchannels()) / 32767
                return Medium([], 0.0, (values.T, file.getframerate()))
        case ".mp4":
            content, sound = path.read_bytes(), None
            frames, rate, _ = choose_frames(content, lambda count, rate: range(min(count, most)))
            with suppress(OSError):  # it has none
                mono = read_sound(content, AUDIO_RATE)[: round(len(frames) / rate * AUDIO_RATE)]
                sound = mono[None], AUDIO_RATE
            return Medium(frames, rate, sound)
    with Image.open(path, formats=["PNG", "WEBP"]) as image:
        shown = itertools.islice(ImageSequence.Iterator(image), most)
        arrays = [np.asarray(frame.convert("RGB")) for frame in shown]
        return Medium(arrays, 1000 / (image.info.get("duration") or 100), None)  # known once a frame is read


def _embed(path: Path) -> Embedded:
    content, medium = path.read_bytes(), read_medium(path)
    if path.suffix == ".wav":
        values, rate = medium.sound  # type: ignore[misc]  # the file is one
        if len(content) > PLAYED:  # one channel, at a lower rate
            step = max(1, round(rate / LOW_RATE))
            lower = values.mean(0)[: values.shape[1] // step * step].reshape(1, -1, step).mean(2)
            content = encode_sound(lower.astype(np.float32), rate // step)
        return _image(waveform(values)) | {"sound": _address(content, "audio/wav")}
    height, width = medium.frames[0].shape[:2]
    if path.suffix == ".mp4":
        small = np.stack([np.asarray(_smaller(frame)) for frame in medium.frames])
        if max(height, width) > LONGEST or len(content) > PLAYED:
            content = encode_clip(small, medium.rate, medium.sound, quality="28")
        size, audible = small.shape[2:0:-1], medium.sound is not None
        return {"video": _address(content, "video/mp4"), "size": size, "audible": audible}
    small_file = len(content) <= HEAVIEST and (path.suffix == ".webp" or max(height, width) <= LONGEST)
    kept = {"image": _address(content, f"image/{path.suffix[1:]}"), "size": (width, height)}
    made = kept if small_file else _image(medium.frames[0])
    beside = path.with_suffix(".wav")
    return made | ({"sound": _embed(beside)["sound"]} if path.suffix == ".webp" and beside.is_file() else {})


def _smaller(frame: np.ndarray) -> Image.Image:
    image = Image.fromarray(frame)
    image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    return image


def _image(frame: np.ndarray) -> Embedded:
    small = _smaller(frame)
    return {"image": _address(encoded(small, quality=85), "image/jpeg"), "size": small.size}


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """An image as a file."""
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def _address(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def png(path: Path) -> bytes | None:
    """A small PNG file of an image, of some frames of a clip, or of a sound over time; None if it can't be read."""
    try:
        frames, _, sound = read_medium(path)
    except UNREADABLE:
        return None
    if sound is not None and not frames:
        frames = [waveform(sound[0])]
    small = [np.asarray(_smaller(frames[i])) for i in evenly_spaced(len(frames), STRIP)]
    return encoded(Image.fromarray(strip(small)), "PNG", optimize=True)
