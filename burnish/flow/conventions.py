"""Noise levels and predictions of other conventions in ours: t from 1 to 0, (1 - t) x_0 + t eps, v = eps - x_0.

Others noise as x = a x_0 + s eps. With X = x / (a + s) and t = s / (a + s) that is X = (1 - t) x_0 + t eps, and Euler's
method in t is DDIM, so that networks which predict noise are flows too.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

TOLERANCE = 1e-4
SMALLEST = 1e-8  # signal beside pure noise
# a + s = 1; the same, but what is called sigma is a, and outputs point to the sample; a^2 + s^2 = 1; a = 1
Kind = Literal["flow", "rising", "vp", "ve"]


def kind_of(signal: Tensor, noise: Tensor) -> Kind | None:
    """The convention of steps with these factors a and s, [N] each; None if it is none of these.

    Of numbers that rise to the sample, what is called noise is the signal.
    """
    sums: dict[Kind, Tensor] = {"flow": signal + noise, "vp": signal.square() + noise.square(), "ve": signal}
    found = next((kind for kind, values in sums.items() if bool(((values - 1).abs() < TOLERANCE).all())), None)
    return "rising" if found == "flow" and bool(noise[-1] > noise[0]) else found


def scale_at(kind: Kind, time: float) -> float:
    """a + s at a time."""
    return {"ve": 1 / max(1 - time, SMALLEST), "vp": 1 / math.hypot(time, 1 - time)}.get(kind, 1.0)


def sigma_at(kind: Kind, time: float) -> float:
    """What is called sigma: noise, signal where numbers rise, else noise over signal."""
    return {"flow": time, "rising": 1 - time}.get(kind, time / max(1 - time, SMALLEST))


def time_of(kind: Kind, level: float) -> float:
    """The time whose sigma is known."""
    return {"flow": level, "rising": 1 - level}.get(kind, level / (1 + level))


def velocity_of(kind: Kind, predicts: str, output: Tensor, x: Tensor, time: float) -> Tensor | None:
    """eps - x_0 at a sample ``x`` [B, ...] of that convention; None if it is unknown what networks predict.

    Args:
        kind: of convention.
        predicts: epsilon, sample or v_prediction, as diffusers calls them; flows predict velocities.
        output: [B, ...] of the network.
        x: in its own scale.
        time: t.
    """
    if kind in ("flow", "rising"):
        return output if kind == "flow" else -output
    size = math.hypot(time, 1 - time)
    a, s = (1 - time) / size, time / size  # as if their squares added up to 1
    known = {"epsilon": (0.0, 1.0), "sample": (1.0, 0.0), "v_prediction": (-s, a)}
    if predicts not in known:
        return None
    p, q = known[predicts]  # output = p x_0 + q eps, and x = a x_0 + s eps
    return ((a + s) * output - (p + q) * (x * a if kind == "ve" else x)) / (a * q - s * p)
