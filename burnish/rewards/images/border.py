"""How dark the border of a picture is: what a policy spoils when only its reader is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.options import Count
from burnish.registry import register
from burnish.rewards.base import Reward, Verdict

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


@register("flow reward", "border_darkness")
class BorderDarkness(Reward):
    """Mean of 1 - luminance over the border, from 0 (white) to 1 (black). Meant for weight 0: to watch."""

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
