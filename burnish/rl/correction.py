"""Options of the importance correction between the policy that sampled and the one that learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from burnish.options import Positive, Rule
from burnish.registry import ReadIf, options

if TYPE_CHECKING:
    from torch import Tensor


def _listed(value: Any) -> Any:
    """One rule, or one bound, is short for a list of it."""
    return value if value is None or isinstance(value, (list, tuple)) else [value]


Rules = Annotated[Annotated[list[Rule], Field(min_length=1)] | None, BeforeValidator(_listed)]
Bounds = Annotated[list[Positive] | None, BeforeValidator(_listed)]
LowerBounds = Annotated[list[Positive | None] | None, BeforeValidator(_listed)]


@options
class RolloutCorrection:
    """What happens where sampler and trainer disagree about a step: weights that correct it, and rejection."""

    mode: Literal["decoupled", "bypass"] = "decoupled"
    """decoupled: ratios refer to the policy at the start of the update. bypass: to the sampler itself, so that the
    clip range lies around the sampler; such a ratio holds the whole weight, and is scaled to the bounded one.
    A surrogate without a ratio (reinforce) is weighted alike in both."""
    weights: Literal["step", "sample", "none"] = "step"
    """Importance weight of each step, of the whole sample (the product over its steps), or none."""
    measure: Literal["joint", "mean"] = "joint"
    """Of a denoising step: joint: its ratio is the probability ratio of the whole picture, the product over all
    elements of the latent. mean: the geometric mean over the elements, as verl-omni takes it, which stays near 1
    however far apart the policies are."""
    upper: Annotated[Positive, ReadIf("weights", "step", "sample")] = 2.0
    """Larger weights become this one (truncated importance sampling)."""
    lower: Annotated[Positive | None, ReadIf("weights", "step", "sample")] = None
    """If given, weights outside of lower to upper become 0 instead (IcePop)."""
    batch_normalise: Annotated[bool, ReadIf("weights", "step", "sample")] = False
    """Divide weights by their mean, so that they don't change the learning rate."""
    reject: Rules = None
    """Leave out steps (token) or samples (by the sum, mean or largest of their steps) that are too far off, and out of
    the count. Of a ratio r, k1 is -log r, k2 is (log r)^2 / 2 and k3 is r - 1 - log r. Of a list, what any rule
    rejects is out."""
    reject_above: Bounds = None
    """Largest k2 or k3; k1 may be at most the log of it. A list has one for each rule."""
    reject_below: LowerBounds = None
    """k1 must be at least the log of it; null takes 1 / reject_above. The others have no lower bound. A list has one,
    or null, for each rule."""

    @model_validator(mode="after")
    def _weights_are_read(self) -> RolloutCorrection:
        if self.lower is not None and self.lower > self.upper:
            raise ValueError(f"lower is {self.lower} and upper is {self.upper}: no weight lies between; swap them")
        if self.weights == "none" and self.reject is None:
            raise ValueError("weights is none and reject is null, so nothing is corrected; choose one of them")
        return self

    @model_validator(mode="after")
    def _rules_have_bounds(self) -> RolloutCorrection:
        given = [self.reject, self.reject_above, self.reject_below]
        if len({len(bounds or []) for bounds in given[:2]} | {len(bounds) for bounds in given if bounds}) > 1:
            shown = [("null" if bounds is None else ", ".join(map(str, bounds))) for bounds in given]
            raise ValueError(
                f"reject is {shown[0]}, reject_above is {shown[1]} and reject_below is {shown[2]}: "
                f"{len(self.reject or [])} rules need as many bounds each; give one for each rule, in order"
            )
        for rule, high, low in self.rules:
            if low is not None and (low > high or not rule.endswith("k1")):
                raise ValueError(
                    f"reject_below is {low} and reject_above is {high} with {rule}: only rules of k1 have a lower "
                    "bound, which is below the upper one; give null for the others"
                )
        return self

    @property
    def rules(self) -> list[tuple[Rule, float, float | None]]:
        """Every rule of rejection with its upper and its lower bound."""
        rules = self.reject or []
        return list(zip(rules, self.reject_above or [], self.reject_below or [None] * len(rules), strict=True))

    def apply(
        self,
        learner: Tensor,
        sampled: Tensor,
        mask: Tensor,
        time: Tensor | None = None,
        scale: Tensor | None = None,
        *,
        compares: bool = True,
    ) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Factors of the loss [B, K], which steps stay [B, K] bool, and all ``rollout_corr/*`` metrics.

        Args:
            learner: [B, K] log-probs under the policy that learns, before its first step.
            sampled: [B, K] under the one that sampled.
            mask: [B, K] bool, steps that count.
            time: [B, K] of denoising steps; tokens have none.
            scale: [B, K] nats of a step per unit of its log-prob, which is a mean over the latent's elements; None
                where log-probs are in nats already, as those of tokens.
            compares: whether the surrogate has a ratio, which in bypass is a part of these weights already.
        """
        from burnish.rl import importance
        from burnish.rl.surrogates import masked, ratio_of

        if self.measure == "mean":
            scale = None
        ratio, kept = learner - sampled, mask  # as surrogates compare them
        nats = ratio if scale is None else ratio * scale
        metrics = importance.correction_metrics(learner, sampled, mask, time=time, scale=scale)
        weights = mask.to(learner.dtype)
        if not mask.any():
            return weights, kept, metrics
        if self.weights != "none":
            how: Any = {"level": self.weights, "upper": self.upper, "lower": self.lower}
            how["batch_normalise"] = self.batch_normalise
            weights = importance.importance_weights(nats, mask, **how)
            metrics |= importance.weight_metrics(nats, mask, **how)
            if scale is not None:
                metrics |= importance.joint_metrics(nats, mask, level=self.weights, applied=weights)
            if self.mode == "bypass" and compares:
                weights = weights / ratio_of(masked(ratio, mask))
        for rule, high, low in self.rules:
            kept = kept & importance.rejection_mask(nats, mask, rule=rule, upper=high, lower=low)
            metrics |= importance.rejection_metrics(nats, mask, rule=rule, upper=high, lower=low)
        if self.rules:
            metrics |= importance.rejected_fractions(kept, mask)
        return weights, kept, metrics
