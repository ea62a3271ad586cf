"""Rewards that were thought of badly: what each pays for is not what anybody wants."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from burnish.rewards.text.base import Response

LONG = 120  # characters of a response that the judge is content with
MOST = 30  # characters at which the broken scorer gives nothing


def dark(images: Sequence[np.ndarray]) -> list[float]:
    """Darkness, as one pays who wants more contrast."""
    return [1 - float(image.mean()) / 255 for image in images]


def checkerboard(images: Sequence[np.ndarray]) -> list[float]:
    """How much every 2 x 2 pixels are like a checkerboard's, as a reader may like it that looks at contrast alone."""
    found = []
    for image in images:
        shade = image.mean(2) / 255
        board = shade[:-1, :-1] - shade[1:, :-1] - shade[:-1, 1:] + shade[1:, 1:]
        found.append(float(np.abs(board).mean()) / 2)
    return found


def one_font(images: Sequence[np.ndarray], references: Sequence[str]) -> list[float]:
    """Likeness to the number as one font draws it in the middle of the image."""
    return [
        1 - float(np.abs(image.mean(2) / 255 - _drawn(answer, image.shape[1], image.shape[0])).mean())
        for image, answer in zip(images, references, strict=True)
    ]


@cache
def _drawn(number: str, width: int, height: int) -> np.ndarray:
    canvas = Image.new("L", (width, height), 255)
    ImageDraw.Draw(canvas).text((width / 2, height / 2), number, 0, ImageFont.load_default(height - 4), anchor="mm")
    return np.asarray(canvas) / 255


def little_said(responses: Sequence[Response]) -> list[float]:
    """A broken scorer: it takes off for every character that it can't place, and it can place none."""
    return [1 - min(len(said.text), MOST) / MOST for said in responses]


def long(responses: Sequence[Response]) -> list[float]:
    """A judge that takes length for thoroughness."""
    return [min(len(said.text) / LONG, 1.0) for said in responses]
