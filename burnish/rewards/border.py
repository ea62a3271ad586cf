"""How dark the border of a picture is: what a policy spoils when only its reader is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.options import Count
from burnish.registry import options, register
from burnish.rewards.base import Reward, Verdict

if TYPE_CHECKING:
    import numpy as np

    from burnish.prompt import Prompt


@register("reward", "border_darkness")
@options
class BorderDarkness(Reward):
    """Mean of 1 - luminance over the border, from 0 (white) to 1 (black). Meant for weight 0: to watch."""

    width: Count = 1
    """Width of the border in pixels."""

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        return [Verdict(self._darkness(image)) for image in images]

    def _darkness(self, image: np.ndarray) -> float:
        import numpy as np

        height, width = image.shape[:2]
        if 2 * self.width >= min(height, width):
            ring = np.ones((height, width), dtype=bool)
        else:
            ring = np.zeros((height, width), dtype=bool)
            for side in (np.s_[: self.width], np.s_[-self.width :]):
                ring[side] = True
                ring[:, side] = True
        luminance = image[ring].astype(np.float64) @ np.array([0.299, 0.587, 0.114]) / 255
        return float(1 - luminance.mean())
