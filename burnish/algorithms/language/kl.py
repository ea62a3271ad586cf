"""Options of the distance from the reference: where it counts, how it is estimated, who sets its weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from burnish.options import Count, Positive
from burnish.registry import options

if TYPE_CHECKING:
    from burnish.losses.tokens import FixedKl, Kind

HORIZON = 10_000.0


@options
class TokenKl:
    """What it costs the policy to leave the reference, which is the policy before training."""

    route: Literal["loss", "reward"] = "loss"
    """loss: a term of the loss, with a gradient. reward: taken off the reward of every token (InstructGPT)."""
    kind: Literal["k1", "k2", "k3", "k1+", "k3+", "unbiased"] | None = None
    """Estimate of the KL per token; null takes k1 in the reward and k3 in the loss. As a loss k1 has no gradient on
    average, k2 has that of the KL; k1+ and k3+ have their own value and k2's gradient; unbiased corrects k3 for the
    policy that sampled."""
    coef: Positive = 1e-3
    """Weight of the KL; with controller=adaptive the one at the start."""
    controller: Literal["fixed", "adaptive"] = "fixed"
    """adaptive raises the weight while the KL is above its target, and lowers it below."""
    target: Positive | None = None
    """KL that is kept by controller=adaptive, summed over the tokens of a response."""
    horizon: Positive = HORIZON
    """Responses over which controller=adaptive can change the weight by a fifth."""
    refresh_every: Count | None = None
    """Policy updates after which the policy becomes the new reference, again and again; null keeps the first one."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.route == "reward" and self.kind in ("k1+", "k3+", "unbiased"):
            raise ValueError(
                f"kind is {self.kind} and route is reward: only its value counts there, which is that of "
                f"{self.value_kind}; choose k1, k2 or k3"
            )
        adaptive = self.controller == "adaptive"
        if adaptive and self.target is None:
            raise ValueError("controller is adaptive and target is null; give the KL per response that is to be kept")
        if not adaptive and (self.target is not None or self.horizon != HORIZON):
            raise ValueError("target and horizon are never read when controller is fixed; leave them out")
        return self

    @property
    def early(self) -> bool:
        """Whether its value is needed before the policy learns."""
        return self.route == "reward" or self.controller == "adaptive"

    @property
    def estimate(self) -> Kind:
        """The estimate that was chosen, or the default of the route."""
        return self.kind or ("k1" if self.route == "reward" else "k3")

    @property
    def value_kind(self) -> Kind:
        """The plain estimate that has the same value on samples of the policy itself."""
        same: dict[Kind, Kind] = {"k1+": "k1", "k3+": "k3", "unbiased": "k3"}
        return same.get(self.estimate, self.estimate)

    def make_controller(self) -> FixedKl:
        """The coefficient, as it changes over a run."""
        from burnish.losses.tokens import AdaptiveKl, FixedKl

        if self.target is None:
            return FixedKl(self.coef)
        return AdaptiveKl(self.coef, target=self.target, horizon=self.horizon)
