"""Losses as functions of tensors. They return one value per term; sums and divisions happen once, elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_MAX = 20.0  # exp(20) is beyond any clip range, and exp(100) is infinite


def clipped_surrogate(
    logprob: Tensor, old: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's objective over actions: tokens for a language model, denoising steps for diffusion (Flow-GRPO eq. 5).

    Args:
        logprob, old, advantage: [M] under the learning policy, under the one that acted, and the credit.
        clip_low, clip_high: the ratio counts within [1 - clip_low, 1 + clip_high].

    Returns:
        Loss per term [M], and per term [M]: ``actor/ppo_kl`` (k1, old - new), ``actor/pg_clipfrac`` (ratio outside
        the range), its parts ``_higher`` and ``_lower``, and ``ratio``.
    """
    difference = (logprob - old).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    ratio = difference.exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-advantage * ratio, -advantage * clipped)
    with torch.no_grad():
        higher, lower = (ratio > 1 + clip_high).float(), (ratio < 1 - clip_low).float()
        metrics = {
            "actor/ppo_kl": old - logprob,
            "actor/pg_clipfrac": higher + lower,
            "actor/pg_clipfrac_higher": higher,
            "actor/pg_clipfrac_lower": lower,
            "ratio": ratio.detach(),
        }
    return loss, metrics


def gaussian_kl(mean: Tensor, other: Tensor, std: Tensor) -> Tensor:
    """KL of two Gaussians of equal spread, averaged over latent axes: (mean - other)^2 / (2 std^2).

    With the std of the transition it is exact per latent element. Flow-GRPO published it with the std before the
    root of the step length, which is smaller by that step length.

    Args:
        mean, other: [M, ...].
        std: [M].

    Returns:
        [M].
    """
    return (mean - other).square().flatten(1).mean(1) / (2 * std.square())


def negative_aware(
    velocity: Tensor,
    old: Tensor,
    clean: Tensor,
    noisy: Tensor,
    time: Tensor,
    optimality: Tensor,
    *,
    beta: float,
    floor: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """DiffusionNFT's loss on the forward process (paper, eq. 9 with the adaptive weighting of its appendix).

    Two implicit policies, v+ = (1 - beta) v_old + beta v and v- = (1 + beta) v_old - beta v, are matched to the
    sample, weighted by how good it is. Each squared error is divided by its own mean absolute error.

    Args:
        velocity: [M, ...] under the learning policy.
        old: [M, ...] under the old policy, without gradient.
        clean: [M, ...] the sampled picture x_0.
        noisy: [M, ...] x_t.
        time: [M].
        optimality: [M] in [0, 1].
        beta: strength of the guidance between the two.
        floor: smallest mean absolute error that a squared error is divided by.

    Returns:
        Loss, positive part and negative part, each [M], before any scale.
    """
    positive = _weighted_error(beta * velocity + (1 - beta) * old, clean, noisy, time, floor)
    negative = _weighted_error((1 + beta) * old - beta * velocity, clean, noisy, time, floor)
    return (optimality * positive + (1 - optimality) * negative) / beta, positive, negative


def _weighted_error(velocity: Tensor, clean: Tensor, noisy: Tensor, time: Tensor, floor: float) -> Tensor:
    error = noisy - time.view(-1, *[1] * (noisy.ndim - 1)) * velocity - clean
    with torch.no_grad():
        weight = error.abs().double().flatten(1).mean(1).clamp_min(floor).to(error.dtype)
    return error.square().flatten(1).mean(1) / weight
