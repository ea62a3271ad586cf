"""Contact sheets of images, and thumbnails."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from textwrap import wrap

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

GAP, FONT_SIZE, LINE = 12, 14, 18
LABEL_WIDTH, LETTERS = 240, 30  # of the text beside a row: pixels, and characters of a line
SMALL, LARGE = 128, 384  # pixels: smaller images are enlarged to about SMALL, larger ones shrunk to LARGE
WAVE_WIDTH, WAVE_HEIGHT = 256, 96  # pixels of a drawn sound
GLIMPSE = 128  # longest side in pixels of a thumbnail
PAPER = (236, 238, 240)  # not white, so that the edge of a white image is visible
BLUE, VERMILION = (0, 114, 178), (213, 94, 0)  # distinguishable with any colour vision


class NonFiniteImage(np.ndarray):
    """A view of an image with non-finite values, which are shown black; it is never scored."""


def grid(
    images: Sequence[np.ndarray],
    columns: int,
    labels: Sequence[str] | None = None,
    across: int = 1,
) -> Image.Image:
    """Images in rows, one row per prompt; small ones enlarged by a whole number, large ones shrunk.

    Those of another shape than the first one are fitted into its size.

    Args:
        images: uint8, [H, W] or [H, W, 3].
        columns: images per row.
        labels: text to the left of each row.
        across: images that each one is made of, side by side, such as frames of a clip.
    """
    font = ImageFont.load_default(FONT_SIZE)
    width, height = _size(images[0], across)
    cell_w, cell_h = width + GAP, height + GAP
    rows = -(-len(images) // columns)
    left = GAP + (LABEL_WIDTH + 2 * GAP if labels else 0)
    sheet = Image.new("RGB", (left + columns * cell_w, GAP + rows * cell_h), PAPER)
    draw = ImageDraw.Draw(sheet)
    for i, image in enumerate(images):
        x, y = left + i % columns * cell_w, GAP + i // columns * cell_h
        enlarged = image.shape[0] <= height and image.shape[1] <= width
        way = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
        fitted = ImageOps.pad(Image.fromarray(image).convert("RGB"), (width, height), way, PAPER)
        sheet.paste(fitted, (x, y))
    for row, label in enumerate(labels or ()):
        lines = wrap(label, LETTERS, max_lines=max(1, (cell_h - GAP) // LINE), placeholder=" …")
        middle = GAP + row * cell_h + (cell_h - GAP) / 2
        draw.multiline_text((GAP, middle), "\n".join(lines), fill="black", font=font, anchor="lm")
    return sheet


def strip(frames: Sequence[np.ndarray]) -> np.ndarray:
    """Frames uint8 [H, W, 3] side by side, with a gap between them."""
    height, width = frames[0].shape[:2]
    gap = np.broadcast_to(np.array(PAPER, np.uint8), (height, max(1, width // 32), 3))
    parts = [part for frame in frames for part in (frame, gap)]
    return np.concatenate(parts[:-1], axis=1)


def waveform(samples: np.ndarray) -> np.ndarray:
    """An image uint8 [WAVE_HEIGHT, WAVE_WIDTH, 3] of a sound [channels, N] in [-1, 1]: its loudness over time."""
    edges = np.arange(WAVE_WIDTH + 1) * samples.shape[1] // WAVE_WIDTH
    parts = [samples[:, start : max(end, start + 1)] for start, end in pairwise(edges)]
    low, high = (np.array([pick(part) for part in parts]) for pick in (np.min, np.max))
    rows = np.linspace(1, -1, WAVE_HEIGHT)[:, None]
    thick = 1 / WAVE_HEIGHT  # silence is a line
    drawn = (rows >= low - thick) & (rows <= high + thick)
    image = np.full((WAVE_HEIGHT, WAVE_WIDTH, 3), 255, np.uint8)
    image[drawn] = BLUE
    return image


def _size(image: np.ndarray, across: int) -> tuple[int, int]:
    """Width and height of an image in the sheet."""
    height, width = image.shape[:2]
    longest = max(height, width // across)
    largest = LARGE if across == 1 else LARGE // 2
    if longest > largest:
        return max(1, width * largest // longest), max(1, height * largest // longest)
    scale = max(1, round(SMALL / longest))
    return width * scale, height * scale


def thumbnail(image: np.ndarray) -> bytes:
    """A small PNG file of an image, uint8 [H, W, 3]."""
    small = Image.fromarray(image)
    small.thumbnail((GLIMPSE, GLIMPSE))
    file = io.BytesIO()
    small.save(file, format="PNG")
    return file.getvalue()
