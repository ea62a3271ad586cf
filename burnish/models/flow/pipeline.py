"""What families of diffusers pipelines share: loading, checks of prompts, encoding and decoding of pictures, export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from burnish.models.lora import merging_rounds
from burnish.utils.errors import UserError
from burnish.utils.images import NonFiniteImage
from burnish.utils.json_text import read_object
from burnish.utils.weights import load_network, refuse_non_finite, refuse_oversized

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from burnish.flow.schedules import Kind

LONGEST_TEXT = 512  # T5 tokens that diffusers' pipelines read at most
DISTILLED_GUIDANCE = 3.5  # default guidance input of FluxPipeline
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in PIL's conversion to grey


@dataclass(frozen=True)
class Grid:
    """Layout of latents and image tokens."""

    channels: int  # of latents
    patch: int  # latent positions per side of an image token
    side: int  # latent positions per side of the default picture
    largest: int | None  # image tokens per side at most


class PipelineModel:
    """A model that calls the parts of a diffusers pipeline. Without a VAE it works in pixel space.

    A family adds how prompts are encoded and how its network is called.
    """

    name: ClassVar[str]
    pipeline_class: ClassVar[str]
    placement: ClassVar[Kind]
    lora_targets: ClassVar[tuple[str, ...]]
    may_lack: ClassVar[tuple[str, ...]]  # optional parts
    t5: ClassVar[str]  # name of T5's tokenizer
    default_text_length: ClassVar[int]

    def __init__(
        self,
        pipeline: Any,
        *,
        compute: torch.dtype,
        max_sequence_length: int | None,
        embedded_guidance: float | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.network: nn.Module = pipeline.transformer
        self.scheduler_config = dict(pipeline.scheduler.config)
        self.compute = compute
        self._device = next(pipeline.transformer.parameters()).device
        self.text_length = self.default_text_length if max_sequence_length is None else max_sequence_length
        self.embedded_guidance: float | None = None
        if pipeline.transformer.config.get("guidance_embeds", False):
            self.embedded_guidance = DISTILLED_GUIDANCE if embedded_guidance is None else embedded_guidance

    @classmethod
    def check_options(cls, path: Path, *, max_sequence_length: int | None, embedded_guidance: float | None) -> None:
        """Refuse options that the pipeline at ``path`` doesn't support, by its configuration files alone.

        Raises:
            UserError: the text is too long for T5, or the network has no guidance embedding.
        """
        if max_sequence_length is not None and max_sequence_length > LONGEST_TEXT:
            raise UserError(
                f"rollout.max_sequence_length is {max_sequence_length}, but a {cls.pipeline_class} reads at most "
                f"{LONGEST_TEXT} tokens; lower it"
            )
        if embedded_guidance is None:
            return
        config = read_object(path / "transformer" / "config.json")
        if not config.get("guidance_embeds", False):
            raise UserError(
                f"rollout.embedded_guidance is {embedded_guidance}, but this {cls.pipeline_class} has no guidance "
                "embedding (guidance_embeds in transformer/config.json): leave it out, or use rollout.guidance_scale"
            )

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
        embedded_guidance: float | None = None,
        network_only: bool = False,
    ) -> Self:
        """Read a pipeline from disk.

        Args:
            path: directory with model_index.json.
            index: that file's content.
            dtype: precision of the weights of the network; the VAE is always float32.
            compute: precision of the network's forward pass.
            device: of the network.
            max_sequence_length: tokens of the T5 encoder; None takes diffusers' default.
            embedded_guidance: guidance input of a guidance-distilled network; None takes diffusers' default.
            network_only: load no text encoders.

        Raises:
            UserError: weights are missing, wrong or not finite, or the latents have an unsupported shape.
        """
        import torch

        absent = {name: None for name in cls.may_lack if index.get(name, [None])[0] is None}
        if network_only:
            absent |= {name: None for name in index if name.startswith("text_encoder")}
        refuse_oversized(path / "scheduler" / "scheduler_config.json")
        precision = {"default": dtype, "vae": torch.float32}
        with _quietly():
            import diffusers

            kind = getattr(diffusers, cls.pipeline_class)
            parts = {
                name: load_network(network, path / name, dtype=precision.get(name, dtype))
                for name, network in _networks(index).items()
                if name not in absent
            }
            pipeline = kind.from_pretrained(path, dtype=precision, local_files_only=True, **absent, **parts)
        pipeline.set_progress_bar_config(disable=True)
        for name, part in pipeline.components.items():
            if isinstance(part, torch.nn.Module):
                part.requires_grad_(False).eval().to(device)
                refuse_non_finite(part, path / name)
        model = cls(
            pipeline, compute=compute, max_sequence_length=max_sequence_length, embedded_guidance=embedded_guidance
        )
        if pipeline.vae is None and model.grid.channels not in (1, 3):
            raise UserError(
                f"without a VAE its latents are pictures of 1 or 3 channels, but they have {model.grid.channels}"
            )
        return model

    @property
    def grid(self) -> Grid:
        """Layout of latents and image tokens."""
        raise NotImplementedError

    @property
    def scale(self) -> int:
        """Pixels per side of a latent position."""
        return 1 if self.pipeline.vae is None else self.pipeline.vae_scale_factor

    def check(self, texts: Sequence[str]) -> None:
        # truncation would silently train on another prompt than the user wrote
        p = self.pipeline
        tokenizer, limit, what = p.tokenizer, p.tokenizer_max_length, "tokens of the CLIP tokenizer"
        if (t5 := getattr(p, self.t5)) is not None:
            tokenizer, limit, what = t5, self.text_length, "tokens of the T5 tokenizer (rollout.max_sequence_length)"
        if tokenizer is None:
            raise UserError("model.path has no tokenizer in its model_index.json; fetch the model again")
        for text in texts:
            if (length := len(tokenizer(text).input_ids)) > limit:
                shown = text if len(text) <= 60 else f"{text[:57]}..."
                raise UserError(
                    f"prompt {shown!r} has {length} tokens, but this model reads at most {limit} {what}; shorten it"
                )
            self._check_tokens(text)

    def _check_tokens(self, text: str) -> None:
        """Refuse a tokenizer of another model: one with ids beyond the encoder's vocabulary."""
        parts = self.pipeline.components
        for name, encoder in parts.items():
            tokenizer = parts.get(name.replace("text_encoder", "tokenizer")) if "text_encoder" in name else None
            if encoder is None or tokenizer is None:
                continue
            last, known = max(tokenizer(text).input_ids, default=0), encoder.get_input_embeddings().num_embeddings
            if last >= known:
                raise UserError(
                    f"prompt {text!r:.60} has token id {last}, but {name} has only {known}: the tokenizer belongs to "
                    "another model; fetch the model again"
                )

    def latent_shape(self, height: int | None, width: int | None) -> tuple[int, ...]:
        standard = self.grid.side * self.scale
        rows = self._positions("rollout.height", standard if height is None else height)
        columns = self._positions("rollout.width", standard if width is None else width)
        return (self.grid.channels, rows, columns)

    def image_tokens(self, shape: Sequence[int]) -> int:
        return (shape[-2] // self.grid.patch) * (shape[-1] // self.grid.patch)

    def decode_tensor(self, latents: Tensor) -> Tensor:
        import torch

        vae, pixels = self.pipeline.vae, latents.float()
        if vae is not None:
            # one picture at a time, because decoding needs far more memory than denoising
            scaled = pixels / vae.config.scaling_factor + (vae.config.shift_factor or 0.0)
            pixels = torch.cat([vae.decode(one, return_dict=False)[0] for one in scaled.split(1)])
        pixels = (pixels / 2 + 0.5).clamp(0, 1)
        return pixels.expand(-1, 3, -1, -1)

    def decode(self, latents: Tensor) -> list[np.ndarray]:
        import torch

        with torch.no_grad():
            pixels = self.decode_tensor(latents)
            # both are checked: clamping hides infinite latents, and a VAE can turn finite ones into NaN
            finite = (latents.flatten(1).isfinite().all(1) & pixels.flatten(1).isfinite().all(1)).tolist()
            # rounded as by diffusers' image processor
            rounded = (pixels.nan_to_num(0.0) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
        pictures = [picture.contiguous().numpy() for picture in rounded]
        return [picture if good else NonFiniteImage.of(picture) for picture, good in zip(pictures, finite, strict=True)]

    def encode_pictures(self, pictures: Sequence[np.ndarray]) -> Tensor:
        import numpy as np
        import torch

        shapes = {picture.shape for picture in pictures}
        if len(shapes) != 1 or (shape := shapes.pop())[2:] != (3,):
            raise UserError(f"pictures have shapes {sorted(shapes)}; all must have the same shape [H, W, 3]")
        for what, side in zip(("height", "width"), shape[:2], strict=True):
            self._positions(f"the {what} of a picture", side)
        pixels = torch.from_numpy(np.stack(pictures)).to(self._device).permute(0, 3, 1, 2).float() / 127.5 - 1
        vae = self.pipeline.vae
        if vae is None:
            grey = (pixels * pixels.new_tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
            return grey if self.grid.channels == 1 else pixels
        with torch.no_grad():
            means = torch.cat([vae.encode(one, return_dict=False)[0].mode() for one in pixels.split(1)])
        latents: Tensor = (means - (vae.config.shift_factor or 0.0)) * vae.config.scaling_factor
        return latents

    def recompute_activations(self) -> None:
        self.network.enable_gradient_checkpointing()  # type: ignore[operator]
        if self.pipeline.vae is not None:
            self.pipeline.vae.enable_gradient_checkpointing()

    def absent_parts(self) -> list[str]:
        optional = type(self.pipeline)._optional_components
        return [name for name, part in self.pipeline.components.items() if part is None and name not in optional]

    def save_lora(self, folder: Path, weights: dict[str, Tensor], metadata: dict[str, object]) -> None:
        type(self.pipeline).save_lora_weights(
            folder, transformer_lora_layers=weights, transformer_lora_adapter_metadata=metadata
        )

    def fold_lora(self, folder: Path) -> None:
        with _quietly():
            self.pipeline.load_lora_weights(folder)
            if not merging_rounds(self.network):
                self.pipeline.fuse_lora(components=["transformer"])
                self.pipeline.unload_lora_weights()
        self.network.requires_grad_(False)

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

    def _positions(self, what: str, side: int) -> int:
        """Latent positions along a side of ``side`` pixels; ``what`` is its name in messages."""
        unit, largest = self.scale * self.grid.patch, self.grid.largest
        if side % unit:
            raise UserError(
                f"{what} is {side}, but this model needs multiples of {unit} pixels; "
                f"use {max(side // unit, 1) * unit} or {(side // unit + 1) * unit}"
            )
        if largest is not None and side // unit > largest:
            raise UserError(f"{what} is {side}, but this model supports at most {largest * unit} pixels; lower it")
        return side // self.scale

    def _autocast(self) -> AbstractContextManager[None]:
        """The precision of a forward pass."""
        import torch

        return torch.autocast(self._device.type, self.compute, enabled=self.compute != torch.float32)


def _networks(index: dict[str, Any]) -> dict[str, type[nn.Module]]:
    """Classes of the parts that have weights, by model_index.json."""
    import torch

    found: dict[str, type[nn.Module]] = {}
    for name, value in index.items():
        library, kind = value if isinstance(value, list) and len(value) == 2 else (None, None)
        if library in ("diffusers", "transformers"):
            found_class = getattr(import_module(library), str(kind), None)
            if isinstance(found_class, type) and issubclass(found_class, torch.nn.Module):
                found[name] = found_class
    return found


@contextmanager
def _quietly() -> Iterator[None]:
    """Without progress bars and advice of diffusers and transformers."""
    import diffusers
    import transformers

    loggers = (diffusers.utils.logging, transformers.utils.logging)
    verbosities = [logger.get_verbosity() for logger in loggers]
    for logger in loggers:
        logger.disable_progress_bar()
        logger.set_verbosity_error()
    try:
        yield
    finally:
        for logger, verbosity in zip(loggers, verbosities, strict=True):
            logger.enable_progress_bar()
            logger.set_verbosity(verbosity)
