"""Losses that noise the sampled image again and compare predictions with it: no trajectory needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from burnish.diffusion.steps import column
from burnish.rl.objectives import flow_clip
from burnish.rl.surrogates import Surrogate

Weighting = Literal["uniform", "t", "t2", "huber", "ghuber"]

HUBER_FLOOR = 1e-10  # keeps the root of a squared error differentiable at 0
WEIGHTED: dict[Weighting, Callable[[Tensor, Tensor, float], Tensor]] = {  # matching errors by their times and a power
    "uniform": lambda error, t, power: error,
    "t": lambda error, t, power: t * error,
    "t2": lambda error, t, power: t.square() * error,
    "huber": lambda error, t, power: t * ((error + HUBER_FLOOR).sqrt() - HUBER_FLOOR**0.5),
    "ghuber": lambda error, t, power: t * ((error + HUBER_FLOOR) ** power - HUBER_FLOOR**power) / power,
}


def negative_aware(
    velocity: Tensor,
    old: Tensor,
    clean: Tensor,
    noisy: Tensor,
    time: Tensor,
    optimality: Tensor,
    *,
    beta: float,
    share: Tensor | float = 1.0,
    adaptive: bool = True,
    floor: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """DiffusionNFT's loss on the forward process (paper, eq. 9 with the adaptive weighting of its appendix).

    Two implicit policies, v+ = (1 - beta) v_old + beta v and v- = (1 + beta) v_old - beta v, are matched to the
    sample, weighted by how good it is.

    Args:
        velocity: [M, ...] under the learning policy.
        old: [M, ...] under the old policy, without gradient.
        clean: [M, ...] the sampled image x_0.
        noisy: [M, ...] x_t.
        time: [M].
        optimality: [M] in [0, 1].
        beta: strength of the guidance between the two.
        share: see ``matching_error``.
        adaptive: divide each squared error of the predicted image by its own mean absolute error.
        floor: smallest mean absolute error that a squared error is divided by.

    Returns:
        Loss, positive part and negative part, each [M], before any scale.
    """
    t = column(time, noisy)
    better, worse = beta * velocity + (1 - beta) * old, (1 + beta) * old - beta * velocity
    positive = matching_error(noisy - t * better, clean, share=share, adaptive=adaptive, floor=floor)
    negative = matching_error(noisy - t * worse, clean, share=share, adaptive=adaptive, floor=floor)
    return (optimality * positive + (1 - optimality) * negative) / beta, positive, negative


def awm_logprob(
    velocity: Tensor,
    target: Tensor,
    time: Tensor,
    *,
    share: Tensor | float = 1.0,
    weighting: Weighting = "uniform",
    power: float = 0.25,
) -> Tensor:
    """How likely the policy makes an image, by its matching error e (Advantage Weighted Matching, arXiv:2509.25050).

    ``uniform`` is -e, ``t`` and ``t2`` are -t e and -t^2 e, ``huber`` is -t sqrt(e) and ``ghuber`` -t e^power / power,
    the last two shifted so that e = 0 gives 0.

    Args:
        velocity: [M, ...] predicted at x_t.
        target: [M, ...] noise - clean.
        time: [M] t in [0, 1].
        share: see ``matching_error``.
        weighting: see above.
        power: read by ``ghuber`` alone.

    Returns:
        [M] pseudo log-probs; only their differences mean anything.
    """
    error = (velocity - target).double().square().flatten(1).mean(1) / share
    return -WEIGHTED[weighting](error, column(time, error).double(), power).to(velocity.dtype)


def advantage_weighted_matching(
    velocity: Tensor,
    old: Tensor,
    target: Tensor,
    time: Tensor,
    advantage: Tensor,
    *,
    clip: float,
    clip_high: float | None = None,
    share: Tensor | float = 1.0,
    weighting: Weighting = "uniform",
    power: float = 0.25,
) -> Surrogate:
    """PPO's objective with matching errors in place of log-probs (Advantage Weighted Matching, arXiv:2509.25050).

    At the old policy its gradient is that of the advantage times the matching error.

    Args:
        velocity: [M, ...] under the learning policy.
        old: [M, ...] under the old policy at the same x_t, without gradient.
        target: [M, ...] noise - clean.
        time, advantage: [M].
        clip, clip_high: the ratio counts within [1 - clip, 1 + clip_high]; clip_high None is clip.
        share, weighting, power: see ``awm_logprob``.

    Returns:
        As ``flow_clip``, per term [M].
    """
    now = awm_logprob(velocity, target, time, share=share, weighting=weighting, power=power)
    before = awm_logprob(old, target, time, share=share, weighting=weighting, power=power)
    every = torch.ones_like(now, dtype=torch.bool)
    return flow_clip(now, before, advantage, every, clip=clip, clip_high=clip_high)


def matching_error(
    prediction: Tensor,
    target: Tensor,
    *,
    share: Tensor | float = 1.0,
    adaptive: bool = False,
    floor: float = 1e-5,
) -> Tensor:
    """Squared error averaged over the latent axes.

    Args:
        prediction, target: [M, ...].
        share: [M] of the elements that are noised, which averages are over; both are equal in the others.
        adaptive: divide it by the mean absolute error, without gradient, which evens out the noise levels.
        floor: smallest mean absolute error that is divided by.

    Returns:
        [M].
    """
    error = prediction - target
    square = error.square().flatten(1).mean(1) / share
    if not adaptive:
        return square
    with torch.no_grad():
        weight = (error.abs().double().flatten(1).mean(1) / share).clamp_min(floor).to(error.dtype)
    return square / weight
