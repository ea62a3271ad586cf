"""Processors of pictures, for small pictures and without torchvision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from burnish.models.processors import class_without_videos
from burnish.models.tiny.tokenizers import qwen

SIDE = 28  # pixels of a vision encoder's picture: four patches of 14, which become one token where they are merged


def clip_pixels(**config: Any) -> Any:
    """CLIP's."""
    from transformers import CLIPImageProcessor

    return CLIPImageProcessor(
        **{"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}, **config}
    )


def siglip_pixels(**config: Any) -> Any:
    """Siglip's."""
    from transformers import SiglipImageProcessor

    return SiglipImageProcessor(**{"size": {"height": SIDE, "width": SIDE}, **config})


def qwen_vl(named: str, patch: int, **config: Any) -> Any:
    """Of a vision-language model of Qwen: pictures and text."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = qwen()
    size = {"shortest_edge": (2 * patch) ** 2, "longest_edge": (8 * patch) ** 2}
    pixels = Qwen2VLImageProcessorPil(**{
        "patch_size": patch, "temporal_patch_size": 2, "merge_size": 2, "size": size, **config,
    })  # fmt: skip
    return class_without_videos(named)(pixels, tokenizer, tokenizer.chat_template)


PROCESSORS: dict[str, Callable[..., Any]] = {
    "CLIPImageProcessor": clip_pixels,
    "CLIPImageProcessorPil": clip_pixels,
    "SiglipImageProcessor": siglip_pixels,
    "SiglipImageProcessorPil": siglip_pixels,
    "Qwen2VLProcessor": partial(qwen_vl, "Qwen2VLProcessor", 14),
    "Qwen2_5_VLProcessor": partial(qwen_vl, "Qwen2_5_VLProcessor", 14),
    "Qwen3VLProcessor": partial(qwen_vl, "Qwen3VLProcessor", 16),
}
