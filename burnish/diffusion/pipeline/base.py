"""What a family of generators provides; algorithms and samplers use nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from burnish.diffusion.options import ModelOptions, RolloutOptions
    from burnish.options.model import LoraOptions
    from burnish.types.prompt import Prompt
    from burnish.types.rollout import Requests, Streams
    from burnish.types.samples import Kind
    from burnish.utils.random import Part
    from burnish.utils.weights import Agreed

Agree = Callable[[dict[str, int]], dict[str, int]]  # forwards of each network here -> those that every rank makes


class FlowModel(Protocol):
    """A generator whose networks predict a velocity eps - x_0, t from 1 to 0."""

    name: ClassVar[str]
    pipeline_class: ClassVar[str]  # the _class_name in model_index.json that the family is for
    class_name: str  # the class of this model's pipeline
    lora_targets: Sequence[str]  # layers that get adapters unless the user names others
    network: nn.Module  # what is trained; several networks are one module
    compute: torch.dtype  # precision of the network's forward pass
    device: torch.device  # where it runs
    writer: str  # the part that writes tokens before it draws, if that is trained; else empty
    denoises: bool  # whether a network is trained that predicts velocities
    bases: Sequence[Any]  # networks with adapters whose other weights leave the device while prompts are encoded

    @classmethod
    def check_options(cls, path: Path, index: dict[str, Any], rollout: RolloutOptions) -> None:
        """Refuse options that the pipeline at ``path`` doesn't support, by its configuration files alone: UserError."""

    @classmethod
    def draws(cls, index: dict[str, Any], rollout: RolloutOptions) -> Kind:
        """What its samples are, by its configuration files alone."""

    @classmethod
    def check_inputs(cls, index: dict[str, Any], rollout: RolloutOptions, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts whose images the pipeline doesn't take, or that lack those it needs, without loading it.

        Raises:
            UserError: with the first such prompt.
        """

    @classmethod
    def load(
        cls,
        path: Path,
        index: dict[str, Any],
        options: ModelOptions,
        rollout: RolloutOptions,
        *,
        dtype: torch.dtype,
        compute: torch.dtype,
        device: str,
        given: Mapping[str, nn.Module],
    ) -> Self:
        """Read a pipeline, frozen and in evaluation mode; see ``burnish.diffusion.pipeline.loaded``."""

    def place(self) -> None:
        """Move what is trained to the device; ranks that share it take their shards instead."""

    def refuse_non_finite(self, agreed: Agreed = ...) -> None:
        """Refuse NaN or infinite weights of what is trained, once it is placed: UserError."""

    def condition(self, prompts: Sequence[Prompt], **size: Any) -> Requests:
        """What samples of prompts are drawn from.

        Args:
            prompts: one per row.
            size: height and width in pixels, and steps; see ``Requests``.
        """

    def write(
        self, network: nn.Module, conditioning: Requests, keys: Sequence[tuple[Part, ...]], size: int
    ) -> tuple[Requests, list[Tensor]]:
        """Tokens for each row, in its conditioning, and their log-probs [T], of a model with a ``writer``.

        Args:
            network: this model's, or a copy of it.
            conditioning: [B] rows, those of a prompt next to each other.
            keys: [B] seeds, which alone decide on the tokens of a row.
            size: rows that are written at once.
        """

    def token_logprobs(self, network: nn.Module, conditioning: Requests, *, agree: Agree | None = None) -> Tensor:
        """Log-probs [M, T] of the tokens of rows, with gradients; 0 beyond their ends. ``agree``: see ``predict``."""

    def start(self, conditioning: Requests, keys: Sequence[tuple[Part, ...]]) -> Tensor:
        """First states [B, ...] in float32: row i depends on its conditioning and on the seeds ``keys[i]`` alone.

        Raises:
            UserError: the model doesn't support the size.
        """

    def noised(self, conditioning: Requests) -> Tensor | None:
        """Which elements of states reach the networks, [B, ...] bool: the others have no effect, such as those of a
        fixed first frame. None where all do."""

    def streams(self, conditioning: Requests) -> Streams:
        """Name (video or audio) and elements of each stream of a state; nothing where it has a single one, or none that
        what is drawn could tell apart."""

    def schedule(self, conditioning: Requests) -> Tensor:
        """Times of the denoising steps, [N + 1] decreasing from 1 to 0; those of the first row count."""

    def encode(self, now: Requests, later: Requests, scales: Collection[float]) -> None:
        """Encode prompts before they are used, where parts rest in CPU memory: meanwhile, what denoises is not on the
        device.

        Args:
            now: prompts that are used next; if all of them are known, nothing is done.
            later: these and those that follow, of which as many are encoded as are kept.
            scales: of the guidance that they are used with.
        """

    def visitors(self, conditioning: Requests, times: Sequence[float]) -> list[frozenset[str]]:
        """Which networks that rest in CPU memory come to the device for a step at each of these times, by name."""

    def predict(
        self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Requests,
        *, guidance: float, agree: Agree | None = None,
    ) -> Tensor:  # fmt: skip
        """The velocity that ``network`` predicts, with guidance.

        Args:
            network: this model's, or a copy of it.
            x: [M, ...] states.
            time: [M], in the CPU's memory.
            conditioning: [M] rows of the prompts.
            guidance: 1 is none.
            agree: where ranks hold the network together, how many forwards all of them make.

        Returns:
            [M, ...] float32.
        """

    def verify(self, conditioning: Requests, *, guidance: float) -> None:
        """Compare what is made of the model with its pipeline's own run, once.

        Raises:
            UserError: they differ.
        """

    def decode(self, latents: Tensor, conditioning: Requests) -> list[Any]:
        """Samples of final states [B, ...]: images uint8 [H, W, 3], clips or sounds; non-finite ones are marked."""

    def decode_tensor(self, latents: Tensor, conditioning: Requests) -> Tensor:
        """Images [B, 3, H, W] or frames [B, F, 3, H, W], float32 in [0, 1]; gradients reach the states."""

    def encode_images(self, images: Sequence[np.ndarray], conditioning: Requests) -> Tensor:
        """Final states [B, ...] of images uint8 [H, W, 3] of one size, or of clips uint8 [F, H, W, 3], without
        gradients: the VAE's means.

        Raises:
            UserError: the images differ in size, or the model doesn't support it.
        """

    def recompute_activations(self, blocks: bool | int = True) -> None:
        """Activation checkpointing in all blocks of the network, or in the first ones, and in the VAE's decoder."""

    def absent_parts(self) -> list[str]:
        """Names of the pipeline's parts that are missing."""

    def save_lora(self, folder: Path, adapter: str) -> None:
        """Write an adapter as diffusers reads it."""

    def lora_lines(self, folder: Path) -> list[str]:
        """Code that loads what ``save_lora`` wrote into a pipeline ``pipe``."""

    def adapter_weights(self, options: LoraOptions) -> dict[str, Tensor]:
        """The weights of the adapter in ``options.path`` by their names in the network.

        Raises:
            UserError: it doesn't fit the options.
        """

    def fold_lora(self, folder: Path) -> None:
        """Merge an adapter, as ``save_lora`` writes it, into the network's weights permanently."""

    def save_pipeline(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write the full pipeline with other weights of the network, as diffusers' ``from_pretrained`` reads it."""
