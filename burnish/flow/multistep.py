"""Fewer deterministic steps beside stochastic ones: a second order where there is a step to build on."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from burnish.flow.solvers import extrapolation
from burnish.types.batch import to_device

Solver = Literal["euler", "dpm2"]


class Multistep:
    """Remembers the clean picture that a step predicted, for the step after it; a stochastic step ends the memory."""

    def __init__(self) -> None:
        self._before: tuple[Tensor, Tensor, Tensor] | None = None  # clean [B, ...], its time, which rows know it [B]

    def correction(self, x: Tensor, velocity: Tensor, t: Tensor, t_next: Tensor, *, restart: Tensor) -> Tensor:
        """What DPM-Solver++ 2M adds to the Euler step; 0 in rows that had no deterministic step just before.

        The last step adds nothing: it is infinitely long to the solver.

        Args:
            x, velocity: [B, ...] at t.
            t, t_next: scalars, falling.
            restart: [B] bool, rows whose step is stochastic.
        """
        clean = x - to_device(t, x.device) * velocity.float()
        before, self._before = self._before, (clean, t, ~restart)
        added = torch.zeros_like(clean)
        if before is None or t_next <= 0:
            return added
        change = to_device(extrapolation(before[1], t, t_next), x.device) * (clean - before[0])
        ready = to_device(before[2] & ~restart, x.device).view(-1, *[1] * (x.ndim - 1))
        return torch.where(ready, to_device(1 - t_next / t, x.device) * change, added)


def thinned(times: Tensor, start: int, share: float) -> Tensor:
    """Fewer steps after ``start``: a share of them, rounded up, evenly among the noise levels that are there.

    Args:
        times: [N + 1] falling from 1 to 0.
        start: the first step that may be left out.
        share: of the N - start steps that are kept, in (0, 1].
    """
    left = len(times) - 1 - start
    kept = max(math.ceil(left * share - 1e-9), 1)
    later = [start + round(left * i / kept) for i in range(1, kept + 1)]
    return times[[*range(start + 1), *later]]
