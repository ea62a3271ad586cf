"""Models that read text only: Llama, Qwen2, Qwen3, Mistral, and what is built like them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.models.language.base import TransformersModel, plain
from burnish.registry import register

if TYPE_CHECKING:
    from burnish.language.model import Chat


@register("language model", "text")
class TextModel(TransformersModel):
    """Decoders of pre-normalised layers with rotary positions; parts of a message are joined to plain text."""

    name = "text"
    model_types = ("llama", "qwen2", "qwen3", "mistral", "ministral", "qwen2_moe", "qwen3_moe")

    def _render(self, messages: Chat) -> tuple[str, str]:
        # their templates know strings only
        return super()._render([message | {"content": plain(message["content"])} for message in messages])
