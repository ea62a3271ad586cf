"""Models that read text only: Llama, Qwen2, Qwen3, Mistral, and what is built like them."""

from __future__ import annotations

from burnish.models.language.base import TransformersModel
from burnish.registry import register


@register("language model", "text")
class TextModel(TransformersModel):
    """Decoders of pre-normalised layers with rotary positions; parts of a message are joined to plain text."""

    name = "text"
    model_types = ("llama", "qwen2", "qwen3", "mistral", "ministral", "qwen2_moe", "qwen3_moe")
    reads_parts = False
