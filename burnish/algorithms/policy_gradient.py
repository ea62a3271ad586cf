"""The one policy gradient: what an action is differs between the two halves, and nothing else.

A denoising step is an action, and so is a token. Whatever is here works on log-probs [B, K] of the K actions of B
samples, with a mask of those that count; ``flow/`` and ``language/`` say where these log-probs come from.
"""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from burnish.algorithms.base import Algorithm, ChosenAdvantage, ChosenSurrogate, Metrics
from burnish.algorithms.correction import RolloutCorrection
from burnish.algorithms.parts import AdvantagePart, SurrogatePart
from burnish.options import Finite, Positive, clip_range
from burnish.registry import options

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.advantages.rewards import Advantages, Rewards
    from burnish.losses.policy import Surrogate


@options
class PolicyGradient(Algorithm):
    """Rewards, then advantages, then a surrogate of each action; advantages and surrogates go by name."""

    parts: ClassVar[dict[str, type]] = {"advantage": AdvantagePart, "surrogate": SurrogatePart}

    advantage: ChosenAdvantage = None
    """How rewards become advantages, in place of this algorithm's own way: the name of a registered advantage, or
    {name: NAME} with its options; null takes its own."""
    surrogate: ChosenSurrogate = None
    """What is maximised for each action, in place of this algorithm's own: the name of a registered surrogate, or
    {name: NAME} with its options; null takes its own."""
    advantage_clip: Positive | None = None
    """Largest size of an advantage; null never clips."""
    advantage_clip_low: Finite | None = None
    """Smallest advantage if negative ones are to be bounded otherwise; null takes -advantage_clip."""
    old_logprob: Literal["auto", "sampler", "recompute"] = "auto"
    """Log-probs that ratios refer to: the sampler's, recomputed, or auto: the policy's own until it is stepped, then
    the sampler's if a check shows that they are the trainer's, else recomputed."""
    rollout_correction: RolloutCorrection | None = None
    """Importance correction between the policy that sampled and the one that learns: weights and rejection; null
    trusts the sampler. Where pipeline.depth is above 0 it is on unless it is set to null."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        self.part("advantage")
        self._compares(self.part("surrogate"))
        clip_range("advantage_clip", self.advantage_clip_low, self.advantage_clip)
        mode = self.rollout_correction.mode if self.rollout_correction else None
        if (mode, self.old_logprob) in (("decoupled", "sampler"), ("bypass", "recompute")):
            raise ValueError(
                f"old_logprob is {self.old_logprob} and rollout_correction.mode is {mode}: decoupled refers to "
                "recomputed log-probs and bypass to the sampler's; leave old_logprob out"
            )
        return self

    def _compares(self, surrogate: Any) -> None:
        correction = self.rollout_correction
        if not surrogate.compares and self.old_logprob != "auto":
            raise ValueError(f"old_logprob is {self.old_logprob}, but {surrogate.name} has no ratio; leave it out")
        if not surrogate.compares and correction is not None and correction.mode == "bypass":
            raise ValueError(f"rollout_correction.mode is bypass, but {surrogate.name} has no ratio; take decoupled")

    def part(self, kind: str) -> Any:
        """The advantage or the surrogate that is in use, with its options."""
        return part_of(self, kind)

    @property
    def bypasses(self) -> bool:
        """Whether ratios refer to the sampler, whatever the trainer makes of its actions."""
        return self.rollout_correction is not None and self.rollout_correction.mode == "bypass"

    @property
    def tolerance(self) -> float:
        """A difference of log-probs that can't be seen in the loss."""
        return float(self.part("surrogate").clip) / 100

    def is_old(self, roles: Any) -> bool:
        """Whether the policy is the one that sampled, until it is stepped: its own log-probs are exactly the old."""
        return self.old_logprob == "auto" and not roles.moved and not self.bypasses

    def recomputes(self, roles: Any, difference: Callable[[], float]) -> tuple[bool, Metrics]:
        """Whether log-probs of the actions are computed again before learning, and what there is to report.

        Args:
            roles: the networks.
            difference: measures how far sampler and trainer are apart, in one micro-batch.
        """
        metrics: Metrics = {}
        recompute = self.old_logprob == "recompute" or self.rollout_correction is not None
        compares = self.old_logprob == "auto" and self.part("surrogate").compares
        if compares and not recompute and (roles.moved or not roles.on_policy):
            apart = difference()
            recompute = apart > self.tolerance
            metrics["old_policy/logprob_check"] = apart
        metrics["old_policy/recomputed"] = float(recompute and not self.bypasses)
        return recompute, metrics

    def clipped(self, advantage: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
        """Advantages [B, K] within their bounds, and the share that was outside."""
        from burnish.advantages.shaping import clip_values

        if self.advantage_clip is None and self.advantage_clip_low is None:
            return advantage, {}
        low, high = clip_range("advantage_clip", self.advantage_clip_low, self.advantage_clip)
        advantage, share = clip_values(advantage, low, high, mask)
        return advantage, {"critic/advantages/clip_ratio": share}

    def correct(
        self,
        learner: Tensor,
        sampled: Tensor,
        weight: Tensor,
        mask: Tensor,
        time: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Weight [B, K] and mask [B, K] of the actions after the importance correction, and its metrics."""
        if self.rollout_correction is None:
            return weight, mask, {}
        factor, kept, metrics = self.rollout_correction.apply(learner, sampled, mask, time, scale)
        return weight * factor, kept, metrics

    def objective(
        self, logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, weight: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted loss of each action and its metrics, [B, K] each, by the chosen surrogate."""
        return weighted(call(self.part("surrogate"), logprob, old, advantage, mask), weight)


def weighted(found: Surrogate, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of each action times its weight, and the metrics of a surrogate with those of its ratio."""
    values = dict(found.metrics)
    if found.ratio is not None:
        values |= {"actor/ratio_mean": found.ratio, "actor/ratio_square": found.ratio.square()}
    return found.loss * weight, values


def part_of(algorithm: Algorithm, kind: str) -> Any:
    """The part that an algorithm's option ``kind`` names, else the algorithm's own, with its options.

    Raises:
        ValueError: its options are wrong, or those of its own are given while another takes its place.
    """
    given, own = getattr(algorithm, kind), algorithm.parts[kind]
    values = {one.name: getattr(algorithm, one.name) for one in dataclasses.fields(own) if one.name != "name"}
    if given is None:
        return own(**values)
    if own in (AdvantagePart, SurrogatePart):
        raise ValueError(f"{kind} is {given.name}, but {algorithm.name} is defined by its own; leave it out")
    defaults = type(algorithm).__pydantic_fields__  # type: ignore[attr-defined]
    for name, value in values.items():
        if value != defaults[name].default:
            instead = f", or set {kind}.{name}" if name in vars(given) else ""
            raise ValueError(
                f"{name} is {value}, but {kind} is {given.name}, which takes the place of what reads it; leave it "
                f"out{instead}"
            )
    return given


def call(part: Any, *tensors: Any) -> Any:
    """The function of a part on tensors, with the part's options."""
    function = part.function if callable(part.function) else pkgutil.resolve_name(part.function)
    given = {one.name: getattr(part, one.name) for one in dataclasses.fields(part) if one.name != "name"}
    return function(*tensors, **given)


def advantages_of(algorithm: Algorithm, rewards: Rewards) -> Advantages:
    """Advantages by an algorithm's rule; one that gives a number per sample gives it to all of its actions."""
    from burnish.advantages.rewards import Advantages

    found = call(part_of(algorithm, "advantage"), rewards)
    return found if isinstance(found, Advantages) else Advantages.of(found, rewards.mask)
