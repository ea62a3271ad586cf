"""What a generator draws: a picture, a clip or a sound, and its coarse structure. Rewards import it: no torch."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar, Union

from burnish.types.media import evenly_spaced

if TYPE_CHECKING:
    import numpy as np


T = TypeVar("T")
Kind = Literal["image", "clip", "sound"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sound:
    """Sound of one or several channels."""

    samples: np.ndarray  # float32 [channels, N] in [-1, 1]; 0 where a value was not finite
    rate: int  # samples per second and channel
    finite: bool = True  # False: the model gave NaN or infinite values, and the sound is never scored

    def __post_init__(self) -> None:
        right = self.samples.dtype.name == "float32" and self.samples.ndim == 2 and self.samples.size and self.rate > 0
        assert right, f"a sound of {self.samples.dtype} {list(self.samples.shape)} at {self.rate} Hz"

    @classmethod
    def of(cls, values: np.ndarray, rate: int) -> Sound:
        """A sound of any floats [channels, N]: clipped to [-1, 1], and marked if some are not finite."""
        import numpy as np

        finite = bool(np.isfinite(values).all())
        samples = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0).clip(-1, 1)
        return cls(samples=samples, rate=rate, finite=finite)

    @property
    def seconds(self) -> float:
        """How long it plays."""
        return float(self.samples.shape[1] / self.rate)


@dataclass(frozen=True, kw_only=True, eq=False)
class Clip:
    """A video: frames, how fast they play, and the sound that belongs to them."""

    frames: np.ndarray  # uint8 [F, H, W, 3], RGB
    fps: float  # frames per second
    sound: Sound | None = None
    finite: bool = True  # False: the model gave NaN or infinite values, and the clip is never scored

    def __post_init__(self) -> None:
        size = self.frames.shape
        right = self.frames.dtype.name == "uint8" and len(size) == 4 and size[3] == 3 and 0 not in size and self.fps > 0
        assert right, f"a clip of {self.frames.dtype} {list(size)} with {self.fps} frames per second"

    @property
    def seconds(self) -> float:
        """How long it plays."""
        return float(len(self.frames) / self.fps)


Sample = Union["np.ndarray", Clip, Sound]  # a picture is uint8 [H, W, 3]


def kind(sample: Sample) -> Kind:
    """What a sample is."""
    return "clip" if isinstance(sample, Clip) else "sound" if isinstance(sample, Sound) else "image"


def is_finite(sample: Sample) -> bool:
    """Whether the model gave finite values for all of a sample; others are shown, and never scored."""
    from burnish.utils.images import NonFiniteImage

    if isinstance(sample, Clip):
        return sample.finite and (sample.sound is None or sample.sound.finite)
    return sample.finite if isinstance(sample, Sound) else not isinstance(sample, NonFiniteImage)


def writable(sample: T) -> T:
    """A copy of what is scored, to whose arrays a reward may write; those that Ray delivers are read-only."""
    if isinstance(sample, Sound):
        return replace(sample, samples=sample.samples.copy())
    if isinstance(sample, Clip):
        return replace(sample, frames=sample.frames.copy(), sound=writable(sample.sound))
    return copy.copy(sample) if hasattr(sample, "dtype") else sample


CELL, CELLS = 4, 16  # pixels of a cell in a small image; cells along a side of a large one
FRAMES, PARTS = 8, 64  # of a clip and of a sound that are compared
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def coarse(sample: Sample) -> np.ndarray | None:
    """What the diversity of samples is measured by, much smaller than they are; None where values are not finite.

    Brightness in [0, 1] averaged over cells of 4 x 4 pixels, or larger ones so that a side has at most 16. Of a clip
    that of some frames; of a sound the root mean square in up to ``PARTS`` equal parts of its length.
    """
    import numpy as np

    if not is_finite(sample):
        return None
    if isinstance(sample, Clip):
        frames = (sample.frames[i] for i in evenly_spaced(len(sample.frames), FRAMES))
        return np.stack([frame for frame in map(coarse, frames) if frame is not None])
    if isinstance(sample, Sound):
        power = np.square(sample.samples.astype(np.float64)).mean(0)
        loudness: np.ndarray = np.sqrt(_averaged(power, 0, min(len(power), PARTS)))
        return loudness
    value: np.ndarray = sample @ np.array(LUMA) / 255
    for axis, length in enumerate(value.shape):
        value = _averaged(value, axis, min(max(length // CELL, 1), CELLS))
    return value


def _averaged(value: np.ndarray, axis: int, cells: int) -> np.ndarray:
    """Means over equal cells along an axis."""
    import numpy as np

    edges = np.arange(cells + 1) * value.shape[axis] // cells
    sizes = np.diff(edges).reshape([-1 if i == axis else 1 for i in range(value.ndim)])
    averaged: np.ndarray = np.add.reduceat(value, edges[:-1], axis) / sizes
    return averaged
