"""Values with mean 0 and std 1: over a batch, over all ranks, or over the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from burnish.losses.policy import masked

StdKind = Literal["unbiased", "biased", "none"]

EPS = 1e-8  # added to a std that is divided by
SAME = 1e-6  # a std this small against the values themselves is rounding, not a difference to magnify


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of some values; those of a union come from those of its parts."""

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def merge(self, other: Moments) -> Moments:
        """Of both together (Chan et al. 1979)."""
        count = self.count + other.count
        if not count:
            return self
        shift = other.mean - self.mean
        return Moments(
            count,
            self.mean + shift * other.count / count,
            self.squares + other.squares + shift * shift * self.count * other.count / count,
        )

    def std(self, *, unbiased: bool) -> float:
        """Standard deviation, dividing by n - 1 if ``unbiased``; 0 where it has no meaning or is only rounding."""
        count = self.count - unbiased
        if count <= 0:
            return 0.0
        std = (self.squares / count) ** 0.5
        return std if std > SAME * abs(self.mean) else 0.0


def moments(values: Tensor, mask: Tensor) -> Moments:
    """Of the values where ``mask``, in float64; both of any one shape."""
    kept = values[mask].double()
    if not len(kept):
        return Moments()
    return Moments(float(len(kept)), float(kept.mean()), float((kept - kept.mean()).square().sum()))


def whitened(values: Tensor, mask: Tensor, std: StdKind) -> Tensor:
    """Masked values minus their mean, over their standard deviation.

    Values that are all equal become exactly 0.

    Args:
        values: [B, T].
        mask: [B, T] bool; masked values are in no statistic, and come out 0.
        std: divides by n - 1 (``unbiased``) or by n (``biased``); with ``none`` only the mean is taken off.

    Returns:
        [B, T].
    """
    known, clean = moments(values, mask), masked(values, mask)
    centred = clean.double() - known.mean
    scale = known.std(unbiased=std != "biased")
    if std != "none":
        centred = centred / (scale + EPS) if scale else torch.zeros_like(centred)
    return masked(centred.to(clean.dtype), mask)


class RunningMoments:
    """Moments of every reward of a run so far, to bring rewards to one scale."""

    def __init__(self) -> None:
        self.known = Moments()

    def update(self, values: Tensor, present: Tensor) -> Moments:
        """Take in a batch [B], those ``present`` [B] only; returns the batch's own moments."""
        batch = moments(values, present & values.isfinite())
        self.known = self.known.merge(batch)
        return batch

    def normalise(self, values: Tensor) -> Tensor:
        """Minus the running mean, over the running std; while all rewards so far were equal, only centred."""
        scale = self.known.std(unbiased=True)
        centred = values.double() - self.known.mean
        return (centred / (scale + EPS) if scale else centred).float()

    def state_dict(self) -> dict[str, float]:
        return {"count": self.known.count, "mean": self.known.mean, "squares": self.known.squares}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.known = Moments(**state)
