"""Tools that show a part of an image, or draw on one: ``burnish.environments.images:zoom`` and its neighbours.

A parameter ``images`` gets the images of the dialogue so far, in order, as PIL: no model writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


def zoom(bbox_2d: list[float], image: int = 1, *, images: list[Image]) -> Image:
    """Show a part of an image, enlarged.

    Args:
        bbox_2d: left, upper, right and lower end of the part in pixels
        image: number of the image, from 1
    """
    shown = _chosen(images, image)
    return _zoomed(shown, _box(bbox_2d, shown))


def zoom_relative(bbox_2d: list[float], image: int = 1, *, images: list[Image]) -> Image:
    """Show a part of an image, enlarged.

    Args:
        bbox_2d: left, upper, right and lower end of the part, from 0 to 1000
        image: number of the image, from 1
    """
    shown = _chosen(images, image)
    scale = (shown.width / 1000, shown.height / 1000) * 2
    return _zoomed(shown, _box([value * one for value, one in zip(bbox_2d, scale, strict=True)], shown))


def crop(bbox_2d: list[float], image: int = 1, *, images: list[Image]) -> Image:
    """Show a part of an image as it is.

    Args:
        bbox_2d: left, upper, right and lower end of the part in pixels
        image: number of the image, from 1
    """
    shown = _chosen(images, image)
    return shown.crop(_box(bbox_2d, shown))


def draw_box(bbox_2d: list[float], image: int = 1, color: str = "red", *, images: list[Image]) -> Image:
    """Draw a rectangle on an image.

    Args:
        bbox_2d: left, upper, right and lower end of the rectangle in pixels
        image: number of the image, from 1
        color: of the line
    """
    from PIL import ImageDraw

    shown = _chosen(images, image).copy()
    width = max(1, round(min(shown.size) / 100))
    ImageDraw.Draw(shown).rectangle(_box(bbox_2d, shown), outline=color, width=width)
    return shown


def draw_line(points: list[list[float]], image: int = 1, color: str = "red", *, images: list[Image]) -> Image:
    """Draw a line through points on an image.

    Args:
        points: x and y of each in pixels
        image: number of the image, from 1
        color: of the line
    """
    from PIL import ImageDraw

    shown = _chosen(images, image).copy()
    width = max(1, round(min(shown.size) / 100))
    ImageDraw.Draw(shown).line([(float(x), float(y)) for x, y in points], fill=color, width=width)
    return shown


def _chosen(images: list[Image], number: int) -> Image:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= len(images):
        raise ValueError(f"image is {number!r}; there are images 1 to {len(images)}")
    return images[number - 1].convert("RGB")


def _box(corners: list[float], image: Image) -> tuple[int, int, int, int]:
    """Whole pixels within the image, one at least."""
    left, upper, right, lower = (float(one) for one in corners)
    ends = min(int(right + 0.5), image.width), min(int(lower + 0.5), image.height)
    box = (max(int(left), 0), max(int(upper), 0), *ends)
    if box[0] >= box[2] or box[1] >= box[3]:
        size = f"{image.width} x {image.height}"
        raise ValueError(f"bbox_2d is {corners}, which holds no pixel of an image of {size}")
    width, height = box[2] - box[0], box[3] - box[1]
    if max(width, height) > 100 * min(width, height):  # Qwen's processors refuse 200
        raise ValueError(f"bbox_2d is {corners}, a strip of {width} x {height} pixels; take one of a wider side")
    return box


def _zoomed(image: Image, box: tuple[int, int, int, int]) -> Image:
    """A part, enlarged to the size of the image's longer side, its shape kept.

    Its longer side has at most 1024 pixels, and its shorter one 28, below which models see one patch or none.
    """
    from PIL.Image import Resampling

    part = image.crop(box)
    scale = max(image.size) / max(part.size)
    scale = min(max(scale, 28 / min(part.size)), 1024 / max(part.size))
    size = (max(round(part.width * scale), 1), max(round(part.height * scale), 1))
    return part.resize(size, Resampling.BICUBIC)
