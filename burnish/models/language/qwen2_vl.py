"""Qwen2-VL: patches of any resolution, positions in time, height and width (Wang et al. 2024, arXiv:2409.12191)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.models.language.base import TransformersModel
from burnish.models.language.processing import PatchVideos, part_config
from burnish.registry import register
from burnish.utils.weights import load_network

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from burnish.language.embedding import VisionOutput
    from burnish.language.model import Video
    from burnish.types.completion import Features

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
LONGEST = 200  # times as long as wide: what transformers' smart_resize refuses beyond


@register("language model", "qwen2_vl")
class Qwen2VL(TransformersModel):
    """Images and videos are rows of patches; each merged square of patches takes the place of one token."""

    name = "qwen2_vl"
    model_types = ("qwen2_vl",)
    sees = True
    axes = 3
    videos_as_a_whole = False  # the limits on pixels are per frame
    videos_are_sampled = False

    @classmethod
    def unfit(cls, width: int, height: int) -> str:
        if max(width, height) <= LONGEST * min(width, height):
            return ""
        return f"is {width} x {height} pixels, and this model sees none with sides of more than {LONGEST}:1; cut it"

    @classmethod
    def _network(cls, path: Path, dtype: torch.dtype) -> Any:
        from transformers import AutoModelForImageTextToText

        return load_network(
            AutoModelForImageTextToText, path, dtype=dtype, trust_remote_code=False, attn_implementation="sdpa"
        )

    def _attending(self) -> Sequence[Any]:
        return (self.config.vision_config,)

    def _placeholders(self) -> list[int]:
        return [self.config.image_token_id, self.config.video_token_id]

    def _marks(self) -> tuple[str, str]:
        return IMAGE, VIDEO

    def _read_processors(self) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self._image_processor = Qwen2VLImageProcessorPil.from_pretrained(self.path, local_files_only=True)

    @cached_property
    def _videos(self) -> PatchVideos:
        names = ("video_preprocessor_config.json", "preprocessor_config.json")
        config = part_config(self.path, "video_processor", *names)
        return PatchVideos.read(config, whole=self.videos_as_a_whole, sampled=self.videos_are_sampled)

    def _media(self, images: Sequence[Image], videos: Sequence[Video]) -> tuple[Features, list[str], list[str]]:
        import torch

        from burnish.types.completion import Features

        parts, image_texts, video_texts = [], [], []
        nothing = Features.none()
        if images:
            made = self._image_processor([image.convert("RGB") for image in images], return_tensors="pt")
            grid = made["image_grid_thw"].long()
            image_texts = [IMAGE * self._tokens(one) for one in grid]
            parts.append(
                Features(
                    images=made["pixel_values"].float(),
                    image_grid=grid,
                    videos=nothing.videos,
                    video_grid=nothing.video_grid,
                )
            )
        for video in videos:
            patches, grid, frames = self._videos.process(video)
            video_texts.append(self._video_text(grid, frames, video.fps))
            parts.append(
                Features(
                    images=nothing.images,
                    image_grid=nothing.image_grid,
                    videos=patches,
                    video_grid=torch.stack([grid]),
                )
            )
        return Features.joined(parts) if parts else nothing, image_texts, video_texts

    def _tokens(self, grid: Tensor) -> int:
        merged: int = self.config.vision_config.spatial_merge_size**2
        return int(grid.prod()) // merged

    def _video_text(self, grid: Tensor, frames: list[int], fps: float) -> str:
        """What stands for a video of which ``frames`` are looked at."""
        return VIDEO * self._tokens(grid)

    def _positions(self, ids: Tensor, features: Features, videos: Sequence[Video]) -> Tensor:
        import torch

        image, video = (ids == placeholder for placeholder in self._placeholders())
        kinds = (image.int() + 2 * video.int())[None]
        positions: Tensor
        positions, _ = self.network.model.get_rope_index(
            ids[None],
            mm_token_type_ids=kinds,
            image_grid_thw=features.image_grid if len(features.image_grid) else None,
            video_grid_thw=features.video_grid if len(features.video_grid) else None,
            **self._timing(videos),
        )
        return positions[:, 0].to(torch.long)

    def _timing(self, videos: Sequence[Video]) -> dict[str, Any]:
        """What the positions of a video depend on besides its grid."""
        return {}

    def text(self, network: nn.Module) -> Any:
        return network.model.language_model  # type: ignore[union-attr]

    def _pixels(self, network: nn.Module, features: Features, device: torch.device) -> list[VisionOutput]:
        from burnish.types.batch import to_device

        kinds = (
            (self.config.image_token_id, features.images, features.image_grid),
            (self.config.video_token_id, features.videos, features.video_grid),
        )
        return [
            self._see(network, place, to_device(pixels, device), to_device(grid, device))
            for place, pixels, grid in kinds
            if len(pixels)
        ]

    def _see(self, network: Any, placeholder: int, pixels: Tensor, grid: Tensor) -> VisionOutput:
        from burnish.language.embedding import VisionOutput

        return VisionOutput(placeholder, network.model.visual(pixels, grid_thw=grid).pooler_output)
