"""How rewards become advantages, by name: options of functions of ``burnish.advantages.rewards.Rewards``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from burnish.algorithms.parts import AdvantagePart
from burnish.options import BelowOne, Finite, Fraction, Positive
from burnish.registry import options, register


@options
class Whitened(AdvantagePart):
    """Base of advantages that are brought to mean 0 over all actions of an update."""

    whiten: bool = True
    """Bring the advantages of an update to mean 0 and std 1, over all actions."""
    whiten_std: Literal["unbiased", "biased", "none"] = "unbiased"
    """Whiten by the std over n - 1; by that over n, as LightRFT does across its buffer; or by none, which only takes
    the mean off (its no_advantage_std_norm)."""

    @model_validator(mode="after")
    def _whitening_is_read(self) -> Self:
        if not self.whiten and self.whiten_std != "unbiased":
            raise ValueError("whiten_std is never read when whiten is false; leave one of them out")
        return self


@register("advantage", "group")
class Group(AdvantagePart):
    """GRPO: reward minus the mean of the group, over a standard deviation."""

    function = "burnish.advantages.rules:group"
    groups = True
    advantage_std: Literal["group", "global", "none"] = "group"
    """Divide advantages by the std of the group, of the whole batch, or not at all (Dr.GRPO)."""
    advantage_eps: Positive = 1e-6
    """Added to that std."""
    advantage_unbiased: bool = True
    """Whether that std divides by n - 1, as DanceGRPO, verl and TRL do, or by n, as the flow papers' own code does."""
    advantage_trimmed_ratio: BelowOne = 0.0
    """Share of a group, its lowest rewards, that its mean and std leave out, so that a few failures don't lift all the
    others (MixGRPO's trimmed_ratio)."""
    advantage_aggregation: Literal["sum", "each", "gdpo"] = "sum"
    """Several rewards: sum: weighted sum first, one advantage of it; each: an advantage of each reward by itself, then
    their weighted sum, so that the reward with the largest std does not rule; gdpo: that sum brought to mean 0 and
    std 1 over the batch as well."""

    @model_validator(mode="after")
    def _advantage_options_are_read(self) -> Self:
        default = type(self).__pydantic_fields__  # type: ignore[attr-defined]
        changed = any(getattr(self, name) != default[name].default for name in ("advantage_eps", "advantage_unbiased"))
        if self.advantage_std == "none" and changed:
            raise ValueError("advantage_eps and advantage_unbiased are never read when advantage_std is none")
        return self


@register("advantage", "group_steps")
class GroupSteps(AdvantagePart):
    """GRPO with process rewards: each step against all steps of the group, for the tokens up to its end."""

    function = "burnish.advantages.rules:group_steps"
    groups = True
    steps = True
    advantage_std: Literal["group", "none"] = "group"
    """Divide by the std of the group's steps, or not at all."""
    advantage_eps: Positive = 1e-6
    """Added to that std."""

    @model_validator(mode="after")
    def _eps_is_read(self) -> Self:
        if self.advantage_std == "none" and self.advantage_eps != 1e-6:
            raise ValueError("advantage_eps is never read when advantage_std is none")
        return self


@register("advantage", "flow_group")
class FlowGroup(Group):
    """The same with the defaults of Flow-GRPO's code."""

    advantage_eps: Positive = 1e-4
    """Added to that std."""
    advantage_unbiased: bool = False
    """Whether that std divides by n - 1, as DanceGRPO, verl and TRL do, or by n, as the flow papers' own code does."""


@register("advantage", "dance_group")
class DanceGroup(Group):
    """The same with the defaults of DanceGRPO's code."""

    advantage_eps: Positive = 1e-8
    """Added to that std."""


@register("advantage", "centred")
class Centred(AdvantagePart):
    """Dr. GRPO: reward minus the mean of the group."""

    function = "burnish.advantages.rules:centred"
    groups = True


@register("advantage", "leave_one_out")
class LeaveOneOut(AdvantagePart):
    """RLOO: reward minus the mean of the others of the group."""

    function = "burnish.advantages.rules:leave_one_out"
    groups = True


@register("advantage", "whitened_group")
class WhitenedGroup(Whitened):
    """REINFORCE++ baseline: reward minus the mean of the group, whitened over the batch."""

    function = "burnish.advantages.rules:whitened_group"
    groups = True


@register("advantage", "cpgd")
class CPGDWeighting(AdvantagePart):
    """CPGD: reward minus the mean of the group, with prompts weighed against each other."""

    function = "burnish.advantages.rules:cpgd"
    groups = True
    weighting: Literal["std", "clip_filter", "equal"] = "std"
    """How prompts weigh against each other: over the std of their rewards; by the share of prompts whose rewards
    differ, so that the others don't thin them out; or alike."""
    weighting_clip: Positive = 3.0
    """Largest weight of clip_filter."""

    @model_validator(mode="after")
    def _clip_is_read(self) -> Self:
        if self.weighting != "clip_filter" and self.weighting_clip != 3.0:
            raise ValueError(
                f"weighting_clip is read by clip_filter alone, and weighting is {self.weighting}; leave it out"
            )
        return self


@register("advantage", "optimal_baseline")
class OptimalBaseline(AdvantagePart):
    """OPO: reward minus the mean of the group in which long samples weigh more, the baseline of least variance."""

    function = "burnish.advantages.rules:optimal_baseline"
    groups = True


@register("advantage", "pass_at_k")
class PassAtK(AdvantagePart):
    """Pass@k training: what a sample does for the chance that one of k samples succeeds."""

    function = "burnish.advantages.rules:pass_at_k"
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

    function = "burnish.advantages.rules:greedy_baseline"
    greedy = True


@register("advantage", "returns")
class Returns(Whitened):
    """REINFORCE: the sum of the rewards from each action on."""

    function = "burnish.advantages.rules:discounted"
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

    function = "burnish.advantages.rules:generalised"
    critic = True
    gamma: Fraction = 1.0
    """Discount of rewards per token."""
    lam: Fraction = 0.95
    """GAE: 1 takes rewards as they came, 0 the value network's word for all but the next one."""
    turn_rewards: bool = False
    """Each reward of the environment counts from its own turn back, not from the end of the dialogue; what else was
    earned stands at the end as ever."""
