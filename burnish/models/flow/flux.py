"""FLUX.1 (dev and schnell), from any directory in the layout of diffusers' FluxPipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burnish.models.flow.embedded import EmbeddedPipeline, Grid
from burnish.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from burnish.types.rollout import Embeddings

PATCH = 2


@register("flow model", "flux")
class FLUX(EmbeddedPipeline):
    """A transformer over packed latents and T5's tokens; CLIP computes the pooled embedding.

    Packing happens in ``velocity``; everywhere else latents are [B, C, H, W].
    """

    pipeline_class = "FluxPipeline"
    transformer_class = "FluxTransformer2DModel"
    placement = "shift_once"
    # the first three also match in the single blocks, whose feed-forward layers are usually not adapted
    lora_targets = (
        "attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0",
        "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out",
        "ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2",
    )  # fmt: skip
    may_lack = ("vae",)
    t5 = "tokenizer_2"
    default_text_length = 512

    @property
    def grid(self) -> Grid:
        config: Any = self.network.config
        return Grid(config.in_channels // PATCH**2, PATCH, self.pipeline.default_sample_size, None)

    def encode(self, texts: Sequence[str]) -> Embeddings:
        import torch

        from burnish.types.rollout import Embeddings

        self.check_texts(texts)
        with torch.no_grad():
            tokens, pooled, _ = self.pipeline.encode_prompt(
                prompt=list(texts), prompt_2=None, device=self.device, max_sequence_length=self.text_length
            )
        return Embeddings(tokens=tokens.float(), pooled=pooled.float())

    def velocity(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Any) -> Tensor:
        from burnish.types.batch import to_device

        rows, columns = x.shape[-2] // PATCH, x.shape[-1] // PATCH
        guidance = None if self.embedded_guidance is None else x.new_full((len(x),), self.embedded_guidance)
        with self.autocast():
            velocity = network(
                hidden_states=pack(x),
                timestep=time,  # the network multiplies time and guidance by 1000
                guidance=guidance,
                encoder_hidden_states=conditioning.tokens,
                pooled_projections=conditioning.pooled,
                txt_ids=x.new_zeros(conditioning.tokens.shape[1], 3),
                img_ids=to_device(positions(rows, columns), x.device),
                return_dict=False,
            )[0]
        return unpack(velocity.float(), rows, columns)


def pack(latents: Tensor) -> Tensor:
    """Patches of 2 x 2 as tokens: [B, C, H, W] -> [B, (H / 2) (W / 2), 4 C], row by row."""
    patches: Tensor = latents.unflatten(-1, (-1, PATCH)).unflatten(-3, (-1, PATCH))
    return patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpack(tokens: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of ``pack``: [B, rows columns, 4 C] -> [B, C, 2 rows, 2 columns]."""
    patches: Tensor = tokens.unflatten(2, (-1, PATCH, PATCH)).unflatten(1, (rows, columns))
    return patches.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def positions(rows: int, columns: int) -> Tensor:
    """Rotary positions of image tokens: [rows columns, 3] of 0, row, column. Text has 0, 0, 0."""
    import torch

    ids = torch.zeros(rows, columns, 3)
    ids[..., 1], ids[..., 2] = torch.arange(rows)[:, None], torch.arange(columns)
    return ids.flatten(0, 1)
