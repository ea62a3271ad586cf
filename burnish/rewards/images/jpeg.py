"""How well JPEG compresses a picture: a reward without a model (Black et al. 2023, arXiv:2305.13301)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.registry import register
from burnish.rewards.base import Reward, Verdict

if TYPE_CHECKING:
    import numpy as np

    from burnish.types.prompt import Prompt

SCALE = 500.0  # kB that are worth one point, as in the field's implementations


def size(image: np.ndarray, quality: int = 95) -> float:
    """Size of a picture as JPEG, in kB of 1000 bytes."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, format="JPEG", quality=quality)
    return file.tell() / 1000


@register("flow reward", "jpeg_compressibility")
class JpegCompressibility(Reward):
    """Minus the size as JPEG of quality 95, in units of 500 kB: higher is emptier."""

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [Verdict(-size(image) / SCALE) for image in images]


@register("flow reward", "jpeg_incompressibility")
class JpegIncompressibility(Reward):
    """The size as JPEG of quality 95, in units of 500 kB: higher is busier."""

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [Verdict(size(image) / SCALE) for image in images]
