"""Stable Diffusion 3 and 3.5, from any directory in the layout of diffusers' StableDiffusion3Pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.models.sd3_attention import leave_out_unread_text
from burnish.registry import register

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from burnish.types import Conditioning


@register("model", "sd3")
class SD3:
    """The pipeline's own parts, driven one at a time. A pipeline without a VAE draws in pixel space."""

    name = "sd3"
    pipeline_class = "StableDiffusion3Pipeline"

    def __init__(self, pipeline: Any, *, compute: torch.dtype, max_sequence_length: int | None) -> None:
        self.pipeline = pipeline
        self.network: nn.Module = pipeline.transformer
        leave_out_unread_text(pipeline.transformer)
        self.scheduler_config = dict(pipeline.scheduler.config)
        self.compute = compute
        self.text_length = 256 if max_sequence_length is None else max_sequence_length

    @classmethod
    def load(
        cls,
        path: Path,
        index: dict[str, Any],
        *,
        dtype: torch.dtype,
        compute: torch.dtype,
        device: str,
        max_sequence_length: int | None,
    ) -> SD3:
        """Read a pipeline from disk.

        Args:
            path: directory with model_index.json.
            index: that file's content.
            dtype: precision of the weights of the network; the VAE is always float32.
            compute: precision of the network's forward.
            device: where it goes.
            max_sequence_length: tokens of the T5 encoder; None takes diffusers' default.
        """
        import torch

        parts = ("vae", "text_encoder", "text_encoder_2", "text_encoder_3", "tokenizer", "tokenizer_2", "tokenizer_3")
        absent = {name: None for name in parts if index.get(name, [None])[0] is None}
        precision = {"default": dtype, "vae": torch.float32}
        with _quietly():
            from diffusers import StableDiffusion3Pipeline

            pipeline = StableDiffusion3Pipeline.from_pretrained(path, dtype=precision, local_files_only=True, **absent)
        pipeline.set_progress_bar_config(disable=True)
        for part in pipeline.components.values():
            if isinstance(part, torch.nn.Module):
                part.requires_grad_(False).eval().to(device)
        return cls(pipeline, compute=compute, max_sequence_length=max_sequence_length)

    def check(self, texts: Sequence[str]) -> None:
        # cutting a prompt would silently train on another one than the user wrote
        p = self.pipeline
        limits = [(p.tokenizer, p.tokenizer_max_length, "tokens of the CLIP tokenizer")]
        if p.tokenizer_3 is not None:
            limits = [(p.tokenizer_3, self.text_length, "tokens of the T5 tokenizer (rollout.max_sequence_length)")]
        for tokenizer, limit, what in limits:
            for text in texts:
                if (length := len(tokenizer(text).input_ids)) > limit:
                    raise UserError(f"prompt {text!r} has {length} tokens; this model reads at most {limit} {what}")

    def encode(self, texts: Sequence[str]) -> Conditioning:
        import torch

        from burnish.types import Conditioning

        self.check(texts)
        with torch.no_grad():
            tokens, _, pooled, _ = self.pipeline.encode_prompt(
                prompt=list(texts),
                prompt_2=None,
                prompt_3=None,
                device=self._device,
                do_classifier_free_guidance=False,
                max_sequence_length=self.text_length,
            )
        return Conditioning(tokens=tokens.float(), pooled=pooled.float())

    def latent_shape(self, height: int | None, width: int | None) -> tuple[int, ...]:
        scale = 1 if self.pipeline.vae is None else self.pipeline.vae_scale_factor
        config: Any = self.network.config
        unit = scale * config.patch_size
        sides = []
        for name, side in (("height", height), ("width", width)):
            side = config.sample_size * scale if side is None else side
            if side % unit:
                raise UserError(
                    f"rollout.{name} is {side}; this model draws in units of {unit} pixels: "
                    f"use {max(side // unit, 1) * unit} or {(side // unit + 1) * unit}"
                )
            if side // unit > config.pos_embed_max_size:
                raise UserError(
                    f"rollout.{name} is {side}; this model draws at most {config.pos_embed_max_size * unit} pixels"
                )
            sides.append(side // scale)
        return (config.in_channels, *sides)

    def image_tokens(self, shape: Sequence[int]) -> int:
        config: Any = self.network.config
        patch = config.patch_size
        return (shape[-2] // patch) * (shape[-1] // patch)

    def velocity(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Conditioning) -> Tensor:
        import torch

        scale = self.scheduler_config.get("num_train_timesteps", 1000)
        with torch.autocast(x.device.type, self.compute, enabled=self.compute != torch.float32):
            velocity = network(
                hidden_states=x,
                timestep=time * scale,
                encoder_hidden_states=conditioning.tokens,
                pooled_projections=conditioning.pooled,
                return_dict=False,
            )[0]
        return velocity.float()

    def decode(self, latents: Tensor) -> list[np.ndarray]:
        import torch

        vae = self.pipeline.vae
        with torch.no_grad():
            if vae is None:
                pixels = latents
            else:
                # a picture at a time: decoding needs far more memory than denoising
                scaled = latents.float() / vae.config.scaling_factor + (vae.config.shift_factor or 0.0)
                pixels = torch.cat([vae.decode(one, return_dict=False)[0] for one in scaled.split(1)])
            pixels = (pixels.float() / 2 + 0.5).clamp(0, 1)
            # the same rounding as diffusers' image processor
            whole = (pixels * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
        if whole.shape[-1] == 1:
            whole = whole.expand(*whole.shape[:-1], 3)
        return [picture.contiguous().numpy() for picture in whole]

    def absent_parts(self) -> list[str]:
        optional = type(self.pipeline)._optional_components
        return [name for name, part in self.pipeline.components.items() if part is None and name not in optional]

    def save_lora(self, folder: Path, weights: dict[str, Tensor], metadata: dict[str, object]) -> None:
        type(self.pipeline).save_lora_weights(
            folder, transformer_lora_layers=weights, transformer_lora_adapter_metadata=metadata
        )

    def save_pipeline(self, folder: Path, weights: dict[str, Tensor]) -> None:
        import torch

        trained = self.pipeline.transformer
        with torch.device("meta"):
            plain = type(trained).from_config(dict(trained.config))
        plain.load_state_dict(weights, assign=True)
        plain.register_to_config(**{k: v for k, v in trained.config.items() if not k.startswith("_")})
        parts = {name: part for name, part in self.pipeline.components.items() if part is not None}
        absent = {name: None for name in self.pipeline.components if name not in parts}
        with _quietly():
            type(self.pipeline)(**(parts | absent | {"transformer": plain})).save_pretrained(folder)

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the bars of two libraries, and without their advice to install what is not needed here."""
    import diffusers
    import transformers

    loggers = (diffusers.utils.logging, transformers.utils.logging)
    spoken = [logger.get_verbosity() for logger in loggers]
    for logger in loggers:
        logger.disable_progress_bar()
        logger.set_verbosity_error()
    try:
        yield
    finally:
        for logger, verbosity in zip(loggers, spoken, strict=True):
            logger.enable_progress_bar()
            logger.set_verbosity(verbosity)
