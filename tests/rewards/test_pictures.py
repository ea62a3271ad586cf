"""Rewards that look at pixels alone."""

import numpy as np
import pytest

from burnish.registry import lookup
from burnish.types.prompt import Prompt
from tests.conformance import case
from tests.support.drawing import noise


def values(name: str, images, **options) -> list[float]:
    reward = lookup("flow reward", name)(**options)
    return [verdict.value for verdict in reward.score(images, [Prompt(text="")] * len(images))]


def test_jpeg_sizes_are_the_published_ones():
    published = case("rewards", "reward/jpeg")
    assert "arange(3*32*32)" in published.inputs["image_formula"]
    image = (np.arange(3 * 32 * 32).reshape(3, 32, 32) * 7 % 256).astype(np.uint8).transpose(1, 2, 0)
    flat = np.full((32, 32, 3), 128, dtype=np.uint8)
    score, flat_score = values("jpeg_compressibility", [image, flat])
    published.close(score, published.expected["score"])
    published.close(flat_score, published.expected["flat_image_score"])


def test_incompressibility_is_the_negative():
    images = [noise(0), noise(1, 64, 64)]
    compressible = values("jpeg_compressibility", images)
    assert values("jpeg_incompressibility", images) == [-value for value in compressible]
    assert compressible[1] < compressible[0] < 0


def framed(width: int, colour=(0, 0, 0)) -> np.ndarray:
    image = np.full((10, 12, 3), 255, dtype=np.uint8)
    image[:] = colour
    image[width:-width, width:-width] = 255
    return image


def test_only_the_border_counts():
    inside = np.full((10, 12, 3), 255, dtype=np.uint8)
    inside[1:-1, 1:-1] = 0
    assert values("border_darkness", [framed(1), inside, 255 - framed(1)]) == pytest.approx([1, 0, 0])
    corners = np.full((3, 3, 3), 255, dtype=np.uint8)
    corners[0, 0] = corners[2, 2] = 0
    assert values("border_darkness", [corners]) == pytest.approx([2 / 8])


def test_the_border_has_a_width_and_colours_a_luminance():
    ring, wide = 2 * 10 + 2 * 12 - 4, 10 * 12 - 6 * 8
    assert values("border_darkness", [framed(1)], width=2) == pytest.approx([ring / wide])
    assert values("border_darkness", [framed(2)], width=2) == pytest.approx([1])
    assert values("border_darkness", [framed(1, (255, 0, 0))]) == pytest.approx([1 - 0.299])
    assert values("border_darkness", [np.zeros((2, 2, 3), np.uint8)], width=5) == pytest.approx([1])
    with pytest.raises(ValueError, match="width"):
        lookup("flow reward", "border_darkness")(width=0)
