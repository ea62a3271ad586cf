"""What lets a deterministic sampler take fewer steps than Euler's for the same picture."""

from __future__ import annotations

import torch
from torch import Tensor


def extrapolation(t_before: Tensor, t: Tensor, t_next: Tensor) -> Tensor:
    """How far DPM-Solver++ 2M carries the predicted clean picture on, in units of its last change (arXiv:2211.01095).

    It is h / (2 h_before), where h is the growth of log((1 - t) / t) in a step; that is infinite in a step from
    t = 1, after which this is 0. Without it, data prediction is Euler's method for flow matching.

    Args:
        t_before, t, t_next: scalars, falling: begin of the step before, and begin and end of this one.
    """
    a, b, c = (torch.special.logit(1 - time.double()) for time in (t_before, t, t_next))
    carried: Tensor = 0.5 * (c - b) / (b - a)
    return carried.to(t.dtype)
