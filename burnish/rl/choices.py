"""Advantages, surrogates and KL estimates as recipes choose them: options of functions of tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from burnish.options import BelowOne, Count, Finite, Fraction, NonNegative, Positive
from burnish.registry import ReadIf, known, lookup, names, options, register
from burnish.rl.algorithm import AdvantagePart, SurrogatePart, WholeSamples, call

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.rl.kl import KlController


DIVIDED = ReadIf("advantage_std", "group", "global")


@options
class Whitened(AdvantagePart):
    """Base of advantages that are brought to mean 0 over all actions of an update."""

    whiten: bool = True
    """Bring the advantages of an update to mean 0 and std 1, over all actions."""
    whiten_std: Annotated[Literal["unbiased", "biased", "none"], ReadIf("whiten")] = "unbiased"
    """Whiten by the std over n - 1; by that over n, as LightRFT does across its buffer; or by none, which only takes
    the mean off (its no_advantage_std_norm)."""


@register("advantage", "group")
class Group(AdvantagePart):
    """GRPO: reward minus the mean of the group, over a standard deviation."""

    function = "group"
    groups = True
    advantage_std: Literal["group", "global", "none"] = "group"
    """Divide advantages by the std of the group, of the whole batch, or not at all (Dr.GRPO)."""
    advantage_eps: Annotated[Positive, DIVIDED] = 1e-6
    """Added to that std."""
    advantage_unbiased: Annotated[bool, DIVIDED] = True
    """Whether that std divides by n - 1, as DanceGRPO, verl and TRL do, or by n, as the flow papers' own code does."""
    advantage_trimmed_ratio: BelowOne = 0.0
    """Share of a group, its lowest rewards, that its mean and std leave out, so that a few failures don't lift all the
    others (MixGRPO's trimmed_ratio)."""
    advantage_aggregation: Literal["sum", "each", "gdpo"] = "sum"
    """Several rewards: sum: weighted sum first, one advantage of it; each: an advantage of each reward by itself, then
    their weighted sum, so that the reward with the largest std does not rule; gdpo: that sum brought to mean 0 and
    std 1 over the batch as well."""


@register("advantage", "group_steps")
class GroupSteps(AdvantagePart):
    """GRPO with process rewards: each step against all steps of the group, for the tokens up to its end."""

    groups = True
    steps = True
    advantage_std: Literal["group", "none"] = "group"
    """Divide by the std of the group's steps, or not at all."""
    advantage_eps: Annotated[Positive, DIVIDED] = 1e-6
    """Added to that std."""


@register("advantage", "flow_group")
class FlowGroup(Group):
    """The same with the defaults of Flow-GRPO's code."""

    advantage_eps: Annotated[Positive, DIVIDED] = 1e-4
    """Added to that std."""
    advantage_unbiased: Annotated[bool, DIVIDED] = False
    """Whether that std divides by n - 1, as DanceGRPO, verl and TRL do, or by n, as the flow papers' own code does."""


@register("advantage", "dance_group")
class DanceGroup(Group):
    """The same with the defaults of DanceGRPO's code."""

    advantage_eps: Annotated[Positive, DIVIDED] = 1e-8
    """Added to that std."""


@register("advantage", "centred")
class Centred(AdvantagePart):
    """Dr. GRPO: reward minus the mean of the group."""

    groups = True


@register("advantage", "leave_one_out")
class LeaveOneOut(AdvantagePart):
    """RLOO: reward minus the mean of the others of the group."""

    groups = True


@register("advantage", "whitened_group")
class WhitenedGroup(Whitened):
    """REINFORCE++ baseline: reward minus the mean of the group, whitened over the batch."""

    groups = True


@register("advantage", "cpgd")
class CPGDWeighting(AdvantagePart):
    """CPGD: reward minus the mean of the group, with prompts weighed against each other."""

    groups = True
    weighting: Literal["std", "clip_filter", "equal"] = "std"
    """How prompts weigh against each other: over the std of their rewards; by the share of prompts whose rewards
    differ, so that the others don't thin them out; or alike."""
    weighting_clip: Annotated[Positive, ReadIf("weighting", "clip_filter")] = 3.0
    """Largest weight of clip_filter."""


@register("advantage", "optimal_baseline")
class OptimalBaseline(AdvantagePart):
    """OPO: reward minus the mean of the group in which long samples weigh more, the baseline of least variance."""

    groups = True


@register("advantage", "pass_at_k")
class PassAtK(AdvantagePart):
    """Pass@k training: what a sample does for the chance that one of k samples succeeds."""

    groups = True
    pass_k: Annotated[int, Field(ge=1, le=10**6)] = 4
    """Samples of which one has to succeed; 1 is GRPO's advantage of rewards 0 and 1. At most rollout.n."""
    pass_reward: Finite = 1.0
    """Reward from which a sample has succeeded."""

    @property
    def samples(self) -> int:  # type: ignore[override]
        return self.pass_k


@register("advantage", "greedy_baseline")
class GreedyBaseline(AdvantagePart):
    """ReMax: reward minus that of the greedy response to the same prompt."""

    greedy = True


@register("advantage", "returns")
class Returns(Whitened):
    """REINFORCE: the sum of the rewards from each action on."""

    function = "discounted"
    gamma: Fraction = 1.0
    """Discount of rewards per token."""
    whiten: bool = True
    """Bring the returns of an update to mean 0 and std 1, over all tokens: its only baseline."""
    turn_rewards: bool = False
    """Each reward of the environment counts from its own turn back, not from the end of the dialogue; what else was
    earned stands at the end as ever."""


@register("advantage", "gae")
class GAE(Whitened):
    """PPO: generalised advantage estimation with a value network."""

    function = "generalised"
    critic = True
    gamma: Fraction = 1.0
    """Discount of rewards per token."""
    lam: Fraction = 0.95
    """GAE: 1 takes rewards as they came, 0 the value network's word for all but the next one."""
    turn_rewards: bool = False
    """Each reward of the environment counts from its own turn back, not from the end of the dialogue; what else was
    earned stands at the end as ever."""


@options
class ClipRange(SurrogatePart):
    """Base of surrogates in which a ratio counts within a range around 1."""

    clip: Positive = 0.2
    """Clip range of the probability ratio."""
    clip_high: Positive | None = None
    """Upper clip range if it is to differ from the lower one; null takes clip."""

    @model_validator(mode="after")
    def _range_exists(self) -> Self:
        if self.clip > 1:
            raise ValueError(f"clip is {self.clip}; ratios below 1 - clip can't exist then, so it must be <= 1")
        return self


@register("surrogate", "clip")
class Clip(ClipRange):
    """PPO's clipped ratio."""

    function = "ppo_clip"
    dual_clip: Positive | None = None
    """A token of negative advantage costs at most this many times it, so above 1 (3 is usual); null sets no bound."""

    @model_validator(mode="after")
    def _dual_clip_is_above_one(self) -> Self:
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip is {self.dual_clip}; it bounds a ratio that starts at 1, so it must be > 1")
        return self


@register("surrogate", "flow_clip")
class FlowClip(ClipRange):
    """PPO's clipped ratio, with the defaults of Flow-GRPO and what it reports."""

    clip: Positive = 1e-4
    """Clip range of the probability ratio; log-probs are means over latents, so ratios stay near 1."""


@register("surrogate", "gspo")
class SequenceClip(ClipRange, WholeSamples):
    """GSPO: the ratio of the whole sample, clipped as one."""

    clip: Positive = 3e-4
    """Clip range of the ratio of a sample, which is a geometric mean over its actions: it moves far less than one."""
    clip_high: Positive | None = 4e-4
    """Upper clip range; null takes clip."""


@register("surrogate", "gmpo")
class GeometricMean(ClipRange, WholeSamples):
    """GMPO: geometric mean of the ratios of a sample."""

    clip: Positive = 0.4
    """Ratios count within exp(-clip) to exp(clip), on the side that the advantage pushes to."""


@register("surrogate", "cispo")
class ClippedWeight(ClipRange):
    """CISPO: policy gradient with clipped importance weights."""

    clip: Positive = 1.0
    """Importance weights count from 1 - clip on; 1 leaves them open below, as the paper does."""
    clip_high: Positive | None = 4.0
    """Importance weights count up to 1 + clip_high; null takes clip."""


@register("surrogate", "sapo")
class SoftGate(SurrogatePart):
    """SAPO: a soft gate in place of clipping."""

    tau_pos: Positive = 1.0
    """How fast the gate closes for actions of positive advantage."""
    tau_neg: Positive = 1.05
    """How fast the gate closes for the others; faster, because pushing one token down lifts all others."""


@register("surrogate", "cpgd")
class ClippedLogRatio(ClipRange):
    """CPGD: policy gradient in log-probs, with a penalty for leaving the old policy."""

    drift_coef: NonNegative = 0.0
    """Weight of the penalty for leaving the old policy."""
    drift_clip: Annotated[Positive, ReadIf("drift_coef")] = 0.2
    """Bound of ratio - 1 in the gradient of that penalty."""

    @model_validator(mode="after")
    def _options_are_read(self) -> Self:
        if self.clip == 1:
            raise ValueError("clip is 1; log-ratios are clipped at log(1 - clip), so it must be < 1")
        return self


@register("surrogate", "dppo")
class DivergenceMask(SurrogatePart):
    """DPPO: the policy gradient without actions whose probability has moved too far, and would move on."""

    divergence: Literal["tv", "kl"] = "tv"
    """How far an action has moved: its probability (tv, total variation), or the KL of taking it or not (kl)."""
    divergence_limit: Positive = 0.15
    """Divergence from which on an action counts no more; the paper takes 0.15 for tv and 0.05 for kl."""
    ratio_limit: Positive = 20.0
    """Largest weight of an action by its ratio."""


@register("surrogate", "ratio")
class PlainRatio(SurrogatePart):
    """Ratio times advantage, not clipped: whoever takes it bounds the policy otherwise."""

    function = "plain_ratio"


@register("surrogate", "reinforce")
class LogProb(SurrogatePart):
    """REINFORCE: log-prob times advantage; nothing is compared or clipped."""

    compares = False


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
    target: Annotated[Positive | None, ReadIf("controller", "adaptive")] = None
    """KL that is kept by controller=adaptive, summed over the tokens of a response."""
    horizon: Annotated[Positive, ReadIf("controller", "adaptive")] = HORIZON
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

    def make_controller(self) -> KlController:
        """The coefficient, as it changes over a run."""
        from burnish.rl.kl import KlController

        return KlController(self.coef, target=self.target, horizon=self.horizon if self.target else math.inf)


def estimate(logprob: Tensor, reference: Tensor, mask: Tensor, kind: str, *, old: Tensor | None = None) -> Tensor:
    """KL of each action [B, K] by the name of an estimator, ours or a registered one."""
    from burnish.rl.kl import kl_estimate
    from burnish.rl.surrogates import masked

    if kind in KL_KINDS:
        return kl_estimate(logprob, reference, mask, kind, old=old)  # type: ignore[arg-type]
    return masked(call(lookup("kl estimator", kind)(), logprob, reference, mask), mask)
