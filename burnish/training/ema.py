"""Exponential moving average of the trained weights, for validation and export."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from burnish.training.sharding import copy_full, local_shard
from burnish.utils.errors import UserError

DecaySchedule = Literal["constant", "power", "linear", "piecewise_linear", "cosine", "warmup_cosine"]


class Ema:
    """Averages parameters once per optimizer step, with the decay of ``decay_at``; it starts as a copy of them."""

    def __init__(
        self, parameters: Mapping[str, Tensor], decay: float, *, offload: bool = False, **schedule: Any
    ) -> None:
        """Args: ``offload`` keeps the average in CPU memory.

        Raises:
            UserError: the weights are there already.
        """
        if offload and any(value.device.type == "cpu" for value in parameters.values()):
            raise UserError("ema.offload is true, but the weights are on the CPU already; leave it out")
        self.parameters, self.decay, self.schedule, self.steps = dict(parameters), decay, schedule, 0
        where = "cpu" if offload else None
        self.average = {name: value.detach().to(where, torch.float32, copy=True) for name, value in parameters.items()}

    def update(self) -> None:
        """Update the average with the current weights."""
        decay = decay_at(self.steps, self.decay, **self.schedule)
        average = [local_shard(value) for value in self.average.values()]
        present = [
            local_shard(value).detach().to(own.device, torch.float32)
            for own, value in zip(average, self.parameters.values(), strict=True)
        ]
        torch._foreach_lerp_(average, present, 1 - decay)
        self.steps += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the average as the network's weights in this context; the trained weights are restored bit for bit.

        They wait where the average was, so that nothing is held twice, but for weights of less precision than that.
        """
        alike = [name for name, value in self.parameters.items() if value.dtype == self.average[name].dtype]
        rounded = {name: value.detach().clone() for name, value in self.parameters.items() if name not in alike}
        self._exchange(alike)
        try:
            self._write({name: self.average[name] for name in rounded})
            yield
        finally:
            self._exchange(alike)
            self._write(rounded)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for name, value in self.average.items():
            copy_full(value, state["average"][name])

    def _write(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                local_shard(self.parameters[name]).copy_(local_shard(value))

    def _exchange(self, names: Sequence[str]) -> None:
        """Put weights where their averages are, and these where they are."""
        with torch.no_grad():
            for name in names:
                weight, average = local_shard(self.parameters[name]), local_shard(self.average[name])
                kept = weight.clone()
                weight.copy_(average)
                average.copy_(kept)


def decay_at(
    step: int,
    decay: float,
    *,
    kind: DecaySchedule = "power",
    initial: float = 0.0,
    warm_up: int = 10,
    steps: int = 1000,
) -> float:
    """EMA decay at an optimizer step, with the schedules of Flow-Factory.

    Args:
        step: counted from 0.
        decay: final value, which ``constant`` has at once.
        kind: see ``EmaOptions``, also for the arguments below.
        initial, warm_up, steps: of the schedules.
    """
    if kind == "power":
        return min((1 + step) / (warm_up + step), decay)
    if kind == "linear":
        return initial + (decay - initial) * min(step / warm_up, 1.0)
    if kind == "piecewise_linear":
        return min(step / 1000, decay)
    if kind == "constant":
        return decay
    start = warm_up if kind == "warmup_cosine" else 0
    if step < start:
        return initial * step / start
    return initial + (decay - initial) * (1 - math.cos(math.pi * min((step - start) / (steps - start), 1.0))) / 2
