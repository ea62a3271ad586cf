"""Noise levels to train at, for losses that noise a finished picture again. Times are t in [0, 1], 1 is pure noise.

All are functions of draws that somebody else made, so that whoever makes them decides what they depend on. A shift
above 1 moves times towards noise, whatever they were drawn from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.flow.schedules import schedule, static_shift


def diffuse(clean: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """x_t = (1 - t) clean + t noise.

    Args:
        clean, noise: [M, ...].
        time: [M].
    """
    t = time.view(-1, *[1] * (clean.ndim - 1))
    return (1 - t) * clean + t * noise


def uniform(draw: Tensor, *, low: float = 0.0, high: float = 1.0, shift: float = 1.0) -> Tensor:
    """Times spread evenly over [low, high], then shifted; ``draw`` is uniform in [0, 1), of any shape."""
    return static_shift(low + (high - low) * draw, shift)


def logit_normal(draw: Tensor, *, mean: float = 0.0, std: float = 1.0, shift: float = 1.0) -> Tensor:
    """Times around the middle: the sigmoid of mean + std * draw (Stable Diffusion 3, eq. 19), then shifted.

    Args:
        draw: standard normal, of any shape.
        mean, std: of the logit of t.
        shift: see ``static_shift``.
    """
    return static_shift(torch.sigmoid(mean + std * draw), shift)


def discrete(draw: Tensor, table: Tensor) -> Tensor:
    """The entry of a table of times that a draw in [0, 1) falls on: entry floor(draw * n) of n.

    Args:
        draw: of any shape; uniform, or logit-normal to prefer the middle of the table.
        table: [n], as of ``training_table``, or the times of a sampling schedule without its final 0.
    """
    return table[(draw * len(table)).long().clamp(0, len(table) - 1)]


def training_table(shift: float, *, steps: int = 1000) -> Tensor:
    """The times that diffusers' schedulers train at: 1, ..., 1 / steps, falling and shifted once: [steps]."""
    return schedule(steps, {}, kind="shift_once", shift=shift)[:-1]


def stratify(draw: Tensor) -> Tensor:
    """One draw from each of n equal parts of [0, 1), in their order: the mean of n draws hardly varies then.

    Args:
        draw: [..., n] uniform in [0, 1).
    """
    count = draw.shape[-1]
    return (torch.arange(count, dtype=draw.dtype, device=draw.device) + draw) / count


def to_normal(draw: Tensor) -> Tensor:
    """Uniform draws as standard normal ones, with ends at about +-5: for stratified logit-normal times."""
    normal: Tensor = torch.special.ndtri(draw.clamp(1e-7, 1 - 1e-7))
    return normal
