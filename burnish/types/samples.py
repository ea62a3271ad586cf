"""Samples: the images, clips and sounds that a generator draws, statistics of these and of responses, and how their
rewards were computed. Rewards and reports import it: no torch."""

from __future__ import annotations

import copy
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
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


Sample = Union["np.ndarray", Clip, Sound]  # an image is uint8 [H, W, 3]


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
        return np.sqrt(_averaged(power, 0, min(len(power), PARTS)))  # type: ignore[no-any-return]
    value: np.ndarray = sample @ np.array(LUMA) / 255
    for axis, length in enumerate(value.shape):
        value = _averaged(value, axis, min(max(length // CELL, 1), CELLS))
    return value


def _averaged(value: np.ndarray, axis: int, cells: int) -> np.ndarray:
    """Means over equal cells along an axis."""
    import numpy as np

    edges = np.arange(cells + 1) * value.shape[axis] // cells
    sizes = np.diff(edges).reshape([-1 if i == axis else 1 for i in range(value.ndim)])
    return np.add.reduceat(value, edges[:-1], axis) / sizes  # type: ignore[no-any-return]


LONGEST = 20_000  # characters whose form and words are looked at
TAG = re.compile(r"</?([A-Za-z][\w-]{0,30})>")
REFLECTION = re.compile(
    r"\b(?:let\s+me\s+(?:think|reconsider)|actually|wait|correction|mistake|wrong|rethink)\b", re.IGNORECASE
)
MARKS = {"code block": "```", "bold type": "**", "box": r"\boxed", "heading": "\n#", "list": "\n- "}


@dataclass(frozen=True)
class ResponseStats:
    """Statistics of a response that nobody optimises."""

    length: int  # tokens that the policy chose
    truncated: bool  # it did not end by itself
    repeated: float  # share of its runs of four tokens that occurred in it before
    surprisal: float  # mean of -log-prob of its first tokens in nats, expected to be the entropy; NaN without any
    outline: str  # its form: the tags and marks that it has, in order
    reflections: float  # words and phrases by which it reconsiders, in English: wait, actually, let me think


WATCHED = ("length", "truncated", "repeated", "surprisal")  # fields of which the mean is watched
REPORTED = (*WATCHED, "reflections")  # and those that may change without an alarm
UNKNOWN = ResponseStats(0, False, math.nan, math.nan, "", math.nan)


@dataclass(frozen=True)
class Quote:
    """A response that is shown."""

    prompt: str
    response: str
    reward: float | None  # None: missing


def reflections(text: str) -> int:
    """How often a response reconsiders, by the phrases that LightRFT counts."""
    return len(REFLECTION.findall(text[:LONGEST]))


def outline(text: str) -> str:
    """The form of a response: its tags and marks in order of their first use, or what it is without any."""
    text = text[:LONGEST]
    tags = dict.fromkeys(f"<{name.lower()}>" for name in TAG.findall(text))
    marks = [what for what, sign in MARKS.items() if sign in f"\n{text}"]
    if tags or marks:
        return " ".join([*list(tags)[:8], *marks])
    if re.search(r"[^\W\d_]", text):
        return "words"
    return "no words" if re.search(r"\w", text) else "nothing"


# of a sample and a reward, as the sum of those that hold
FAILED = 1  # it raised, its process died, or it was late
RETRIED = 2  # it failed and was asked again
TIMED_OUT = 4
REPEATED = 8  # the sample was scored once, together with an equal one
OUTCOMES = {"failed": FAILED, "retried": RETRIED, "timed_out": TIMED_OUT, "repeated": REPEATED}
DROPS = 16  # it has no value, so that its group is left out; and of all samples of that group

Ran = tuple[float, int]  # seconds from request to score, and which of the above hold


def execution_metrics(ran: Iterable[Mapping[str, Ran]]) -> dict[str, float]:
    """How often and how fast each reward was computed, of samples with what ran for each of them, by reward."""
    by_reward: defaultdict[str, list[Ran]] = defaultdict(list)
    for row in ran:
        for label, own in row.items():
            by_reward[label].append(own)
    metrics: dict[str, float] = {}
    for label, every in by_reward.items():
        for name, flag in {**OUTCOMES, "dropped": DROPS}.items():
            metrics[f"reward/{label}/{name}"] = float(sum(bool(outcome & flag) for _, outcome in every))
        ordered = sorted(seconds for seconds, _ in every)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
            metrics[f"reward/{label}/latency_s/{name}"] = ordered[round(share * (len(ordered) - 1))]
    return metrics
