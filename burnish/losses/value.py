"""The critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.rl.surrogates import masked


def value_loss(
    value: Tensor, old_value: Tensor, returns: Tensor, mask: Tensor, *, clip: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the squared error, the larger one of the value and of the value clipped around the old one (PPO).

    Args:
        value, old_value, returns: [B, T].
        mask: [B, T] bool.
        clip: how far from the old value a value counts; None never clips.

    Returns:
        Loss per token, and ``critic/vf_clipfrac`` (tokens where the clipped error is the larger one), both [B, T].
    """
    value, old_value, returns = masked(value, mask), masked(old_value, mask), masked(returns, mask)
    error = (value - returns).square()
    if clip is None:
        return error / 2, {"critic/vf_clipfrac": torch.zeros_like(error)}
    if clip <= 0:
        raise ValueError(f"the value clip is {clip}; it is a distance, so it must be above 0, or null for none")
    moved = value - old_value
    held = (old_value + moved.clamp(-clip, clip) - returns).square()
    # within the range the two differ by rounding alone, which is no clipping
    clipped = (held > error) & (moved.abs() > clip)
    return torch.maximum(error, held) / 2, {"critic/vf_clipfrac": clipped.float()}
