"""Whether a scheduler makes of predictions what is taken for granted: along a straight path, its last step lands on the
sample that is predicted. No network computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from burnish.models.flow.levels import Unsupported
from burnish.models.flow.rehearsal import distance
from burnish.models.flow.runs import Witness

FAR = 0.5  # of the largest value: some schedulers leave a little noise at the end, and here noise is large
SPREAD = 0.5  # of the noise before the last step, in our scale


class Landing(Witness):
    """Takes the scheduler's own steps from states on a straight path, whatever the pipeline makes of it."""

    def __init__(self, forwards: Any, table: Any) -> None:
        super().__init__(forwards, own=False)
        self.off = 0.0  # relative distance from the path after the last step
        self._table = table

    def step(self, scheduler: Any, output: Tensor, time: Any, x: Tensor, own: Callable[..., Tensor]) -> Tensor:
        number, times = len(self._seen), self._table.times.tolist()
        if output.shape == x.shape and number + 1 < len(times):
            draw = torch.Generator().manual_seed(0)
            clean = (torch.randn(x.shape, generator=draw) * 0.3).clamp(-0.9, 0.9).to(x.device)
            noise = torch.randn(x.shape, generator=draw).to(x.device) * SPREAD / times[-2]
            here, there = (clean + t * (noise - clean) for t in times[number : number + 2])
            self.off = self._missed(scheduler, noise - clean, here, there, times[number : number + 2], own)
        return super().step(scheduler, output, time, x, own)

    def _missed(
        self, scheduler: Any, velocity: Tensor, here: Tensor, there: Tensor, times: list[float],
        own: Callable[..., Tensor],
    ) -> float:  # fmt: skip
        at, after = times
        x = here * self._table.scale(at)
        scheduler._step_index = self._table.skipped + len(self._seen)
        # what a velocity is of an output, it is for each number by itself: a factor and a summand
        least, most = (self._table.predicted(scheduler, fill(x), x, at) for fill in (torch.zeros_like, torch.ones_like))
        try:
            landed = own((velocity - least) / (most - least), x).float()
        except (RuntimeError, ValueError, IndexError, TypeError):  # of a step that can't be taken by itself
            return 0.0
        return distance(landed / self._table.scale(after), there)


def land(visit: Callable[[Any], Any], forwards: Any, table: Any, scheduler: Any) -> None:
    """Compare where a scheduler's last step ends with the sample that is predicted.

    Args:
        visit: runs the pipeline.
        forwards: of the model.
        table: of the run.
        scheduler: that the pipeline comes with, for the message.

    Raises:
        Unsupported: it ends elsewhere.
    """
    landing = Landing(forwards, table)
    visit(landing)
    if not landing.off <= FAR:
        raise Unsupported(
            f"the last step of its {type(scheduler).__name__} ends {landing.off:.2g} (relative) from the sample that "
            "is predicted by its prediction_type, so that it is unknown what its networks predict"
        )
