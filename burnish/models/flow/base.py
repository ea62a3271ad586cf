"""What a family of flow models provides; algorithms and samplers use nothing else of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from burnish.flow.schedules import Kind
    from burnish.types.rollout import Conditioning


class FlowModel(Protocol):
    """A text-to-image model whose network predicts a velocity."""

    name: ClassVar[str]
    pipeline_class: ClassVar[str]  # the _class_name in model_index.json
    placement: ClassVar[Kind]  # how diffusers' own pipeline of this family spaces the noise levels
    lora_targets: ClassVar[tuple[str, ...]]  # layers that get adapters unless the user names others
    network: nn.Module  # what is trained
    compute: torch.dtype  # precision of the network's forward pass
    scheduler_config: dict[str, Any]
    embedded_guidance: float | None  # guidance input of a guidance-distilled network; None for others

    @classmethod
    def check_options(cls, path: Path, *, max_sequence_length: int | None, embedded_guidance: float | None) -> None:
        """Refuse what the pipeline at ``path`` can't do, by its configuration files alone; a UserError says what."""
        ...

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
        embedded_guidance: float | None,
        network_only: bool,
    ) -> Self:
        """Read a pipeline, frozen and in evaluation mode; see ``burnish.models.flow.pipeline``."""
        ...

    def check(self, texts: Sequence[str]) -> None:
        """Refuse prompts that the text encoders would truncate.

        Raises:
            UserError: with the first such prompt.
        """
        ...

    def encode(self, texts: Sequence[str]) -> Conditioning:
        """Embeddings of prompts, one row each, without gradients."""
        ...

    def latent_shape(self, height: int | None, width: int | None) -> tuple[int, ...]:
        """Shape of one sample's latents for a picture size; None takes the model's default.

        Raises:
            UserError: the model doesn't support the size.
        """
        ...

    def image_tokens(self, shape: Sequence[int]) -> int:
        """Image tokens of latents of a shape; dynamic schedules depend on them."""
        ...

    def velocity(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Conditioning) -> Tensor:
        """The velocity eps - x_0 that ``network`` predicts at latents [M, ...] and times [M]: [M, ...] float32."""
        ...

    def decode(self, latents: Tensor) -> list[np.ndarray]:
        """Pictures uint8 [H, W, 3] of latents [B, ...]; with NaN or infinite values, ``images.NonFiniteImage``."""
        ...

    def decode_tensor(self, latents: Tensor) -> Tensor:
        """Pictures [B, 3, H, W] float32 in [0, 1] of latents [B, ...]; gradients reach the latents."""
        ...

    def encode_pictures(self, pictures: Sequence[np.ndarray]) -> Tensor:
        """Latents [B, ...] of pictures uint8 [H, W, 3] of one size, without gradients: the VAE's means.

        Raises:
            UserError: the pictures differ in size, or the model doesn't support it.
        """
        ...

    def recompute_activations(self) -> None:
        """Activation checkpointing in the network and the VAE's decoder."""
        ...

    def absent_parts(self) -> list[str]:
        """Names of the pipeline's parts that are missing."""
        ...

    def save_lora(self, folder: Path, weights: dict[str, Tensor], metadata: dict[str, object]) -> None:
        """Write an adapter as diffusers' ``load_lora_weights`` reads it."""
        ...

    def fold_lora(self, folder: Path) -> None:
        """Merge an adapter, as ``load_lora_weights`` reads it, into the network's weights permanently."""
        ...

    def save_pipeline(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write the full pipeline with other weights of the network, as diffusers' ``from_pretrained`` reads it."""
        ...
