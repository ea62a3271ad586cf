"""Exponential moving average of the trained weights, for validation and export."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from burnish.training.sharding import copy_full, local_shard

DecaySchedule = Literal["constant", "power", "linear", "piecewise_linear", "cosine", "warmup_cosine"]


class Ema:
    """Averages parameters once per optimizer step, with the decay of ``decay_at``; it starts as a copy of them."""

    def __init__(self, parameters: Mapping[str, Tensor], decay: float, **schedule: Any) -> None:
        self.parameters, self.decay, self.schedule, self.steps = dict(parameters), decay, schedule, 0
        self.average = {name: value.detach().float().clone() for name, value in parameters.items()}

    def update(self) -> None:
        """Update the average with the current weights."""
        decay = decay_at(self.steps, self.decay, **self.schedule)
        present = [local_shard(value).detach().float() for value in self.parameters.values()]
        torch._foreach_lerp_([local_shard(value) for value in self.average.values()], present, 1 - decay)
        self.steps += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the average as the network's weights in this context; the trained weights are restored bit for bit."""
        trained = {name: value.detach().clone() for name, value in self.parameters.items()}
        try:
            self._write(self.average)
            yield
        finally:
            self._write(trained)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for name, value in self.average.items():
            copy_full(value, state["average"][name])

    def _write(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(
                [local_shard(value) for value in self.parameters.values()],
                [local_shard(values[name]) for name in self.parameters],
            )


def decay_at(
    step: int,
    decay: float,
    *,
    kind: DecaySchedule = "power",
    initial: float = 0.0,
    warm_up: int = 10,
    steps: int = 1000,
    flat: int = 0,
    ramp: float = 0.001,
) -> float:
    """EMA decay at an optimizer step, with the schedules of Flow-Factory.

    Args:
        step: counted from 0.
        decay: final value, which ``constant`` has at once.
        kind: see ``EmaOptions``, also for the arguments below.
        initial, warm_up, steps, flat, ramp: of the schedules.
    """
    if kind == "power":
        return min((1 + step) / (warm_up + step), decay)
    if kind == "linear":
        return initial + (decay - initial) * min(step / warm_up, 1.0)
    if kind == "piecewise_linear":
        return min(max(step - flat, 0) * ramp, decay)
    if kind == "constant":
        return decay
    start = warm_up if kind == "warmup_cosine" else 0
    if step < start:
        return initial * step / start
    return initial + (decay - initial) * (1 - math.cos(math.pi * min((step - start) / (steps - start), 1.0))) / 2
