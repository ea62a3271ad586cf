"""Text that nobody reads: the last block of some transformers drops what its attention computes for the text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

TOKENS, TEXT = 4, 3  # of what is compared
TOLERATED = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # largest relative difference


class PictureQueries:
    """An attention processor of diffusers for blocks whose text output is dropped: picture queries only.

    Without the text queries, picture and gradients are the same, for less work: more so with few blocks, and with text
    long against the picture.
    """

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, attention_mask: None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend from picture tokens [B, I, D] to picture and text tokens [B, T, D]; the text is returned unchanged."""
        assert attention_mask is None, "joint attention attends to everything"

        def split(x: Tensor, norm: nn.Module | None = None) -> Tensor:
            x = x.unflatten(-1, (attn.heads, -1)).transpose(1, 2)
            return x if norm is None else norm(x)

        query = split(attn.to_q(hidden_states), attn.norm_q)
        key = split(attn.to_k(hidden_states), attn.norm_k)
        text_key = split(attn.add_k_proj(encoder_hidden_states), attn.norm_added_k)
        value, text_value = split(attn.to_v(hidden_states)), split(attn.add_v_proj(encoder_hidden_states))
        attended = scaled_dot_product_attention(
            query, torch.cat([key, text_key], dim=2), torch.cat([value, text_value], dim=2)
        )
        joined = attended.transpose(1, 2).flatten(2).to(query.dtype)
        for layer in attn.to_out:
            joined = layer(joined)
        return joined, encoder_hidden_states


def leave_out_unread_text(network: nn.Module) -> None:
    """Use the shorter attention in every block that drops its text output, if it gives the same there."""
    from diffusers.models.attention_processor import JointAttnProcessor2_0

    for block in network.modules():
        attn: Any = getattr(block, "attn", None)
        if (
            getattr(block, "context_pre_only", False)
            and type(getattr(attn, "processor", None)) is JointAttnProcessor2_0
        ):
            own = attn.processor
            attn.set_processor(PictureQueries())
            if not _same(attn, own):
                attn.set_processor(own)


def _same(attn: Any, own: Any) -> bool:
    """Whether the attention of a block gives the same for the picture by its present processor as by its ``own``."""
    weight = attn.to_q.weight
    if weight.is_meta:
        return True
    draw = torch.Generator().manual_seed(0)
    picture, text = (
        torch.randn(1, count, attn.to_q.in_features, generator=draw).to(weight) for count in (TOKENS, TEXT)
    )
    with torch.no_grad():
        short, full = (run(attn, picture, text)[0] for run in (attn.processor, own))
    return float((short - full).abs().max()) <= TOLERATED.get(weight.dtype, 0) * float(full.abs().max())
