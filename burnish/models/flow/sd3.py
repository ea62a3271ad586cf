"""Stable Diffusion 3 and 3.5, from any directory in the layout of diffusers' StableDiffusion3Pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burnish.models.flow.embedded import EmbeddedPipeline, Grid
from burnish.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from burnish.types.rollout import Embeddings


@register("flow model", "sd3")
class SD3(EmbeddedPipeline):
    """A transformer over latent patches and text tokens; two CLIP encoders, and optionally T5."""

    pipeline_class = "StableDiffusion3Pipeline"
    transformer_class = "SD3Transformer2DModel"
    placement = "diffusers"
    lora_targets = (
        "attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0",
        "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out",
    )  # fmt: skip
    may_lack = (
        "vae", "text_encoder", "text_encoder_2", "text_encoder_3", "tokenizer", "tokenizer_2", "tokenizer_3",
    )  # fmt: skip
    t5 = "tokenizer_3"
    default_text_length = 256

    def __init__(self, pipeline: Any, *args: Any, **settings: Any) -> None:
        super().__init__(pipeline, *args, **settings)
        skip_unused_text(pipeline.transformer)

    @property
    def grid(self) -> Grid:
        config: Any = self.network.config
        return Grid(config.in_channels, config.patch_size, config.sample_size, config.pos_embed_max_size)

    def encode(self, texts: Sequence[str]) -> Embeddings:
        import torch

        from burnish.types.rollout import Embeddings

        self.check_texts(texts)
        with torch.no_grad():
            tokens, _, pooled, _ = self.pipeline.encode_prompt(
                prompt=list(texts),
                prompt_2=None,
                prompt_3=None,
                device=self.device,
                do_classifier_free_guidance=False,
                max_sequence_length=self.text_length,
            )
        return Embeddings(tokens=tokens.float(), pooled=pooled.float())

    def velocity(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Any) -> Tensor:
        scale = self.scheduler_config.get("num_train_timesteps", 1000)
        with self.autocast():
            velocity: Tensor = network(
                hidden_states=x,
                timestep=time * scale,
                encoder_hidden_states=conditioning.tokens,
                pooled_projections=conditioning.pooled,
                return_dict=False,
            )[0]
        return velocity.float()


class PictureQueries:
    """An attention processor of diffusers for blocks whose text output is dropped: picture queries only.

    The last block of Stable Diffusion 3 drops what attention computes for the text. Without the text queries, picture
    and gradients are the same, for less work: more so with few blocks, and with text long against the picture.
    """

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, attention_mask: None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend from picture tokens [B, I, D] to picture and text tokens [B, T, D]; the text is returned unchanged."""
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


def skip_unused_text(network: Any) -> None:
    """Use the shorter attention in every block that drops its text output."""
    for block in network.transformer_blocks:
        if block.context_pre_only:
            block.attn.set_processor(PictureQueries())
