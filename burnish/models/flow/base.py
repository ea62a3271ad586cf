"""What a family of flow models provides; algorithms and samplers know nothing more about it."""

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
    pipeline_class: ClassVar[str]  # the _class_name in model_index.json that this family reads
    placement: ClassVar[Kind]  # where diffusers' own pipeline of this family places the noise levels
    lora_targets: ClassVar[tuple[str, ...]]  # layers that adapters go to unless the user names others
    network: nn.Module  # what is trained
    compute: torch.dtype  # precision of the network's forward
    scheduler_config: dict[str, Any]
    embedded_guidance: float | None  # guidance that the network is told; None where it has no embedding of it

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
        """Refuse prompts that the text encoders would cut: UserError says which."""
        ...

    def encode(self, texts: Sequence[str]) -> Conditioning:
        """Embeddings of prompts, one row each, without gradients."""
        ...

    def latent_shape(self, height: int | None, width: int | None) -> tuple[int, ...]:
        """Shape of one sample's latents for a picture of that size; None takes the model's own size."""
        ...

    def image_tokens(self, shape: Sequence[int]) -> int:
        """Tokens that the network sees for latents of that shape; dynamic schedules depend on it."""
        ...

    def velocity(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Conditioning) -> Tensor:
        """The velocity eps - x_0 that ``network`` predicts at latents [M, ...] and times [M]: [M, ...] float32."""
        ...

    def decode(self, latents: Tensor) -> list[np.ndarray]:
        """Pictures uint8 [H, W, 3] of latents [B, ...]; one with non-finite values is an ``images.NonFiniteImage``."""
        ...

    def decode_tensor(self, latents: Tensor) -> Tensor:
        """Pictures [B, 3, H, W] float32 in [0, 1] of latents [B, ...]; gradients reach the latents."""
        ...

    def encode_pictures(self, pictures: Sequence[np.ndarray]) -> Tensor:
        """Latents [B, ...] of pictures uint8 [H, W, 3] of one size, without gradients: the VAE's means.

        Raises:
            UserError: the pictures differ in size, or have a size that the model can't draw.
        """
        ...

    def recompute_activations(self) -> None:
        """Keep few activations of the network and of decoding, and compute the others again in the backward pass."""
        ...

    def absent_parts(self) -> list[str]:
        """Parts that the pipeline could have but does without."""
        ...

    def save_lora(self, folder: Path, weights: dict[str, Tensor], metadata: dict[str, object]) -> None:
        """Write an adapter as diffusers' ``load_lora_weights`` reads it."""
        ...

    def fold_lora(self, folder: Path) -> None:
        """Add an adapter to the network's weights for good; it is read as ``load_lora_weights`` does."""
        ...

    def save_pipeline(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write the whole pipeline with other weights of the network, as diffusers' ``from_pretrained`` reads it."""
        ...
