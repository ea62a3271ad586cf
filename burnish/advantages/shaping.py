"""Rewards before credit: where they stand, what is taken off them, how far they count."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.losses.tokens.masking import masked


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


def shape_rewards(reward: Tensor, kl: Tensor, mask: Tensor, *, coef: float, clip: float | None = None) -> Tensor:
    """Reward per token: minus the weighted KL at each, plus the sample's reward on the last (InstructGPT, eq. 2).

    Args:
        reward: [B].
        kl: [B, T], estimates per token whose values count (k1, k3).
        mask: [B, T] bool.
        coef: of the KL; below 0 counts as 0.
        clip: the sample's reward counts within +-clip; the KL is not clipped.

    Returns:
        [B, T], 0 where masked.
    """
    if clip is not None:
        reward, _ = clip_values(reward, -clip, clip)
    return place_reward(reward, mask) - max(coef, 0.0) * masked(kl, mask)


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
