"""Pictures and frames as the patches that Qwen2-VL reads, without its processors: those of videos need torchvision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.rewards.preprocessing import CLIP_MEAN, CLIP_STD, FILE
from burnish.utils.json_text import read_object

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

LEVEL = 1 / 255


@dataclass(frozen=True)
class Patches:
    """What the vision tower gets of one picture or clip."""

    rows: Tensor  # [N, 3 * T * P * P]: channel, time, y, x
    grid: tuple[int, int, int]  # time, height, width, in patches
    tokens: int  # of the language model


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """How a checkpoint's vision tower cuts pictures."""

    patch: int
    merge: int  # patches along a side that become one token
    temporal: int  # frames of a patch
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD

    @classmethod
    def of(cls, folder: Path, vision: Any) -> Geometry:
        """By the configuration of the vision tower, and the processor's colours."""
        told: Mapping[str, Any] = read_object(folder / FILE) if (folder / FILE).is_file() else {}
        return cls(
            patch=vision.patch_size, merge=vision.spatial_merge_size, temporal=vision.temporal_patch_size,
            mean=tuple(told.get("image_mean", CLIP_MEAN)), std=tuple(told.get("image_std", CLIP_STD)),
        )  # fmt: skip

    def size(self, height: int, width: int, least: int, most: int) -> tuple[int, int]:
        """Sides in whole tokens, within bounds of their pixels, as near to the shape as they can be."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        found: tuple[int, int] = smart_resize(height, width, self.patch * self.merge, least, most)
        return found

    def picture(self, image: np.ndarray, pixels: int) -> Patches:
        """A picture uint8 [H, W, 3] of about N pixels, resized by Pillow."""
        import numpy as np
        import torch
        from PIL import Image

        height, width = self.size(image.shape[0], image.shape[1], pixels, pixels)
        resized = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
        return self.cut(torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None] * LEVEL)

    def tensor(self, picture: Tensor, pixels: int) -> Patches:
        """The same of a picture [3, H, W] in [0, 1], with gradients; Pillow rounds between its two passes."""
        x = picture.float()[None]
        return self.cut(_resized(x, self.size(x.shape[2], x.shape[3], pixels, pixels)).clamp(0, 1))

    def clip(self, frames: np.ndarray, least: int, most: int) -> Patches:
        """Frames uint8 [F, H, W, 3], resized as torchvision resizes tensors: on floats, and rounded."""
        import torch

        x = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
        x = _resized(x, self.size(x.shape[2], x.shape[3], least, most))
        return self.cut(x.clamp(0, 255).round() * LEVEL)

    def cut(self, frames: Tensor) -> Patches:
        """Frames [F, 3, H, W] in [0, 1], whose sides are whole tokens; the last is repeated to fill a patch."""
        import torch

        mean, std = (frames.new_tensor(value).view(1, 3, 1, 1) for value in (self.mean, self.std))
        x = (frames - mean) / std
        if lacking := -len(x) % self.temporal:
            x = torch.cat([x, x[-1:].expand(lacking, -1, -1, -1)])
        t, p, m = self.temporal, self.patch, self.merge
        count, (height, width) = len(x) // t, x.shape[2:]
        grid = count, height // p, width // p
        blocks = x.reshape(count, t, 3, height // (p * m), m, p, width // (p * m), m, p)
        rows = blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 3 * t * p * p)
        return Patches(rows, grid, grid[0] * grid[1] * grid[2] // m**2)


def _resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Pictures [B, 3, H, W] of another size. Without antialiasing torch has another kernel than Pillow."""
    import torch.nn.functional as F

    if tuple(x.shape[2:]) == size:
        return x
    return F.interpolate(x, size, mode="bicubic", antialias=True, align_corners=False)
