"""How far one policy has moved from another: of steps, of tokens, and the coefficient that this costs."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from burnish.rl.surrogates import log_ratio

K3_MAX = 10.0  # as in verl: e^20 of one token would drown all others
Kind = Literal["k1", "k2", "k3", "k1+", "k3+", "unbiased"]


def kl_estimate(logprob: Tensor, reference: Tensor, mask: Tensor, kind: Kind, *, old: Tensor | None = None) -> Tensor:
    """KL(policy || reference) per sampled token (Schulman, "Approximating KL divergence").

    With d = log(policy / reference): ``k1`` is d, ``k2`` d^2/2, ``k3`` exp(-d) - 1 + d. As a penalty in the reward
    their values count: k1 and k3 are unbiased. As a loss their gradients count, and there only k2's is the KL's, on
    samples of the policy itself; k1's is zero on average and k3's that of KL(reference || policy).

    k3 grows exponentially where the policy leaves out what the reference writes, and counts no further than 10, as in
    verl; beyond that it has no gradient. ``k1+`` and ``k3+`` (verl's) have that value and k2's gradient.
    ``unbiased`` is k3 times policy / old (DeepSeek-V3.2): its value and its gradient are the KL's, on samples of
    whatever policy ``old`` is, so it is not bounded.

    Args:
        logprob, reference: [B, T].
        mask: [B, T] bool.
        kind: which estimate.
        old: [B, T] log-probs under the policy that sampled; needed by ``unbiased`` only.

    Returns:
        [B, T] float32, 0 where masked.
    """
    d = log_ratio(logprob, reference, mask)
    if kind == "k1":
        return d
    if kind == "k2":
        return d.square() / 2
    if kind == "k1+":
        return _value_of(d, d)
    k3 = (-d).exp() - 1 + d
    if kind == "unbiased":
        assert old is not None, "it corrects for the policy that sampled"
        return log_ratio(logprob, old, mask).exp() * k3
    bounded = k3.clamp(max=K3_MAX)
    return _value_of(bounded, d) if kind == "k3+" else bounded


def _value_of(estimate: Tensor, d: Tensor) -> Tensor:
    """That value with the gradient of k2."""
    k2 = d.square() / 2
    return estimate.detach() + k2 - k2.detach()


class KlController:
    """The coefficient of a KL, which rises while the KL is above its target and falls below it (Ziegler et al. 2019,
    sec. 2.2); without a target it stays what it is.

    Args:
        coef: at the start.
        target: KL to keep, per token or per sequence as the KL that ``update`` is told.
        horizon: samples over which the coefficient can change by a fifth.
    """

    def __init__(self, coef: float, *, target: float | None = None, horizon: float = math.inf) -> None:
        self.coef, self.target, self.horizon = coef, target, horizon

    def update(self, current: float, samples: int) -> None:
        """Move the coefficient after ``samples`` samples whose KL was ``current``; a non-finite KL says nothing."""
        if samples >= 5 * self.horizon:
            raise ValueError(
                f"the KL horizon is {self.horizon} with {samples} samples per update: one step could make the "
                f"coefficient negative; set it above {samples // 5}"
            )
        if self.target is not None and math.isfinite(current):
            error = min(max(current / self.target - 1, -0.2), 0.2)
            self.coef *= 1 + error * samples / self.horizon

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.coef = state["coef"]
