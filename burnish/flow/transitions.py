"""One denoising step as a Gaussian: its mean, its standard deviation, and the log-prob of a next state.

Convention: x_t = (1 - t) x_0 + t eps, v = eps - x_0, and t decreases from 1 to 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from burnish.types.batch import to_device

Kind = Literal["sde", "cps", "dance", "ddim", "ode"]
Density = Literal["gaussian", "squared_error"]


@dataclass(frozen=True)
class Transition:
    """A step from t to t_next: a Gaussian around ``mean`` with one standard deviation per sample.

    ``std`` includes the square root of the step length for every kind, so that every loss can rely on it.
    """

    mean: Tensor  # [B, ...] float32
    std: Tensor  # [B] float32; 0 where the step is deterministic
    step: Tensor  # [B] t - t_next > 0
    share: Tensor | float = 1.0  # [B] of the elements that are noised: the others are the same in every state

    def sample(self, noise: Tensor) -> Tensor:
        """The next state for standard normal ``noise`` [B, ...]."""
        return self.mean + _column(self.std, self.mean) * noise

    def logprob(self, landed: Tensor, density: Density = "gaussian") -> Tensor:
        """Log-density of the next state ``landed`` [B, ...], averaged over noised elements as published losses do: [B].

        ``squared_error`` is -(landed - mean)^2 without scale and constant, the form in which Flow-CPS was published.
        It is undefined for a deterministic step, whose std is 0.
        """
        error = (landed.float() - self.mean).square().flatten(1).mean(1) / self.share
        if density == "squared_error":
            return -error
        return -error / (2 * self.std.square()) - self.std.log() - 0.5 * math.log(2 * math.pi)

    def score_power(self, landed: Tensor, density: Density = "gaussian") -> Tensor:
        """Squared norm of the gradient of ``logprob`` with respect to the mean: [B]."""
        error = (landed.float() - self.mean).flatten(1)
        scale = 0.5 if density == "squared_error" else self.std.square()
        return error.square().mean(1) / (error.shape[1] * scale**2 * self.share**2)


def transition(
    kind: Kind, velocity: Tensor, x: Tensor, t: Tensor | float, t_next: Tensor | float, *,
    noise: Tensor | float, t_max: float, share: Tensor | float = 1.0,
) -> Transition:  # fmt: skip
    """The Gaussian of one step. With ``noise`` 0 every kind is the Euler step x + (t_next - t) v.

    * ``sde``: Flow-GRPO, eq. 9; diffusion noise * sqrt(t / (1 - t)). It grows without bound as t -> 1, so at t = 1
      the denominator uses ``t_max``.
    * ``cps``: Flow-CPS, coefficients-preserving: a fraction sin(noise * pi / 2) of the noise at t_next is fresh.
    * ``dance``: DanceGRPO: constant diffusion ``noise``.
    * ``ddim``: DDIM, ``noise`` is its eta: 1 redraws all noise that the marginals allow (DiffusionNFT's stochastic
      solver).
    * ``ode``: no noise.

    Args:
        velocity: [B, ...] predicted eps - x_0.
        x: [B, ...] state at t.
        t: [B] or scalar, in (0, 1].
        t_next: [B] or scalar, in [0, t).
        noise: noise level, scalar or [B].
        t_max: the schedule's second time.
        share: [B] of the elements that are noised; velocity and noise are 0 in the others.
    """
    x, velocity = x.float(), velocity.float()
    batch = x.shape[0]
    t, t_next, level = (_per_sample(value, batch, x) for value in (t, t_next, noise))
    step = t - t_next
    if kind == "ode":
        return Transition(x - _column(step, x) * velocity, torch.zeros_like(t), step, share)
    if kind in ("cps", "ddim"):
        fresh = torch.sin(level * math.pi / 2) if kind == "cps" else level * _undetermined(t, t_next)
        std = t_next * fresh
        kept = (t_next.square() - std.square()).clamp_min(0).sqrt()
        clean = x - _column(t, x) * velocity
        pure = x + _column(1 - t, x) * velocity
        return Transition(_column(1 - t_next, x) * clean + _column(kept, x) * pure, std, step, share)
    diffusion = level
    if kind == "sde":
        diffusion = level * (t / (1 - torch.where(t >= 1, torch.full_like(t, t_max), t))).sqrt()
    # -score = eps / t, and eps = x + (1 - t) v: the drift that keeps the marginals while noise is added
    restoring = diffusion.square() / (2 * t)
    drift = velocity + _column(restoring, x) * (x + _column(1 - t, x) * velocity)
    return Transition(x - _column(step, x) * drift, diffusion * step.sqrt(), step, share)


def _undetermined(t: Tensor, t_next: Tensor) -> Tensor:
    """The fraction of the noise at t_next that the state at t doesn't determine."""
    return (1 - (t_next * (1 - t) / (t * (1 - t_next))).square()).clamp_min(0).sqrt()


def _per_sample(value: Tensor | float, batch: int, like: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        return like.new_full((), value, dtype=torch.float32).expand(batch)
    return to_device(value.to(torch.float32), like.device).expand(batch)


def _column(value: Tensor, like: Tensor) -> Tensor:
    return value.view(-1, *[1] * (like.ndim - 1))
