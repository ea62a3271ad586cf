"""The steps of a pipeline's own run: its scheduler set to single ones, and velocities by what networks give there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.flow import conventions
from burnish.models.flow.levels import Levels, Unsupported, clipped
from burnish.types.batch import to_device


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
        return conventions.scale(self.levels.kind, time)

    def place(self, scheduler: Any, time: float | None) -> int:
        """Set a scheduler to go over the step before a time, and the one that begins there; None is the end.

        Its table keeps its length for pipelines that skip entries of it, which they count. Returns the number of the
        step before.
        """
        known, start, kind = scheduler.timesteps, self.skipped, self.levels.kind
        if time is None:
            scheduler.timesteps = known if start else known[-1:]
            return len(scheduler.timesteps) - start - 1
        nearest = int((self.times[:-1] - time).abs().argmin())
        before = nearest - 1 if nearest else int(len(self.levels.names) > 1)  # some leave out a step of no length
        after = next((end for end in self.times.tolist() if end < time), time)  # which some networks read, too
        name, around = self.levels.name(time), (float(self.times[before]), time, after)
        names = to_device(torch.stack([self.levels.names[before].to(name.dtype), name]), known.device)
        scheduler.timesteps = torch.cat([known[:start].to(names.dtype), names, known[start + 2 :].to(names.dtype)])
        if (known := getattr(scheduler, "sigmas", None)) is not None:
            sigmas = torch.tensor([conventions.sigma(kind, t) for t in around], dtype=known.dtype)
            scheduler.sigmas = torch.cat([known[:start], to_device(sigmas, known.device), known[start + 3 :]])
        scheduler._begin_index = start
        return 0

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
            sigma = torch.tensor(conventions.sigma(self.levels.kind, time), device=x.device)
            clean: Tensor = scheduler.precondition_outputs(x, output, sigma)
            return (x - clean) / sigma - clean
        predicts = scheduler.config.get("prediction_type", "epsilon")
        if (found := conventions.velocity(self.levels.kind, predicts, output, x, time)) is None:
            raise Unsupported(f"its scheduler has prediction_type {predicts!r}, which Burnish doesn't know")
        return found
