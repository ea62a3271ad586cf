"""Pictures, clips and sounds of a run, small enough for a page or a card. The folder may come from somebody else."""

from __future__ import annotations

import base64
import io
import itertools
import wave
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageSequence

from burnish.config.run_folder import RunFolder
from burnish.report.prompts import of_prompt
from burnish.report.samples import read_samples
from burnish.types.media import evenly_spaced
from burnish.utils.images import grid, strip, waveform
from burnish.utils.media import choose_frames, read_sound
from burnish.utils.records import leads_out
from burnish.utils.video import clip_format, encode_clip, encode_sound

LONGEST = 256  # pixels: larger images and clips are scaled down
HEAVIEST = 1 << 20  # bytes of a file that is taken as it is
PLAYED = 1 << 17  # bytes of a clip, and of a sound, that is taken as it is
BUDGET = 14 << 20  # characters of all media on a page
FRAMES = 120  # of a clip that are read
SECONDS = 10  # of a sound that are read
AUDIO_RATE, LOW_RATE = 48000, 16000  # samples per second of a sound that is too large
PROMPTS, EACH = 6, 3  # rows of a sheet, and samples of each side of a row
CLIPS, STRIP = (".mp4", ".webp"), 3  # frames of a clip, of which one is shown on a side
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


def _embed(path: Path) -> Embedded:
    content = path.read_bytes()
    if path.suffix == ".mp4":
        return _clip(content)
    if path.suffix == ".wav":
        with wave.open(io.BytesIO(content)) as file:
            values, rate = values_of(file), file.getframerate()
        drawn = Image.fromarray(waveform(values.T))
        return _picture(drawn) | {"sound": _address(_sound(content, values, rate), "audio/wav")}
    with Image.open(io.BytesIO(content), formats=["PNG", "WEBP"]) as image:
        small = len(content) <= HEAVIEST and (image.format == "WEBP" or max(image.size) <= LONGEST)
        kind, size = (image.format or "").lower(), image.size
        made = {"image": _address(content, f"image/{kind}"), "size": size} if small else _picture(image)
    beside = path.with_suffix(".wav")
    return made | ({"sound": _embed(beside)["sound"]} if path.suffix == ".webp" and beside.is_file() else {})


def _clip(content: bytes) -> Embedded:
    if clip_format() != "mp4":  # PyAV, which could make it smaller, is missing here
        return {"video": _address(content, "video/mp4"), "size": [None, None]} if len(content) <= HEAVIEST else {}
    frames, rate = _decoded(content)
    sound: tuple[np.ndarray, int] | None = None
    with suppress(OSError):  # it has none
        mono = read_sound(content, AUDIO_RATE)[: round(len(frames) / rate * AUDIO_RATE)]
        sound = mono[None], AUDIO_RATE
    small = np.stack([np.asarray(_smaller(Image.fromarray(frame))) for frame in frames])
    if max(frames[0].shape) > LONGEST or len(content) > PLAYED:
        content = encode_clip(small, rate, sound, quality="28")
    return {"video": _address(content, "video/mp4"), "size": small.shape[2:0:-1], "audible": sound is not None}


def _sound(content: bytes, values: np.ndarray, rate: int) -> bytes:
    """A large sound in one channel and at a lower rate."""
    if len(content) <= PLAYED:
        return content
    step = max(1, round(rate / LOW_RATE))
    mono = values.mean(1)
    lower = mono[: len(mono) // step * step].reshape(-1, step).mean(1)
    return encode_sound(lower[None].astype(np.float32), rate // step)


def values_of(file: wave.Wave_read) -> np.ndarray:
    """The beginning of a sound of 16 bits: float [N, channels] in [-1, 1]."""
    content = file.readframes(SECONDS * file.getframerate())
    if file.getsampwidth() != 2 or not content:
        raise ValueError("no sound of 16 bits")
    return np.frombuffer(content, "<i2").reshape(-1, file.getnchannels()) / 32767


def _smaller(image: Image.Image) -> Image.Image:
    image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    return image


def _picture(image: Image.Image) -> Embedded:
    small = _smaller(image.convert("RGB"))
    return {"image": _address(encoded(small, quality=85), "image/jpeg"), "size": small.size}


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """A picture as a file."""
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def _address(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def sheet(folder: RunFolder, before: int, after: int) -> bytes | None:
    """A JPEG file of samples of the same prompts with the same noise; None if too few can be read.

    Args:
        folder: of the run.
        before: update whose validation is on the left.
        after: the one on the right.
    """
    cells: list[np.ndarray] = []
    labels: list[str] = []
    verdicts: list[bool | None] = []
    columns = across = 0
    for index in sorted({index for index, _ in read_samples(folder.validation(after))})[:PROMPTS]:
        sides = [of_prompt(folder, update, index) for update in (before, after)]
        across = STRIP if sides[1][0].picture.suffix in CLIPS else 1
        sides = [side[: EACH if across == 1 else 1] for side in sides]
        drawn = [[still(sample.picture) for sample in side] for side in sides]
        begun = [still(path) for path in sides[1][0].shown[:1]]
        row = [*begun, *drawn[0], *drawn[1]]
        if not drawn[0] or any(picture is None for picture in row) or (columns and len(row) != columns):
            continue
        columns = len(row)
        cells += [picture for picture in row if picture is not None]
        labels.append(sides[1][0].prompt)
        verdicts += [None] * len(begun) + [sample.exact for side in sides for sample in side]
    if not cells:
        return None
    return encoded(grid(cells, columns, labels, verdicts, across=across), quality=90)


def still(path: Path) -> np.ndarray | None:
    """A sample as one picture, uint8 [H, W, 3]: some frames of a clip, a sound over time; None if it can't be read."""
    try:
        match path.suffix:
            case ".mp4" | ".webp":
                frames, _ = frames_of(path)
                return strip([frames[i] for i in evenly_spaced(len(frames), STRIP)])
            case ".wav":
                with wave.open(str(path)) as file:
                    return waveform(values_of(file).T)
        with Image.open(path, formats=["PNG"]) as image:
            return np.asarray(image.convert("RGB"))
    except UNREADABLE:
        return None


def _decoded(content: bytes, most: int = FRAMES) -> tuple[list[np.ndarray], float]:
    return choose_frames(content, lambda count, rate: range(min(count, most)))[:2]


def frames_of(path: Path, most: int = FRAMES) -> tuple[list[np.ndarray], float]:
    """The frames of a clip, uint8 [H, W, 3], and how many of them a second has."""
    if path.suffix == ".mp4":
        return _decoded(path.read_bytes(), most)
    with Image.open(path, formats=["WEBP"]) as image:
        rate = 1000 / (image.info.get("duration") or 100)
        return [
            np.asarray(frame.convert("RGB")) for frame in itertools.islice(ImageSequence.Iterator(image), most)
        ], rate


def png(path: Path) -> bytes | None:
    """A picture of a prompt as a small PNG file; None if it can't be read."""
    picture = still(path)
    if picture is None:
        return None
    image = Image.fromarray(picture)
    image.thumbnail((256, 256))
    return encoded(image, "PNG", optimize=True)
