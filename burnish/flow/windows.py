"""Which denoising steps are stochastic, and so can be learned from. Members of a group always share them."""

from __future__ import annotations

import math
import random
from typing import Literal

from pydantic import model_validator

from burnish.options import Count, Positive, Whole
from burnish.registry import options

EXACT = 1e-9  # a whole number that rounding errors of floats moved is still that number


@options
class Window:
    """The recorded steps of a rollout. A stochastic one is never the last: that has no noise to score."""

    kind: Literal["all", "fixed", "last", "random", "progressive"] = "all"
    """all steps; fixed: the first ones of the range; last: its last ones; random: a run of steps drawn anew;
    progressive: one that moves along (MixGRPO)."""
    size: Count | None = None
    """Stochastic steps per trajectory, for every kind but all."""
    start: Whole = 0
    """First step of the range that the window lies in."""
    stop: Count | None = None
    """End of that range, exclusive; null means all steps but the last."""
    scattered: bool = False
    """random: the steps need not be neighbours."""
    shared_by: Literal["group", "update"] = "group"
    """random: draw for each prompt, or once for all prompts of an update."""
    every: Count = 25
    """progressive: policy updates before the window moves on."""
    interval: Literal["constant", "linear", "exponential"] = "constant"
    """progressive: whether that number stays, or falls as the window moves: d steps on, every * (1 - decay * d) rounded
    down or every * exp(-decay * d) rounded up, and 1 at least. Late steps matter less than early ones."""
    decay: Positive = 0.1
    """linear and exponential: how fast it falls with d."""
    decay_after: Whole = 0
    """linear and exponential: steps that the window moves before d begins to count."""
    stride: Count | None = None
    """progressive: steps by which it moves on; null means its size."""
    wrap: bool = False
    """progressive: start again from the first step when the end of the range is reached, instead of staying there."""

    @model_validator(mode="after")
    def _consistent(self) -> Window:
        defaults = {"scattered": False, "shared_by": "group", "every": 25, "stride": None, "wrap": False}
        defaults |= {"interval": "constant", "decay": 0.1, "decay_after": 0}
        read = {
            "all": set(),
            "fixed": set(),
            "last": set(),
            "random": {"scattered", "shared_by"},
            "progressive": {"every", "stride", "wrap", "interval", "decay", "decay_after"},
        }[self.kind]
        for name, default in defaults.items():
            if getattr(self, name) != default and name not in read:
                raise ValueError(f"window.{name} is never read when window.kind is {self.kind}; leave it out")
        for name in ("decay", "decay_after"):
            if self.interval == "constant" and getattr(self, name) != defaults[name]:
                raise ValueError(f"window.{name} is never read when window.interval is constant; leave it out")
        if (self.size is None) != (self.kind == "all"):
            what = "takes every step of the range" if self.kind == "all" else "needs a number of steps"
            raise ValueError(f"window.size is {self.size}, but window.kind {self.kind} {what}")
        return self

    def within(self, steps: int, *, stochastic: bool = True) -> range:
        """The steps that the window may lie in.

        Args:
            steps: denoising steps.
            stochastic: whether the recorded steps are; deterministic ones may include the last.

        Raises:
            ValueError: the range or the window does not fit into ``steps`` denoising steps.
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
        """Recorded steps, rising.

        Args:
            steps: denoising steps.
            update: policy update, counted from 0.
            key: seed of the draw; equal for all members of a group.
            stochastic: whether the recorded steps are.
        """
        allowed = self.within(steps, stochastic=stochastic)
        if self.size is None:
            return list(allowed)
        if self.kind == "fixed":
            return list(allowed[: self.size])
        if self.kind == "last":
            return list(allowed[-self.size :])
        if self.kind == "progressive":
            first = self._place(allowed, update)
        elif self.scattered:
            return sorted(random.Random(key).sample(allowed, self.size))
        else:
            first = random.Random(key).randint(allowed.start, allowed.stop - self.size)
        return list(range(first, first + self.size))

    def _place(self, allowed: range, update: int) -> int:
        """First step of a progressive window; one that would reach beyond the range lies at its end."""
        assert self.size is not None
        stride, room = self.stride or self.size, len(allowed) - self.size
        moves = -(-room // stride)
        places = [min(move * stride, room) for move in range(moves + 1)]
        stays = [self._stay(place) for place in places]
        if self.wrap:
            update %= sum(stays)
        for place, stay in zip(places, stays, strict=True):
            if update < stay:
                return allowed.start + place
            update -= stay
        return allowed.start + room

    def _stay(self, place: int) -> int:
        """Policy updates that a window stays where it is, ``place`` steps from the start of the range."""
        beyond = max(place - self.decay_after, 0)
        if self.interval == "linear":
            return max(math.floor(self.every * (1 - self.decay * beyond) + EXACT), 1)
        if self.interval == "exponential":
            return max(math.ceil(self.every * math.exp(-self.decay * beyond) - EXACT), 1)
        return self.every
