"""What the small unified model is rewarded for: the colour of what it was asked for, and its size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

COLOURS = {
    "red": (0.85, 0.1, 0.1), "yellow": (0.9, 0.85, 0.1), "green": (0.1, 0.65, 0.2), "blue": (0.1, 0.3, 0.85),
    "white": (0.95, 0.95, 0.95), "black": (0.05, 0.05, 0.05),
}  # fmt: skip
GREY = 0.5
MIDDLE = slice(6, 10)  # of 16 rows and columns


def colour(images: Sequence[np.ndarray], references: Sequence[str]) -> list[float]:
    """1 less the mean distance of the middle of an image [16, 16, 3] from the colour that is named."""
    middle = [image[MIDDLE, MIDDLE].astype(np.float64) / 255 for image in images]
    return [1 - float(np.abs(own - COLOURS[name]).mean()) for own, name in zip(middle, references, strict=True)]


def large(images: Sequence[np.ndarray]) -> list[float]:
    """Share of an image [16, 16, 3] that is not about grey, as the background is."""
    return [float((np.abs(image / 255 - GREY).max(-1) > 0.2).mean()) for image in images]
