"""Noise schedules of diffusers' flow matching scheduler, as a run reads them, and rows that ask for nothing."""

from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from burnish.diffusion.pipeline.runs import evenly
from burnish.diffusion.pipeline.schedules import NoiseSchedule, shifted
from burnish.types.rollout import Prompt, Requests


def gaussian_velocity(mean: float, std: float):
    """The exact velocity of a flow from N(0, 1) at t = 1 to N(mean, std^2) at t = 0."""

    def velocity(x, t):
        variance = (1 - t) ** 2 * std**2 + t**2
        centred = x - (1 - t) * mean
        expected_noise = t * centred / variance
        expected_clean = mean + (1 - t) * std**2 * centred / variance
        return expected_noise - expected_clean

    return velocity


def schedule(
    steps: int, *, once: bool = False, shift: float | None = None, mu: float | None = None, **config: Any
) -> Tensor:
    """Times [N + 1] of a scheduler of that configuration; ``once`` and ``shift`` are rollout.schedule and shift."""
    scheduler = shifted(FlowMatchEulerDiscreteScheduler(**config), shift)
    scheduler.set_timesteps(steps, mu=mu, sigmas=evenly(steps) if once else None)
    return NoiseSchedule.of(scheduler, scheduler.timesteps).times


def plain(count: int) -> Requests:
    """What rows are drawn from, each from a prompt of its own."""
    prompts = [Prompt(text=f"{number}") for number in range(count)]
    return Requests(prompts=prompts, height=None, width=None, steps=1)
