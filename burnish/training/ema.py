"""A running average of trained weights, for judging and for export."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from burnish.training.sharding import copy_full, local_shard

Growth = Literal["constant", "power", "linear", "piecewise_linear", "cosine", "warmup_cosine"]


class Ema:
    """Averages parameters once per optimizer step, with a decay that grows as ``decay_at`` says.

    The average starts as a copy, so it never remembers weights that were not there.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float, **growth: Any) -> None:
        self.parameters, self.decay, self.growth, self.steps = dict(parameters), decay, growth, 0
        self.average = {name: value.detach().float().clone() for name, value in parameters.items()}

    def update(self) -> None:
        """Move the average towards the present weights."""
        decay = decay_at(self.steps, self.decay, **self.growth)
        present = [local_shard(value).detach().float() for value in self.parameters.values()]
        torch._foreach_lerp_([local_shard(value) for value in self.average.values()], present, 1 - decay)
        self.steps += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average into the network for a while; the trained weights come back bit for bit."""
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
    kind: Growth = "power",
    initial: float = 0.0,
    warm_up: int = 10,
    steps: int = 1000,
    flat: int = 0,
    ramp: float = 0.001,
) -> float:
    """Weight of the past at an optimizer step: young averages forget faster, under the names of Flow-Factory.

    Args:
        step: counted from 0.
        decay: the largest weight, which ``constant`` has at once.
        kind: ``power`` is (1 + n) / (warm_up + n), as in flow_grpo; ``linear`` grows from ``initial`` in ``warm_up``
            steps, ``cosine`` along half a cosine in ``steps``; ``warmup_cosine`` grows to ``initial`` in ``warm_up``
            steps and along half a cosine in the rest of ``steps``; ``piecewise_linear`` is 0 for ``flat`` steps and
            grows by ``ramp`` in each one after them.
        initial, warm_up, steps, flat, ramp: see above.
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
