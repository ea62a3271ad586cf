"""What a family of language models provides; decoders, losses and algorithms know nothing more about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from burnish.types.completion import Encoded, Features

Chat = Sequence[dict[str, Any]]  # as transformers' chat templates read it: {"role": ..., "content": str or parts}


@dataclass(frozen=True)
class Video:
    """Frames uint8 [T, H, W, 3] and how many of them make a second."""

    frames: np.ndarray
    fps: float = 24.0


@dataclass(frozen=True)
class Embedded:
    """Input embeddings of a table of tokens, pixels filled in."""

    tokens: Tensor  # [M, D]
    slots: Tensor  # [M] bool: tokens that stand for pixels
    deep: list[Tensor]  # added to the states at the slots after each of the first layers: [slots, D] each


class LanguageModel(Protocol):
    """A causal language model that may also see. ``network`` is what is trained."""

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]  # model_type in config.json that this family reads
    sees: ClassVar[bool]  # reads pictures
    network: nn.Module
    compute: torch.dtype  # precision of the forward pass
    axes: int  # numbers that make a position: 3 for time, height and width, 1 along the text
    vocabulary: int
    placeholders: Tensor  # [K] long: ids that stand for pixels
    banned: Tensor  # [K] long: ids that are never written, neither in sampling nor in training
    stop: tuple[int, ...]  # ids that end a response
    end: tuple[int, ...]  # what a response of the user ends with, as the chat template writes it
    look_always: bool  # run the vision tower without pixels too, so that no rank of a sharded one waits for the others
    parameters_per_token: int  # weights that every token of the decoder is multiplied with
    longest: int  # positions that it was made for: a prompt and its response should not be longer
    attention_width: int  # layers x heads x width of a head: multiplied per pair of tokens

    @classmethod
    def load(cls, path: Path, *, dtype: torch.dtype, compute: torch.dtype, device: str) -> Self:
        """Read a directory, frozen and in evaluation mode; see ``burnish.models.language.base``."""
        ...

    def encode(
        self,
        messages: Chat,
        images: Sequence[Image] = (),
        videos: Sequence[Video] = (),
        tools: Sequence[dict[str, Any]] = (),
    ) -> Encoded:
        """One prompt as tokens, with a generation prompt at its end. The processor runs here and nowhere else.

        Args:
            messages: the conversation so far.
            images, videos: for the places in the messages, in their order.
            tools: JSON schemas of functions that may be called; a chat template that knows them tells of them.

        Raises:
            UserError: the parts of the messages and the media don't match, the family has no videos, or the chat
                template refuses the messages.
        """
        ...

    def words(self, messages: Chat, tools: Sequence[dict[str, Any]] = ()) -> int:
        """Tokens of a prompt without the processor: each image and video counts as the one that stands for it."""
        ...

    def turn(
        self,
        response: Sequence[int],
        messages: Chat,
        images: Sequence[Image] = (),
        videos: Sequence[Video] = (),
        tools: Sequence[dict[str, Any]] = (),
    ) -> Encoded:
        """What comes after a response when the environment says ``messages``: its positions count from 0."""
        ...

    def response_ids(self, text: str) -> list[int]:
        """The ids of a response, its end included."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a response, without tokens that are no text."""
        ...

    def embed(self, network: nn.Module, ids: Tensor, slots: Tensor, features: Sequence[Features]) -> Embedded:
        """Embeddings of ids [M]; the pixels of ``features``, in order, go to the slots [M] and nowhere else."""
        ...

    def states(self, network: nn.Module, embedded: Embedded, source: Tensor, positions: Tensor, plan: Any) -> Tensor:
        """Last hidden states [N, D] of a line of tokens ``source`` [N] from the table, at positions [A, N]."""
        ...

    def head(self, network: nn.Module) -> Tensor:
        """Weight [V, D] of the language head."""
        ...

    def text(self, network: nn.Module) -> Any:
        """The decoder: a module with layers, norm, embed_tokens and rotary_emb as transformers' Llama has them."""
        ...

    def save(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write the whole directory with other weights, as transformers' ``from_pretrained`` reads it."""
        ...

    def save_lora(self, folder: Path, weights: dict[str, Tensor], metadata: dict[str, object]) -> None:
        """Write an adapter as peft's ``from_pretrained`` reads it."""
        ...
