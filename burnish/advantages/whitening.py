"""Values with mean 0 and std 1: over a batch, over all ranks, or over the whole run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.losses.policy import masked

SAME = 1e-6  # a spread this small against the values themselves is rounding, not a difference to magnify


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


def whiten(
    values: Tensor,
    mask: Tensor,
    *,
    scale: bool = True,
    unbiased: bool = False,
    eps: float = 1e-8,
    given: Moments | None = None,
) -> Tensor:
    """Masked values minus their mean, over their standard deviation + eps.

    Values that are all equal become exactly 0.

    Args:
        values: [B, T].
        mask: [B, T] bool; masked values are in no statistic, and come out 0.
        scale: divide by the spread; else only centre.
        unbiased: whether the spread divides by n - 1.
        eps: added to the spread.
        given: moments to use in place of those of these values: merged over ranks, or of a whole batch of which
            this is a part.

    Returns:
        [B, T].
    """
    known = moments(values, mask) if given is None else given
    centred = masked(values, mask).double() - known.mean
    spread = known.std(unbiased=unbiased)
    if scale and not spread:
        return torch.zeros_like(masked(values, mask))
    if scale:
        centred = centred / (spread + eps)
    return masked(centred.to(masked(values, mask).dtype), mask)


class RunningMoments:
    """Moments of every reward of a run so far, to bring rewards to one scale."""

    def __init__(self) -> None:
        self.known = Moments()

    def update(self, values: Tensor, present: Tensor) -> Moments:
        """Take in a batch [B], those ``present`` [B] only; returns the batch's own moments."""
        batch = moments(values, present & values.isfinite())
        self.known = self.known.merge(batch)
        return batch

    def normalise(self, values: Tensor, *, eps: float = 1e-8) -> Tensor:
        """Minus the running mean, over the running spread; while all rewards so far were equal, only centred."""
        spread = self.known.std(unbiased=True)
        centred = values.double() - self.known.mean
        return (centred / (spread + eps) if spread else centred).float()

    def state_dict(self) -> dict[str, float]:
        return {"count": self.known.count, "mean": self.known.mean, "squares": self.known.squares}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.known = Moments(**state)
