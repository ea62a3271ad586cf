"""The noise levels of a scheduler of diffusers, in Burnish's convention."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.flow import conventions

EULER = {  # schedulers of several evaluations per step, and those that have the same noise levels with one
    "PNDMScheduler": "DDIMScheduler",
    "CogVideoXDPMScheduler": "CogVideoXDDIMScheduler",  # its steps also take what the one before predicted
    "HeunDiscreteScheduler": "EulerDiscreteScheduler",
    "KDPM2DiscreteScheduler": "EulerDiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler": "EulerDiscreteScheduler",
    "FlowMatchHeunDiscreteScheduler": "FlowMatchEulerDiscreteScheduler",
}


class Unsupported(Exception):
    """Why a pipeline can't be trained, for a message."""


@dataclass(frozen=True)
class Levels:
    """Times of the scheduler's steps, and what it calls them."""

    times: Tensor  # [N + 1] float32, decreasing: t of each step, and where the last one ends
    names: Tensor  # [N]
    kind: conventions.Kind
    dense: tuple[np.ndarray, np.ndarray]  # increasing times, and their names, to interpolate between

    @classmethod
    def of(cls, scheduler: Any, names: Tensor) -> Levels:
        """Of a scheduler's timesteps [N], which it is set to.

        Raises:
            Unsupported: the noise levels don't decrease, or are of no known kind.
        """
        signal, noise = _factors(scheduler, names)
        if (kind := conventions.kind_of(signal, noise)) is None:
            raise Unsupported("its scheduler mixes signal and noise in a way that Burnish doesn't know")
        steps = ((signal if kind == "rising" else noise) / (signal + noise)).float()
        times = torch.cat([steps, torch.tensor([_end(scheduler, kind)])])
        if not bool((times[1:] < times[:-1]).all()):
            raise Unsupported(f"the noise levels of its {type(scheduler).__name__} don't decrease: {times.tolist()}")
        ends = [0.0, float(scheduler.config.num_train_timesteps)][:: -1 if kind == "rising" else 1]
        dense = np.array([0.0, *steps.flip(0), 1.0]), np.array([ends[0], *names.flip(0), ends[1]])
        if kind in ("vp", "ve") and (table := getattr(scheduler, "alphas_cumprod", None)) is not None:
            a, s = table.double().cpu().sqrt().numpy(), (1 - table.double().cpu()).sqrt().numpy()
            dense = s / (a + s), np.arange(len(table))
        return cls(times, names, kind, dense)

    def name(self, time: float) -> Tensor:
        """What the scheduler calls a time: exact at its own times, and interpolated at others."""
        if bool((own := self.times[:-1] == time).any()):
            return self.names[own][0]
        return torch.tensor(np.interp(time, *self.dense), dtype=torch.float32)


def _factors(scheduler: Any, names: Tensor) -> tuple[Tensor, Tensor]:
    """Of signal and noise at timesteps, [N] each in float64: the scheduler noises ones and zeros."""
    asked, ones = copy.copy(scheduler), torch.ones(len(names), dtype=torch.float64)
    asked._begin_index = asked._step_index = None
    if hasattr(asked, "scale_noise"):
        return asked.scale_noise(ones, names, 0 * ones), asked.scale_noise(0 * ones, names, ones)
    if hasattr(asked, "add_noise"):
        return asked.add_noise(ones, 0 * ones, names), asked.add_noise(0 * ones, ones, names)
    raise Unsupported(f"its {type(scheduler).__name__} can't noise a picture (it has no add_noise)")


def _end(scheduler: Any, kind: conventions.Kind) -> float:
    """Where the last step ends: 0, but for schedulers that stop a little before."""
    if (sigmas := getattr(scheduler, "sigmas", None)) is not None:
        return conventions.time_of(kind, float(sigmas[-1]))
    final = float(getattr(scheduler, "final_alpha_cumprod", 1.0))
    return conventions.time_of(kind, ((1 - final) / final) ** 0.5)


def once_a_step(scheduler: Any) -> Any:
    """A scheduler, or one of the same noise levels that asks for one prediction per step, and for nothing else."""
    import diffusers

    name = EULER.get(type(scheduler).__name__)
    return scheduler if name is None else getattr(diffusers, name).from_config(scheduler.config)
