"""Which denoising steps of a schedule are stochastic, and which lend their noise levels to training. No torch."""

from __future__ import annotations

import math
import random
from typing import Annotated, Literal

from pydantic import model_validator

from burnish.options import Count, Positive, Whole
from burnish.registry import ReadIf, options

EXACT = 1e-9  # tolerance of rounding: floor and ceiling treat a float this close to an integer as that integer


@options
class Window:
    """The recorded steps of a rollout, the same for all samples of a group. The last step has no noise to score."""

    kind: Literal["all", "fixed", "last", "random", "progressive"] = "all"
    """all: every step of the range; fixed: its first steps; last: its last steps; random: consecutive steps at a random
    position; progressive: a window that moves through the range during training (MixGRPO)."""
    size: Count | None = None
    """Stochastic steps per trajectory; needed for every kind but all."""
    start: Whole = 0
    """First step of the range that the window is chosen from."""
    stop: Count | None = None
    """End of that range, exclusive; null is every step but the last."""
    scattered: Annotated[bool, ReadIf("kind", "random")] = False
    """random: draw steps that need not be consecutive."""
    shared_by: Annotated[Literal["group", "update"], ReadIf("kind", "random")] = "group"
    """random: draw one window per prompt, or one for all prompts of an update."""
    every: Annotated[Count, ReadIf("kind", "progressive")] = 25
    """progressive: policy updates between moves of the window."""
    interval: Annotated[Literal["constant", "linear", "exponential"], ReadIf("kind", "progressive")] = "constant"
    """progressive: whether that number is constant, or falls with the distance d that the window has moved: linear,
    every * (1 - decay * d) rounded down; exponential, every * exp(-decay * d) rounded up; at least 1."""
    decay: Annotated[Positive, ReadIf("kind", "progressive"), ReadIf("interval", "linear", "exponential")] = 0.1
    """linear and exponential: how fast it falls with d."""
    decay_after: Annotated[Whole, ReadIf("kind", "progressive"), ReadIf("interval", "linear", "exponential")] = 0
    """linear and exponential: steps that the window moves before d starts to count."""
    stride: Annotated[Count | None, ReadIf("kind", "progressive")] = None
    """progressive: steps per move; null is the window's size."""
    wrap: Annotated[bool, ReadIf("kind", "progressive")] = False
    """progressive: restart at the beginning of the range after its end; false stays at the end."""

    @model_validator(mode="after")
    def _consistent(self) -> Window:
        if (self.size is None) != (self.kind == "all"):
            way_out = "leave window.size out" if self.kind == "all" else "set window.size to a number of steps"
            raise ValueError(f"window.size is {self.size} with window.kind={self.kind}; {way_out}")
        return self

    def within(self, steps: int, *, stochastic: bool = True) -> range:
        """The range of steps that the window is chosen from.

        Args:
            steps: denoising steps.
            stochastic: whether recorded steps are stochastic; deterministic ones may include the last.

        Raises:
            ValueError: the range or the window doesn't fit into ``steps`` denoising steps.
        """
        most = steps - 1 if stochastic else steps
        stop = most if self.stop is None else self.stop
        if stop > most:
            raise ValueError(
                f"window.stop is {stop}, but of {steps} denoising steps only the first {most} can be "
                + ("stochastic" if stochastic else "recorded")
            )
        size = self.size or 1
        if stop - self.start < size:
            raise ValueError(f"a window of {size} steps does not fit between window.start {self.start} and step {stop}")
        return range(self.start, stop)

    def count(self, steps: int, *, stochastic: bool = True) -> int:
        """Recorded steps per trajectory."""
        return self.size or len(self.within(steps, stochastic=stochastic))

    def choose(self, steps: int, *, update: int, key: int, stochastic: bool = True) -> list[int]:
        """Indices of the recorded steps, in increasing order.

        Args:
            steps: denoising steps.
            update: policy update, counted from 0.
            key: seed of the draw; equal for all samples of a group.
            stochastic: whether recorded steps are stochastic.
        """
        allowed = self.within(steps, stochastic=stochastic)
        if self.size is None:
            return list(allowed)
        if self.kind == "fixed":
            return list(allowed[: self.size])
        if self.kind == "last":
            return list(allowed[-self.size :])
        if self.kind == "progressive":
            first = self._progressive_start(allowed, update)
        elif self.scattered:
            return sorted(random.Random(key).sample(allowed, self.size))
        else:
            first = random.Random(key).randint(allowed.start, allowed.stop - self.size)
        return list(range(first, first + self.size))

    def _progressive_start(self, allowed: range, update: int) -> int:
        """First step of a progressive window, at most so far that the window ends with the range."""
        assert self.size is not None
        stride, last = self.stride or self.size, len(allowed) - self.size
        offsets = [min(move * stride, last) for move in range(-(-last // stride) + 1)]
        updates = [self._updates_at(offset) for offset in offsets]
        if self.wrap:
            update %= sum(updates)
        for offset, count in zip(offsets, updates, strict=True):
            if update < count:
                return allowed.start + offset
            update -= count
        return allowed.start + last

    def _updates_at(self, offset: int) -> int:
        """Policy updates for which a window stays ``offset`` steps from the start of the range."""
        beyond = max(offset - self.decay_after, 0)
        if self.interval == "linear":
            return max(math.floor(self.every * (1 - self.decay * beyond) + EXACT), 1)
        if self.interval == "exponential":
            return max(math.ceil(self.every * math.exp(-self.decay * beyond) - EXACT), 1)
        return self.every


def steps_between(low: float, high: float, steps: int) -> range:
    """The steps of a schedule whose fraction of the way from clean (0) to noise (1) lies in [low, high].

    Args:
        low, high: 0 <= low < high <= 1.
        steps: denoising steps of the schedule; step 0 starts from noise.
    """
    return range(int((1 - high) * steps + EXACT), math.ceil((1 - low) * steps - EXACT))


def steps_in(steps: int, fraction: float) -> int:
    """A fraction of ``steps``, rounded down, at least one."""
    return max(1, int(steps * fraction + EXACT))
