"""What a language model provides; decoding, losses and algorithms use nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from burnish.language.decoding import DecodingRows
    from burnish.language.logprobs import Head
    from burnish.language.packing import Layout, ResponseStates
    from burnish.types.completion import Completion, Encoded, Features
    from burnish.types.prompt import Prompt
    from burnish.utils.weights import Agreed


Chat = Sequence[dict[str, Any]]  # as transformers' chat templates read it: {"role": ..., "content": str or parts}
Tools = Sequence[dict[str, Any]]  # JSON schemas of functions that the model may call


class Positions(NamedTuple):
    """How many tokens a model reads at once, and which entry of its configuration says so."""

    most: int
    name: str


@dataclass(frozen=True)
class Video:
    """Frames uint8 [T, H, W, 3], and frames per second."""

    frames: np.ndarray
    fps: float = 24.0
    chosen: bool = False  # all of these frames are to be shown: the processor leaves none out


@dataclass(frozen=True)
class Audio:
    """Samples float32 [N] of one channel, and how many of them a second."""

    samples: np.ndarray
    rate: int


@dataclass(frozen=True)
class Shown:
    """What a prompt brings beside text, decoded; each kind in the order of its positions in the messages."""

    images: Sequence[Image] = ()
    videos: Sequence[Video] = ()
    audios: Sequence[Audio] = ()

    @property
    def sizes(self) -> dict[str, list[tuple[float, ...]]]:
        """By kind: an image has height and width, a video shape, ``fps`` and ``chosen``, a sound samples and rate."""
        found: dict[str, list[tuple[float, ...]]] = {
            "image": [image.size[::-1] for image in self.images],
            "video": [(*video.frames.shape[:3], video.fps, video.chosen) for video in self.videos],
            "audio": [(len(audio.samples), audio.rate) for audio in self.audios],
        }
        return {kind: sizes for kind, sizes in found.items() if sizes}


NOTHING = Shown()


@dataclass(frozen=True)
class Embedded:
    """Input embeddings of a table of tokens, vision tokens filled in."""

    tokens: Tensor  # [M, D]
    slots: Tensor  # [M] bool: vision tokens
    deep: list[Tensor]  # added to the states at the slots after each of the first layers: [slots, D] each

    def at(self, source: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Which tokens of a sequence ``source`` [N] are vision tokens [1, N], and their deep features, in order."""
        slots = self.slots[source]
        if not self.deep:
            return slots[None], []
        rank = self.slots.cumsum(0) - 1
        taken = rank[source[slots]]
        return slots[None], [layer.index_select(0, taken) for layer in self.deep]


class LanguageModel(Protocol):
    """A causal language model, with or without a vision tower. ``network`` is what is trained."""

    name: ClassVar[str]
    network: nn.Module
    compute: torch.dtype  # precision of the forward pass
    device: torch.device  # where it runs
    axes: int  # numbers per position: 3 for time, height and width, 1 along the text
    vocabulary: int
    readable_ids: int  # tokens that its embedding knows, of which some may never be sampled
    placeholders: Tensor  # [K] long: ids of vision tokens
    banned: Tensor  # [K] long: ids that are never sampled and have no probability in training
    stop: tuple[int, ...]  # ids that end a response
    end: tuple[int, ...]  # the ids that the chat template writes after a response
    parameters_per_token: int  # weights of the decoder that each token is multiplied with
    audio_rate: int | None  # samples per second of the sounds that it hears; None: it hears none
    max_positions: int  # that the model was trained for: the limit of a prompt with its response
    position_limit: str  # what that is called in its configuration
    attention_width: int  # layers x heads x head width: multiplications per pair of tokens

    @classmethod
    def load(cls, path: Path, *, dtype: torch.dtype, compute: torch.dtype, device: str) -> Self:
        """Read a directory, frozen and in evaluation mode; see ``burnish.language.model.universal``."""
        ...

    def place(self) -> None:
        """Move the network to the device; ranks that share it take their shards instead."""
        ...

    def refuse_non_finite(self, agreed: Agreed = ...) -> None:
        """Refuse NaN or infinite weights of the network, once it is placed: UserError."""
        ...

    def try_out(self) -> None:
        """Find out how the network can be run."""
        ...

    def encode(self, messages: Chat, shown: Shown = NOTHING, tools: Tools = ()) -> Encoded:
        """Tokenize one prompt, with the generation prompt at its end. The processor runs here and nowhere else.

        Args:
            messages: the conversation so far.
            shown: what the messages have places for; sounds at ``audio_rate``.
            tools: for chat templates that describe tools.

        Raises:
            UserError: the processor can't read the media, or the chat template refuses the messages.
        """
        ...

    def refusal(self, messages: Chat, tools: Tools = ()) -> str:
        """Why messages can't be asked: what the chat template refuses or leaves out; "" if they can."""
        ...

    def count_tokens(self, messages: Chat, tools: Tools = ()) -> int:
        """Tokens of a prompt without running the processor: each image and video counts as one."""
        ...

    def picture_tokens(self, width: int, height: int) -> int | None:
        """Tokens of a picture by its size alone, by the processor's own arithmetic; None if only pixels tell."""
        ...

    def turn(self, response: Sequence[int], messages: Chat, shown: Shown = NOTHING, tools: Tools = ()) -> Encoded:
        """What follows a response when the environment says ``messages``; its positions count from 0."""
        ...

    def response_ids(self, text: str) -> list[int]:
        """The ids of a response, its end included."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a response, without special tokens."""
        ...

    def response_states(
        self, network: nn.Module, completion: Completion, *, layout: Layout | Literal["auto"]
    ) -> ResponseStates:
        """The states that the policy's tokens were chosen from, with gradients.

        Each prompt's media are encoded once per forward pass. ``layout`` changes values by rounding only; a model that
        can't run one takes the nearest that it can.
        """
        ...

    def decode_rows(
        self, network: nn.Module, rows: DecodingRows, *, batch_size: int, check_cancelled: Callable[[], None]
    ) -> None:
        """Choose tokens for all rows, ``batch_size`` at a time, until they have ended or reached their limits."""
        ...

    @property
    def keeps_turns(self) -> bool:
        """Whether decoding can go on from what it has computed of a conversation (``DecodingRows.turn``)."""
        ...

    def head(self, network: nn.Module) -> Head:
        """The language head."""
        ...

    def text(self, network: nn.Module) -> Any:
        """The decoder, without the language head."""
        ...

    def layers(self, network: nn.Module) -> list[nn.Module]:
        """The decoder's layers, in order."""
        ...

    def require_single_forward(self) -> None:
        """Run every micro-batch in one forward pass from now on: ranks that share weights run their layers together.

        Raises:
            UserError: the model can't.
        """
        ...

    def save(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write the full model directory with other weights, as transformers' ``from_pretrained`` reads it."""
        ...

    def save_lora(self, folder: Path, adapter: str) -> None:
        """Write an adapter as peft's ``from_pretrained`` reads it."""
        ...

    def embed(self, network: nn.Module, ids: Tensor, slots: Tensor, features: Sequence[Features]) -> Embedded:
        """Embeddings of ids [M]; the pixels of ``features``, in order, go to the slots [M] and nowhere else."""
        ...

    def states(self, network: nn.Module, embedded: Embedded, source: Tensor, positions: Tensor, plan: Any) -> Tensor:
        """Last hidden states [N, D] of a packed sequence ``source`` [N] of the table, at positions [A, N]."""
        ...


def decoded(prompt: Prompt, audio_rate: int | None) -> Shown:
    """The pictures, videos and sounds of a prompt.

    Args:
        prompt: of which nothing is decoded yet.
        audio_rate: samples per second of the sounds that the model hears.

    Raises:
        UserError: the prompt has sounds, and the model hears none.
        OSError, ImportError, ValueError: one can't be decoded.
    """
    if prompt.audios and audio_rate is None:
        raise UserError("it has sounds, but the model hears none (none of its processor's parts reads them)")
    return Shown(
        images=[media.image() for media in prompt.images],
        videos=[Video(*media.video(), chosen=media.fit.samples) for media in prompt.videos],
        audios=[Audio(media.audio(audio_rate), audio_rate) for media in prompt.audios if audio_rate is not None],
    )
