"""Noise levels of the denoising steps: t (sigma in diffusers) decreases from 1, pure noise, to 0, clean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["diffusers", "shift_once"]
SPACED_OTHERWISE = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "invert_sigmas")


def static_shift(t: Tensor, shift: float) -> Tensor:
    """Move times towards noise: t -> s t / (1 + (s - 1) t) (Stable Diffusion 3, eq. 23)."""
    return shift * t / (1 + (shift - 1) * t)


def dynamic_shift(t: Tensor, mu: float, kind: Literal["exponential", "linear"] = "exponential") -> Tensor:
    """Shift that grows with the picture's size (FLUX.1): e^mu or mu in place of the static shift."""
    strength = math.exp(mu) if kind == "exponential" else mu
    return strength / (strength + (1 / t - 1))


def stretch_to_terminal(t: Tensor, terminal: float) -> Tensor:
    """Stretch decreasing times so that the last one is ``terminal`` (``shift_terminal`` of Qwen-Image and LTX)."""
    return 1 - (1 - t) * ((1 - terminal) / (1 - t[-1]))


def shift_strength(tokens: int, *, base_tokens: int, max_tokens: int, base_shift: float, max_shift: float) -> float:
    """mu as a linear function of the number of image tokens (FLUX.1)."""
    slope = (max_shift - base_shift) / (max_tokens - base_tokens)
    return base_shift + slope * (tokens - base_tokens)


def schedule(
    steps: int, config: Mapping[str, Any], *, kind: Kind = "diffusers", shift: float | None = None, tokens: int = 0
) -> Tensor:
    """Times of ``steps`` denoising steps under a diffusers FlowMatchEulerDiscreteScheduler configuration.

    ``diffusers`` is what the scheduler's own ``set_timesteps(steps)`` gives, as Stable Diffusion 3's pipeline calls
    it: with a static shift it starts from the shifted range and shifts again. ``shift_once`` shifts
    linspace(1, 1 / steps) once, as Flow-Factory, DanceGRPO and the pipelines of FLUX.1 and Qwen-Image do.

    Args:
        steps: number of denoising steps N.
        config: scheduler configuration; missing entries take diffusers' defaults.
        kind: how times are spaced, see above.
        shift: static shift in place of the configured one.
        tokens: image tokens after patching; used by dynamic shifting only.

    Returns:
        [N + 1] float32, decreasing from 1 to exactly 0.

    Raises:
        ValueError: the configuration sets an option that is not supported.
    """
    if unsupported := [key for key in SPACED_OTHERWISE if config.get(key)]:
        raise ValueError(
            f"scheduler option {unsupported[0]} is set, which is not supported: Burnish spaces flow times by shift only"
        )
    train_steps = int(config.get("num_train_timesteps", 1000))
    dynamic = bool(config.get("use_dynamic_shifting", False)) and shift is None
    strength = float(config.get("shift", 1.0) if shift is None else shift)
    if kind == "shift_once":
        times = torch.linspace(1, 1 / steps, steps, dtype=torch.float64)
    else:
        ends = torch.tensor([1.0, 1 / train_steps], dtype=torch.float64)
        ends = ends if dynamic else static_shift(ends, strength)
        times = torch.linspace(float(ends[0]), float(ends[1]), steps, dtype=torch.float64)
    if dynamic:
        mu = shift_strength(
            tokens,
            base_tokens=int(config.get("base_image_seq_len", 256)),
            max_tokens=int(config.get("max_image_seq_len", 4096)),
            base_shift=float(config.get("base_shift", 0.5)),
            max_shift=float(config.get("max_shift", 1.15)),
        )
        times = dynamic_shift(times, mu, config.get("time_shift_type", "exponential"))
    else:
        times = static_shift(times, strength)
    if config.get("shift_terminal"):
        times = stretch_to_terminal(times, float(config["shift_terminal"]))
    return torch.cat([times, times.new_zeros(1)]).float()
