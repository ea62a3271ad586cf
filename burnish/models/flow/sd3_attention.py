"""Attention of the last block of Stable Diffusion 3 without the half that nobody reads.

The last block drops what attention gives to the text. Its text queries, and their rows of the attention matrix, can be
left out: the same picture and the same gradient, for less work. The fewer the blocks and the longer the text against
the picture, the more it saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


class PictureQueries:
    """An attention processor of diffusers that asks for the picture only."""

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, attention_mask: None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend from picture tokens [B, I, D] to picture and text tokens [B, T, D]; text comes back as it went in."""
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        assert attention_mask is None, "Stable Diffusion 3 attends to everything"

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


def leave_out_unread_text(network: Any) -> None:
    """Give every block that drops its text the shorter attention."""
    for block in network.transformer_blocks:
        if block.context_pre_only:
            block.attn.set_processor(PictureQueries())
