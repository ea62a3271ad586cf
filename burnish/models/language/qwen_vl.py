"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: patches of any resolution, positions in time, height and width."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from burnish.models.language.packed import PackedFamily
from burnish.models.language.processing import PatchVideos, part_config
from burnish.registry import register

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from burnish.language.model import Embedded, Video, VisionOutput
    from burnish.types.completion import Features

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
START, END = "<|vision_start|>", "<|vision_end|>"
MAX_ASPECT = 200  # aspect ratio above which transformers' smart_resize refuses a picture


@register("language model", "qwen2_vl")
class Qwen2VL(PackedFamily):
    """Qwen2-VL (arXiv:2409.12191): images and videos are rows of patches; merged squares of them are vision tokens."""

    name = "qwen2_vl"
    model_types = ("qwen2_vl",)
    has_vision = True
    axes = 3
    placeholder_texts = (IMAGE, VIDEO)
    limits_full_video = False  # whether the limits on pixels are per video, not per frame
    samples_videos = False

    @classmethod
    def size_problem(cls, width: int, height: int) -> str:
        if max(width, height) <= MAX_ASPECT * min(width, height):
            return ""
        return f"is {width} x {height} pixels, but this model reads aspect ratios up to {MAX_ASPECT}:1 only; crop it"

    def _attending(self) -> Sequence[Any]:
        return (self.config.vision_config,)

    def _placeholders(self) -> list[int]:
        return [self.config.image_token_id, self.config.video_token_id]

    def _read_processors(self) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self._image_processor = Qwen2VLImageProcessorPil.from_pretrained(self.path, local_files_only=True)

    @cached_property
    def _videos(self) -> PatchVideos:
        names = ("video_preprocessor_config.json", "preprocessor_config.json")
        config = part_config(self.path, "video_processor", *names)
        return PatchVideos.read(config, per_video=self.limits_full_video, sampled=self.samples_videos)

    def _media(self, images: Sequence[Image], videos: Sequence[Video]) -> tuple[Features, list[str], list[str]]:
        import torch

        from burnish.types.completion import Features

        features, image_texts, video_texts = [], [], []
        if images:
            processed = self._image_processor([image.convert("RGB") for image in images], return_tensors="pt")
            grid = processed["image_grid_thw"].long()
            image_texts = [IMAGE * self._tokens(one) for one in grid]
            features.append(Features({"images": processed["pixel_values"].float(), "image_grid": grid}))
        for video in videos:
            patches, grid, frames = self._videos.process(video)
            video_texts.append(self._video_text(grid, frames, video.fps))
            features.append(Features({"videos": patches, "video_grid": torch.stack([grid])}))
        return Features.joined(features), image_texts, video_texts

    def picture_tokens(self, width: int, height: int) -> int:
        merged: int = self.config.vision_config.spatial_merge_size**2
        return int(self._image_processor.get_number_of_image_patches(height, width)) // merged

    def _tokens(self, grid: Tensor) -> int:
        merged: int = self.config.vision_config.spatial_merge_size**2
        return int(grid.prod()) // merged

    def _video_text(self, grid: Tensor, frames: list[int], fps: float) -> str:
        """The text of a video: placeholders for the sampled ``frames``."""
        return VIDEO * self._tokens(grid)

    def _positions(self, ids: Tensor, features: Features, videos: Sequence[Video]) -> Tensor:
        import torch

        image, video = (ids == placeholder for placeholder in self._placeholders())
        kinds = (image.int() + 2 * video.int())[None]
        positions: Tensor
        positions, _ = self.network.model.get_rope_index(
            ids[None],
            mm_token_type_ids=kinds,
            image_grid_thw=features.tensors.get("image_grid"),
            video_grid_thw=features.tensors.get("video_grid"),
            **self._timing(videos),
        )
        return positions[:, 0].to(torch.long)

    def _timing(self, videos: Sequence[Video]) -> dict[str, Any]:
        """Further arguments of the position ids: the time between frames."""
        return {}

    def text(self, network: nn.Module) -> Any:
        return network.model.language_model  # type: ignore[union-attr]

    def _pixels(self, network: nn.Module, features: Features, device: torch.device) -> list[VisionOutput]:
        from burnish.types.batch import to_device

        kinds = (
            (self.config.image_token_id, features.get("images"), features.get("image_grid")),
            (self.config.video_token_id, features.get("videos"), features.get("video_grid")),
        )
        return [
            self._run_vision(network, placeholder, to_device(pixels, device), to_device(grid, device))
            for placeholder, pixels, grid in kinds
            if len(pixels)
        ]

    def _run_vision(self, network: Any, placeholder: int, pixels: Tensor, grid: Tensor) -> VisionOutput:
        from burnish.language.model import VisionOutput

        return VisionOutput(placeholder, network.model.visual(pixels, grid_thw=grid).pooler_output)


@register("language model", "qwen2_5_vl")
class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL (arXiv:2502.13923): the positions of a video's frames follow the seconds between them."""

    name = "qwen2_5_vl"
    model_types = ("qwen2_5_vl",)

    def _timing(self, videos: Sequence[Video]) -> dict[str, Any]:
        if not videos:
            return {}
        import torch

        seconds = [self._seconds(video) * self._videos.temporal for video in videos]
        return {"second_per_grid_ts": torch.tensor(seconds)}

    def _seconds(self, video: Video) -> float:
        """Between two sampled frames."""
        return len(video.frames) / video.fps / len(self._videos.sample(video))


@register("language model", "qwen3_vl")
class Qwen3VL(Qwen2VL):
    """Qwen3-VL: time stamps between frames, and DeepStack (arXiv:2406.04334), which adds features of several depths of
    the vision tower to the first layers of the decoder."""

    name = "qwen3_vl"
    model_types = ("qwen3_vl",)
    limits_full_video = True
    samples_videos = True

    def _video_text(self, grid: Tensor, frames: list[int], fps: float) -> str:
        # every patch of frames has its own start and end, inside those that the template writes around the video
        unit = self._videos.temporal
        times = [frame / fps for frame in frames]
        times += times[-1:] * (-len(times) % unit)
        each = VIDEO * (self._tokens(grid) // int(grid[0]))
        middles = [(times[first] + times[first + unit - 1]) / 2 for first in range(0, len(times), unit)]
        return "".join(f"<{middle:.1f} seconds>{START}{each}{END}" for middle in middles)

    def _run_vision(self, network: Any, placeholder: int, pixels: Tensor, grid: Tensor) -> VisionOutput:
        from burnish.language.model import VisionOutput

        out = network.model.visual(pixels, grid_thw=grid, return_dict=True)
        return VisionOutput(placeholder, out.pooler_output, list(out.deepstack_features))

    def _deep(self, embedded: Embedded, source: Tensor) -> dict[str, Any]:
        if not embedded.deep:
            return {}
        slots, features = embedded.at(source)
        return {"visual_pos_masks": slots, "deepstack_visual_embeds": features}
