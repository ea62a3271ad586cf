"""How a loss per token becomes one number, by verl's names, so that a sum divided once by a count is exact.

``(values * weights(mask, mode)).sum()`` over every micro-batch of every rank, divided by the sum of their
``size(mask, mode)``, is the aggregate of the whole optimizer batch, however it was cut into rows.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from burnish.losses.tokens.masking import masked

Mode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def weights(mask: Tensor, mode: Mode, constant: float | None = None) -> Tensor:
    """What each token's loss is multiplied by before everything is summed.

    Args:
        mask: [B, T] bool, tokens that count. For a loss over selected tokens that is still divided by all of them
            (high-entropy selection) give all, with a loss that is 0 where not selected.
        mode: ``token-mean``: every token of the batch alike (DAPO). ``seq-mean-token-mean``: every sequence
            alike, its tokens averaged (GRPO, DeepSeekMath eq. 3). ``seq-mean-token-sum``: sums of tokens, averaged
            over sequences. ``seq-mean-token-sum-norm``: the same over a constant length (Dr.GRPO). As in today's verl
            it is a mean over sequences; verl's first versions left their sum, a batch size times as large.
        constant: that length, usually the largest response; needed by that mode and by no other.

    Returns:
        [B, T] float32, 0 where masked.
    """
    if (mode == "seq-mean-token-sum-norm") != (constant is not None):
        raise ValueError(
            f"constant is {constant} with {mode}: seq-mean-token-sum-norm divides by it and no other mode does; "
            "give the largest response length with that mode only"
        )
    if constant is not None and not constant > 0:
        raise ValueError(f"constant is {constant}; token sums are divided by it, so it must be above 0")
    weight = mask.float()
    if mode == "seq-mean-token-mean":
        return weight / mask.sum(-1, keepdim=True).clamp_min(1)
    return weight / constant if constant is not None else weight


def size(mask: Tensor, mode: Mode) -> int:
    """What the sum is divided by: chosen tokens, or sequences that have one.

    A sequence without a chosen token says nothing, and is not counted as having said zero.

    Args:
        mask: [B, T] bool.
        mode: as in ``weights``.
    """
    return int(mask.sum() if mode == "token-mean" else mask.any(-1).sum())


def aggregate(values: Tensor, mask: Tensor, mode: Mode, constant: float | None = None) -> Tensor:
    """The aggregate of a batch that is whole, []; 0 if no token counts.

    Args:
        values: [B, T].
        mask, mode, constant: as in ``weights``.
    """
    total = (masked(values, mask) * weights(mask, mode, constant)).sum()
    return total / torch.as_tensor(max(size(mask, mode), 1), device=values.device)
