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
