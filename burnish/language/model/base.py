"""What a language model provides; decoding, losses and algorithms use nothing else of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image
    from torch import Tensor

    from burnish.types.prompt import Prompt


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
        taken = (self.slots.cumsum(0) - 1)[source[slots]]
        return slots[None], [layer.index_select(0, taken) for layer in self.deep]


def decoded(prompt: Prompt, audio_rate: int | None) -> Shown:
    """The images, videos and sounds of a prompt.

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
