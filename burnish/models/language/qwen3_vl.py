"""Qwen3-VL: features of several depths of the vision tower, and time stamps written between frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnish.models.language.qwen2_vl import VIDEO, Qwen2VL
from burnish.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.embedding import VisionOutput
    from burnish.language.model import Embedded

START, END = "<|vision_start|>", "<|vision_end|>"


@register("language model", "qwen3_vl")
class Qwen3VL(Qwen2VL):
    """DeepStack (arXiv:2406.04334): the first layers of the decoder are told what the tower saw on its way."""

    name = "qwen3_vl"
    model_types = ("qwen3_vl",)
    videos_as_a_whole = True
    videos_are_sampled = True

    def _video_text(self, grid: Tensor, frames: list[int], fps: float) -> str:
        # every patch of frames has its own start and end, inside those that the template writes around the video
        unit = self._videos.temporal
        times = [frame / fps for frame in frames]
        times += times[-1:] * (-len(times) % unit)
        each = VIDEO * (self._tokens(grid) // int(grid[0]))
        middles = [(times[first] + times[first + unit - 1]) / 2 for first in range(0, len(times), unit)]
        return "".join(f"<{middle:.1f} seconds>{START}{each}{END}" for middle in middles)

    def _see(self, network: Any, placeholder: int, pixels: Tensor, grid: Tensor) -> VisionOutput:
        from burnish.language.embedding import VisionOutput

        out = network.model.visual(pixels, grid_thw=grid, return_dict=True)
        return VisionOutput(placeholder, out.pooler_output, list(out.deepstack_features))

    def _deep(self, embedded: Embedded, source: Tensor) -> dict[str, Any]:
        from burnish.language.embedding import at_rows

        if not embedded.deep:
            return {}
        slots, features = at_rows(embedded, source)
        return {"visual_pos_masks": slots, "deepstack_visual_embeds": features}
