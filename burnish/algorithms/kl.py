"""Options of the distance from the reference: where it counts, how it is estimated, who sets its weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ValidationInfo, model_validator

from burnish.algorithms.base import call
from burnish.options import Count, Positive
from burnish.registry import known, lookup, names, options

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.losses.kl import FixedKl

HORIZON = 10_000.0


KL_KINDS = ("k1", "k2", "k3", "k1+", "k3+", "unbiased")


def one_of(*more: str) -> BeforeValidator:
    """Accepts the name of an estimator, or one of some more."""

    def check(kind: Any, info: ValidationInfo) -> Any:
        ours = (*more, *KL_KINDS)
        if isinstance(kind, str) and kind not in ours and not known("kl estimator", kind):
            raise ValueError(
                f"{info.field_name} is {kind}; it must be one of {', '.join([*ours, *names('kl estimator')])}, or the "
                "name of a KL estimator that a plug-in registers"
            )
        return kind

    return BeforeValidator(check)


KlKind = Annotated[str, one_of()]


@options
class TokenKl:
    """What it costs the policy to leave the reference, which is the policy before training."""

    route: Literal["loss", "reward"] = "loss"
    """loss: a term of the loss, with a gradient. reward: taken off the reward of every token (InstructGPT)."""
    kind: KlKind | None = None
    """Estimate of the KL per token; null takes k1 in the reward and k3 in the loss. As a loss k1 has no gradient on
    average, k2 has that of the KL; k1+ and k3+ have their own value and k2's gradient; unbiased corrects k3 for the
    policy that sampled. Or the name of a registered KL estimator."""
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
    def value_kind(self) -> str:
        """The plain estimator that has the same value on samples of the policy itself."""
        chosen = self.kind or ("k1" if self.route == "reward" else "k3")
        return {"k1+": "k1", "k3+": "k3", "unbiased": "k3"}.get(chosen, chosen)

    def estimate(self, logprob: Tensor, reference: Tensor, mask: Tensor, *, old: Tensor) -> Tensor:
        """The KL of each action [B, K] with the gradient that was chosen; ``old`` are log-probs of the sampler."""
        kind = self.kind or self.value_kind
        return estimate(logprob, reference, mask, kind, old=old if kind == "unbiased" else None)

    def value(self, logprob: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
        """The KL of each action [B, K], where its gradient is not read."""
        return estimate(logprob, reference, mask, self.value_kind)

    def make_controller(self) -> FixedKl:
        """The coefficient, as it changes over a run."""
        from burnish.losses.kl import AdaptiveKl, FixedKl

        if self.target is None:
            return FixedKl(self.coef)
        return AdaptiveKl(self.coef, target=self.target, horizon=self.horizon)


def estimate(logprob: Tensor, reference: Tensor, mask: Tensor, kind: str, *, old: Tensor | None = None) -> Tensor:
    """KL of each action [B, K] by the name of an estimator, ours or a registered one."""
    from burnish.losses.kl import kl_estimate
    from burnish.losses.policy import masked

    if kind in KL_KINDS:
        return kl_estimate(logprob, reference, mask, kind, old=old)  # type: ignore[arg-type]
    return masked(call(lookup("kl estimator", kind)(), logprob, reference, mask), mask)
