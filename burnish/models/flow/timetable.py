"""The steps of a pipeline's own run: its scheduler set to single ones, and velocities by what networks give there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.flow.conventions import scale_at, sigma_at, velocity_of
from burnish.models.flow.levels import Levels, Unsupported, clipped


@dataclass(frozen=True)
class Timetable:
    """Steps of a scheduler at times, t from 1 to 0, whatever it calls them."""

    levels: Levels
    skipped: int  # entries of the scheduler's table that the pipeline doesn't use, before the first step
    last_trained: float  # time of the last step that calls a network that is trained

    @property
    def times(self) -> Tensor:
        """[N + 1] float32, decreasing: of each step, and where the last one ends."""
        return self.levels.times

    def scale(self, time: float) -> float:
        """The scheduler's states over ours."""
        return scale_at(self.levels.kind, time)

    def velocity(self, scheduler: Any, output: Tensor, x: Tensor, time: float) -> Tensor:
        """eps - x_0 at a time, by the ``output`` and the sample ``x`` [B, ...] that the scheduler's step is given."""
        if str(scheduler.config.get("variance_type")).startswith("learned") and output.shape[1] == 2 * x.shape[1]:
            output = output.chunk(2, 1)[0]  # the other half is the variance of the scheduler's own noise
        found = self.predicted(scheduler, output, x, time)
        return clipped(scheduler, found, x.float() / self.scale(time), time)

    def predicted(self, scheduler: Any, output: Tensor, x: Tensor, time: float) -> Tensor:
        """The same before the scheduler clips the sample that is predicted."""
        output, x = output.float(), x.float()
        if hasattr(scheduler, "precondition_outputs"):
            sigma = torch.tensor(sigma_at(self.levels.kind, time), device=x.device)
            clean: Tensor = scheduler.precondition_outputs(x, output, sigma)
            return (x - clean) / sigma - clean
        predicts = scheduler.config.get("prediction_type", "epsilon")
        if (found := velocity_of(self.levels.kind, predicts, output, x, time)) is None:
            raise Unsupported(f"its scheduler has prediction_type {predicts!r}, which Burnish doesn't know")
        return found
