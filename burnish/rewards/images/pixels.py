"""Rewards computed from pixels: JPEG size (Black et al. 2023, arXiv:2305.13301), and darkness of the border."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from burnish.options import Count
from burnish.registry import register
from burnish.rewards.base import Reward, Verdict

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt

SCALE = 500.0  # kB per point, as in other implementations
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def size(image: np.ndarray, quality: int = 95) -> float:
    """Size of a picture as JPEG, in kB of 1000 bytes."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, format="JPEG", quality=quality)
    return file.tell() / 1000


@register("flow reward", "jpeg_compressibility")
class JpegCompressibility(Reward):
    """Minus the size as JPEG of quality 95, in units of 500 kB: higher for pictures with less detail."""

    higher_is_better: ClassVar[bool] = False

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [Verdict(-size(image) / SCALE) for image in images]


@register("flow reward", "jpeg_incompressibility")
class JpegIncompressibility(Reward):
    """The size as JPEG of quality 95, in units of 500 kB: higher for pictures with more detail."""

    higher_is_better: ClassVar[bool] = False

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [Verdict(size(image) / SCALE) for image in images]


@register("flow reward", "border_darkness")
class BorderDarkness(Reward):
    """Mean of 1 - luminance over the border, from 0 (white) to 1 (black). Meant to be logged, with weight 0."""

    higher_is_better: ClassVar[bool] = False

    width: Count = 1
    """Width of the border in pixels."""

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [Verdict(self._darkness(image)) for image in images]

    def differentiable(self, pictures: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        import torch

        from burnish.types.batch import to_device

        ring, luma = (
            to_device(torch.tensor(value, dtype=pictures.dtype), pictures.device)
            for value in (self._ring(*pictures.shape[-2:]), LUMA)
        )
        luminance = (pictures * luma.view(1, 3, 1, 1)).sum(1)
        return 1 - (luminance * ring).sum((1, 2)) / ring.sum()

    def _darkness(self, image: np.ndarray) -> float:
        import numpy as np

        luminance = image[self._ring(*image.shape[:2])].astype(np.float64) @ np.array(LUMA) / 255
        return float(1 - luminance.mean())

    def _ring(self, height: int, width: int) -> np.ndarray:
        """Which pixels are the border: [height, width] bool."""
        import numpy as np

        if 2 * self.width >= min(height, width):
            return np.ones((height, width), dtype=bool)
        ring = np.zeros((height, width), dtype=bool)
        for side in (np.s_[: self.width], np.s_[-self.width :]):
            ring[side] = True
            ring[:, side] = True
        return ring
