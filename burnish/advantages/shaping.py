"""Rewards before they are compared: at which tokens they count, what is taken off them, how far they count."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.losses.policy import masked


def place_reward(reward: Tensor, mask: Tensor) -> Tensor:
    """A reward per sample, on the last token that the policy chose.

    Args:
        reward: [B].
        mask: [B, T] bool; a sample without a chosen token has nowhere to put its reward.

    Returns:
        [B, T], 0 elsewhere.
    """
    after = mask.flip(-1).cumsum(-1).flip(-1)
    return masked(reward[:, None].expand_as(after), mask & (after == 1))


def place_step_rewards(reward: Tensor, step: Tensor, mask: Tensor) -> Tensor:
    """A reward per step (a turn, a line of reasoning), each on the last chosen token of its step.

    Args:
        reward: [B, S].
        step: [B, T] long, number of the step that a token belongs to; read where ``mask`` only.
        mask: [B, T] bool; a step without a chosen token has nowhere to put its reward.

    Returns:
        [B, T], 0 elsewhere.
    """
    out = torch.zeros_like(masked(step, mask))
    for number in range(reward.shape[1]):
        out = out + place_reward(reward[:, number], mask & (step == number))
    return out


def clip_values(values: Tensor, lowest: float, highest: float, mask: Tensor | None = None) -> tuple[Tensor, float]:
    """Values within a range, and the fraction of them that was outside it before.

    Args:
        values: of any shape.
        lowest, highest: the range, ends included.
        mask: bool of that shape, which values are counted and kept, others become 0; None takes all.

    Returns:
        The clipped values, and the fraction in [0, 1], 0 if there are none.
    """
    if lowest > highest:
        raise ValueError(f"values are clipped to [{lowest}, {highest}]; the first must not be above the second")
    mask = torch.ones_like(values, dtype=torch.bool) if mask is None else mask
    values = masked(values, mask)
    outside = ((values < lowest) | (values > highest)) & mask
    return masked(values.clamp(lowest, highest), mask), float(outside.sum() / mask.sum().clamp_min(1))


def turn_numbers(mask: Tensor) -> Tensor:
    """Turns are stretches of tokens that the policy chose, with tokens of somebody else between them.

    Args:
        mask: [B, T] bool.

    Returns:
        [B, T] long, from 0; of no meaning where masked.
    """
    begins = mask & ~F.pad(mask[:, :-1], (1, 0))
    return torch.where(mask, begins.cumsum(1) - 1, 0)


def overlong_penalty(length: Tensor, *, max_length: int, buffer: int, factor: float = 1.0) -> Tensor:
    """DAPO's soft punishment (arXiv 2503.14476): 0 up to ``max_length - buffer`` tokens, then falling in a line.

    Args:
        length: [B] chosen tokens.
        max_length: where the penalty has reached -factor.
        buffer: tokens over which it falls; at least 1, below ``max_length``.
        factor: the largest penalty.

    Returns:
        [B] float32, to be added to the reward before anything compares samples.
    """
    if not 0 < buffer < max_length:
        raise ValueError(
            f"the overlong buffer is {buffer} of {max_length} tokens; it must be at least 1 and below that"
        )
    over = (length.float() - (max_length - buffer)) / buffer
    return -factor * over.clamp_min(0)
