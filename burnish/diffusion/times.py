"""Noise levels for losses that add noise to finished pictures. Times t are in [0, 1]; 1 is pure noise.

All are functions of draws that the caller makes, so that the caller decides on the seeds. A shift above 1 moves times
towards noise.
"""

from __future__ import annotations

import torch
from torch import Tensor


def static_shift(t: Tensor, shift: float) -> Tensor:
    """Move times towards noise: t -> s t / (1 + (s - 1) t) (Stable Diffusion 3, eq. 23)."""
    return shift * t / (1 + (shift - 1) * t)


def diffuse(clean: Tensor, noise: Tensor, time: Tensor, noised: Tensor | None = None) -> Tensor:
    """x_t = (1 - t) clean + t noise.

    Args:
        clean, noise: [M, ...].
        time: [M].
        noised: [M, ...] bool, or what broadcasts to it; elements outside stay as they are. None noises all.
    """
    t = time.view(-1, *[1] * (clean.ndim - 1))
    mixed = (1 - t) * clean + t * noise
    return mixed if noised is None else torch.where(noised, mixed, clean)


def diffuse_further(
    x: Tensor, noise: Tensor, time: Tensor, level: Tensor, noised: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """A state at ``time`` with more noise, so that it is one at ``level``: x_level = a x + b noise.

    Args:
        x, noise: [M, ...].
        time: [M] below 1.
        level: [M] above ``time``.
        noised: see ``diffuse``.

    Returns:
        x_level [M, ...], and a and b, which broadcast to it.
    """
    t, tau = (value.view(-1, *[1] * (x.ndim - 1)) for value in (time, level))
    a = (1 - tau) / (1 - t)
    b = (tau.square() - (t * a).square()).sqrt()
    mixed = a * x + b * noise
    return mixed if noised is None else torch.where(noised, mixed, x), a, b


def uniform_above(draw: Tensor, time: Tensor, *, shift: float, gap: float) -> Tensor:
    """Times from above ``time`` to 1: uniform before they are shifted, at least ``gap`` above it there.

    Args:
        draw: uniform in [0, 1), of any shape.
        time: [*] that it broadcasts with.
        shift: see ``static_shift``.
        gap: see above.
    """
    low = (time / (shift - (shift - 1) * time) + gap).clamp_max(1.0)  # where the shift leads to ``time``
    return static_shift(low + draw * (1 - low), shift)


def uniform(draw: Tensor, *, low: float = 0.0, high: float = 1.0, shift: float = 1.0) -> Tensor:
    """Times uniform in [low, high], then shifted; ``draw`` is uniform in [0, 1), of any shape."""
    return static_shift(low + (high - low) * draw, shift)


def logit_normal(draw: Tensor, *, mean: float = 0.0, std: float = 1.0, shift: float = 1.0) -> Tensor:
    """Logit-normal times, the sigmoid of mean + std * draw (Stable Diffusion 3, eq. 19), then shifted.

    Args:
        draw: standard normal, of any shape.
        mean, std: of the logit of t.
        shift: see ``static_shift``.
    """
    return static_shift(torch.sigmoid(mean + std * draw), shift)


def stratify(draw: Tensor) -> Tensor:
    """Stratified draws: one from each of n equal intervals of [0, 1), in order, so that their mean hardly varies.

    Args:
        draw: [..., n] uniform in [0, 1).
    """
    count = draw.shape[-1]
    return (torch.arange(count, dtype=draw.dtype, device=draw.device) + draw) / count


def to_normal(draw: Tensor) -> Tensor:
    """Uniform draws as standard normal ones, clipped at about +-5: for stratified logit-normal times."""
    normal: Tensor = torch.special.ndtri(draw.clamp(1e-7, 1 - 1e-7))
    return normal
