"""Which turn of a dialogue a token belongs to."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def turn_numbers(mask: Tensor) -> Tensor:
    """Turns are stretches of tokens that the policy chose, with tokens of somebody else between them.

    Args:
        mask: [B, T] bool.

    Returns:
        [B, T] long, from 0; of no meaning where masked.
    """
    begins = mask & ~F.pad(mask[:, :-1], (1, 0))
    return torch.where(mask, begins.cumsum(1) - 1, 0)
