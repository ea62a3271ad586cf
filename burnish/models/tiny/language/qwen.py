"""Qwen's language models that see, and those that have its pictures."""

from __future__ import annotations

from burnish.models.tiny.base import Config
from burnish.models.tiny.language.base import Kind, TinyLanguage

SECTIONS: Config = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}  # half of a head of 16
NARROW: Config = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}  # of a head of 8
PIXELS: Config = {"shortest_edge": 64, "longest_edge": 1024}  # of a picture
PATCHES: Config = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "size": PIXELS}
FRAMES: Config = {**PATCHES, "min_frames": 2, "max_frames": 8, "size": {"shortest_edge": 64, "longest_edge": 4096}}

QWEN_PLACES: dict[Kind, str] = {
    "image": "<|vision_start|><|image_pad|><|vision_end|>", "video": "<|vision_start|><|video_pad|><|vision_end|>",
}  # fmt: skip
QWEN_MARKS = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}  # fmt: skip
QWEN_TOKENS = {f"{name}_id": token for name, token in QWEN_MARKS.items()}


def qwen(name: str, model: str, processor: str, frames: str, config: Config) -> TinyLanguage:
    """One that has the pictures and the tokens of Qwen's."""
    return TinyLanguage(
        name=name, model=model, config=config, places=QWEN_PLACES, marks=QWEN_MARKS, tokens=QWEN_TOKENS,
        processor=processor,
        parts={"image_processor": ("Qwen2VLImageProcessor", PATCHES), "video_processor": (frames, FRAMES)},
    )  # fmt: skip


QWEN3_5: Config = {
    "text_config": {"rope_parameters": {**SECTIONS, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5},
                    "layer_types": ["linear_attention", "full_attention"]},
}  # fmt: skip

QWENS = (
    qwen("qwen2_vl", "Qwen2VLForConditionalGeneration", "Qwen2VLProcessor", "Qwen2VLVideoProcessor",
         {"text_config": {"rope_parameters": NARROW}, "vision_config": {"hidden_size": 32, "mlp_ratio": 2}}),
    qwen("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor",
         {"text_config": {"rope_parameters": NARROW}}),
    qwen("qwen3_vl", "Qwen3VLForConditionalGeneration", "Qwen3VLProcessor", "Qwen3VLVideoProcessor",
         {"text_config": {"rope_parameters": SECTIONS}}),
    qwen("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "Qwen3VLProcessor", "Qwen3VLVideoProcessor",
         {"text_config": {"rope_parameters": SECTIONS}}),
    qwen("qwen3_5", "Qwen3_5ForConditionalGeneration", "Qwen3VLProcessor", "Qwen3VLVideoProcessor", QWEN3_5),
    qwen("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "Qwen3VLProcessor", "Qwen3VLVideoProcessor", QWEN3_5),
)  # fmt: skip
