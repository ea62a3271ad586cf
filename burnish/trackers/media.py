"""Pictures, clips and sounds of validations, in formats that trackers show."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

from PIL import Image

from burnish.utils.video import read_clip

Kind = Literal["picture", "clip", "sound"]
KINDS: dict[str, Kind] = {".png": "picture", ".mp4": "clip", ".webp": "clip", ".wav": "sound"}  # as validations write
FRAMES, LONGEST = 64, 512  # of a GIF: frames, and pixels of the longer side
PIXELS = 1 << 26  # of a picture


def kind_of(file: Path) -> Kind:
    """What a file of a validation holds."""
    return KINDS[file.suffix]


def picture(file: Path) -> Image.Image:
    """A picture, loaded.

    Raises:
        ValueError: it is too large.
    """
    with Image.open(file) as opened:
        if opened.width * opened.height > PIXELS:
            raise ValueError(f"{file} has {opened.width} x {opened.height} pixels")
        return opened.convert("RGB")


def gif(file: Path) -> bytes:
    """A clip as an animated GIF, which every tracker plays."""
    if file.suffix == ".mp4":
        arrays, rate, _ = read_clip(file.read_bytes(), FRAMES)
        frames = [Image.fromarray(one) for one in arrays]
    else:
        frames, rate = _animated(file)
    for one in frames:
        one.thumbnail((LONGEST, LONGEST))
    buffer = io.BytesIO()
    frames[0].save(
        buffer, format="GIF", save_all=True, append_images=frames[1:], duration=round(1000 / rate), loop=0
    )  # fmt: skip
    return buffer.getvalue()


def playable(file: Path, folder: Path) -> Path:
    """A clip as a file that browsers play in a video player: itself, or else a GIF in a folder."""
    if file.suffix == ".mp4":
        return file
    target = folder / f"{file.parent.parent.name}-{file.stem}.gif"
    target.write_bytes(gif(file))
    return target


def _animated(file: Path) -> tuple[list[Image.Image], float]:
    with Image.open(file) as opened:
        frames = []
        for number in range(min(getattr(opened, "n_frames", 1), FRAMES)):
            opened.seek(number)
            frames.append(opened.convert("RGB"))
        return frames, 1000 / (opened.info.get("duration") or 100)
