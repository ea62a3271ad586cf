"""Images of three-digit numbers, and which numbers are held out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from burnish.utils.random import permutation

HEIGHT, WIDTH = 16, 32
# Every copy of matplotlib ships these, so every machine draws the same pixels
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono")
SIZES = (11, 12, 13)
OFFSETS = (-1, 0, 1)
TRAIN, HELDOUT = 240, 48


@dataclass(frozen=True)
class Style:
    """What a number may look like: the variety that the generator has to keep."""

    font: str
    size: int
    right: int
    down: int


STYLES = tuple(
    Style(font, size, right, down) for font in FONTS for size in SIZES for right in OFFSETS for down in OFFSETS
)


def prompt_of(number: str) -> str:
    """What the generator is asked for."""
    return f"the number {number}"


def render(number: str, style: Style) -> Tensor:
    """An image [1, 16, 32] in [-1, 1]: dark digits on white, +1, near the middle."""
    font = typeface(style.font, style.size)
    canvas = Image.new("L", (WIDTH, HEIGHT), 255)
    left, top, right, bottom = font.getbbox(number)
    corner = ((WIDTH - right - left) // 2 + style.right, (HEIGHT - bottom - top) // 2 + style.down)
    ImageDraw.Draw(canvas).text(corner, number, font=font, fill=0)
    pixels = torch.frombuffer(bytearray(canvas.tobytes()), dtype=torch.uint8)
    return pixels.view(1, HEIGHT, WIDTH).float() / 127.5 - 1


@cache
def typeface(name: str, size: int) -> ImageFont.FreeTypeFont:
    """A font of matplotlib's."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    # The other layout engine is an optional library: with it, pixels would depend on the machine
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


@dataclass(frozen=True)
class Split:
    """Numbers of three digits."""

    seen: tuple[str, ...]
    """Numbers of the pre-training."""
    train: tuple[str, ...]
    """Those of them that reinforcement learning practises."""
    heldout: tuple[str, ...]
    """Numbers that neither sees."""


def split(seed: int) -> Split:
    """Share out the thousand numbers."""
    numbers = [f"{i:03d}" for i in permutation(1000, seed, "split")]
    heldout, seen = numbers[:HELDOUT], numbers[HELDOUT:]
    return Split(seen=tuple(seen), train=tuple(sorted(seen[:TRAIN])), heldout=tuple(sorted(heldout)))


def write_prompts(path: Path, numbers: tuple[str, ...]) -> None:
    """Write a prompt and its right answer a line, as burnish reads them."""
    lines = [json.dumps({"prompt": prompt_of(number), "answer": number}) for number in numbers]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
