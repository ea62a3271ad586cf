"""How rewards become advantages, as recipes choose it: functions of rewards; keyword-only parameters are options.

PyTorch is imported when one is called: configurations are read without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from burnish.options import BelowOne, Finite, Fraction, Positive
from burnish.registry import KINDS, ReadIf, register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.rl.advantages import Advantages, Rewards

DIVIDED = ReadIf("advantage_std", "group", "global")
WhitenStd = Annotated[Literal["unbiased", "biased", "none"], ReadIf("whiten")]


@register("advantage", "group", groups=True)
def group(
    rewards: Rewards,
    *,
    advantage_std: Literal["group", "global", "none"] = "group",
    advantage_eps: Annotated[Positive, DIVIDED] = 1e-6,
    advantage_unbiased: Annotated[bool, DIVIDED] = True,
    advantage_trimmed_ratio: BelowOne = 0.0,
    advantage_aggregation: Literal["sum", "each", "gdpo"] = "sum",
) -> Tensor:
    """GRPO: reward minus the mean of the group, over a standard deviation.

    Args:
        rewards: of the samples of an update.
        advantage_std: Divide advantages by the std of the group, of the whole batch, or not at all (Dr.GRPO).
        advantage_eps: Added to that std.
        advantage_unbiased: Whether that std divides by n - 1, as DanceGRPO, verl and TRL do, or by n, as the flow
            papers' own code does.
        advantage_trimmed_ratio: Share of a group, its lowest rewards, that its mean and std leave out, so that a few
            failures don't lift all the others (MixGRPO's trimmed_ratio).
        advantage_aggregation: Several rewards: sum: weighted sum first, one advantage of it; each: an advantage of each
            reward by itself, then their weighted sum, so that the reward with the largest std does not rule; gdpo: that
            sum brought to mean 0 and std 1 over the batch as well (GDPO, arXiv:2601.05242).
    """
    from burnish.rl.advantages import group_advantages, normalise_each

    how: Any = {
        "scale": advantage_std, "eps": advantage_eps, "unbiased": advantage_unbiased,
        "trimmed_ratio": advantage_trimmed_ratio,
    }  # fmt: skip
    if advantage_aggregation == "sum":
        return group_advantages(rewards.reward, rewards.group, rewards.missing, **how)
    whiten = advantage_aggregation == "gdpo"
    return normalise_each(rewards.components, rewards.applied, rewards.group, rewards.missing, whiten=whiten, **how)


# the class that holds the options of that function
_Group: Any = KINDS["advantage"].entries["group"]


@register("advantage", "flow_group")
class FlowGroup(_Group):  # type: ignore[misc]
    """The same with the defaults of Flow-GRPO's code."""

    advantage_eps: Annotated[Positive, DIVIDED] = 1e-4
    """Added to that std."""
    advantage_unbiased: Annotated[bool, DIVIDED] = False
    """Whether that std divides by n - 1, as DanceGRPO, verl and TRL do, or by n, as the flow papers' own code does."""


@register("advantage", "dance_group")
class DanceGroup(_Group):  # type: ignore[misc]
    """The same with the defaults of DanceGRPO's code."""

    advantage_eps: Annotated[Positive, DIVIDED] = 1e-8
    """Added to that std."""


def diverse(rewards: Rewards, *, diversity: str | None, **how: Any) -> Tensor:
    """The advantage of a group, of which good samples that are unlike the others get more."""
    from burnish.rl.advantages import amplified

    advantage = group(rewards, **how)
    if diversity is None:
        return advantage
    return amplified(advantage, rewards.component(diversity), rewards.group, rewards.missing)


@register("advantage", "diverse_group", reads="diversity")
class DiverseGroup(FlowGroup):
    """GARDO: good samples that are unlike the others of their group count more (arXiv:2512.24138)."""

    function = staticmethod(diverse)
    advantage_std: Literal["group", "global", "none"] = "none"
    """Divide advantages by the std of the group, of the whole batch, or not at all (GARDO, Dr.GRPO)."""
    diversity: str | None = "image_variety_nearest"
    """Reward that measures how far a sample is from the nearest other one of its group, by its name in rewards; weight
    0 is enough. Advantages above 0 are multiplied by it, over its mean in the group; null multiplies nothing."""


@register("advantage", "group_steps", groups=True, steps=True)
def group_steps(
    rewards: Rewards,
    *,
    advantage_std: Literal["group", "none"] = "group",
    advantage_eps: Annotated[Positive, DIVIDED] = 1e-6,
) -> Tensor:
    """GRPO with process rewards: each step against all steps of the group, for the tokens up to its end.

    Args:
        rewards: of the samples of an update.
        advantage_std: Divide by the std of the group's steps, or not at all.
        advantage_eps: Added to that std.

    Returns:
        [B, K] (arXiv:2402.03300, 4.1.3): an action gets the sum over the steps that end with it or later. What of a
        reward belongs to no step is compared as a whole, and counts for all.
    """
    import torch

    from burnish.rl.advantages import group_advantages

    scale = advantage_std
    there = ~rewards.steps.isnan()
    rest = rewards.reward - rewards.steps.nan_to_num(0.0).sum(1)
    whole = group_advantages(rest, rewards.group, rewards.missing, scale=scale, eps=advantage_eps, unbiased=True)
    place = there.nonzero()[:, 0]
    each = group_advantages(
        rewards.steps[there], rewards.group[place], rewards.missing[place],
        scale=scale, eps=advantage_eps, unbiased=True,
    )  # fmt: skip
    compared = torch.zeros_like(rewards.steps).masked_scatter(there, each)
    return whole[:, None] + compared.flip(1).cumsum(1).flip(1)


@register("advantage", "centred", groups=True)
def centred(rewards: Rewards) -> Tensor:
    """Dr. GRPO: reward minus the mean of the group (arXiv:2503.20783)."""
    from burnish.rl.advantages import group_advantages

    return group_advantages(rewards.reward, rewards.group, rewards.missing, scale="none")


@register("advantage", "leave_one_out", groups=True)
def leave_one_out(rewards: Rewards) -> Tensor:
    """RLOO: reward minus the mean of the others of the group (arXiv:2402.14740)."""
    from burnish.rl.advantages import group_statistics

    groups = group_statistics(rewards.reward, rewards.group, rewards.missing)
    others = (groups.count - 1).clamp_min(1)
    return (centred(rewards).double() * (groups.count / others)[groups.label]).float()


@register("advantage", "whitened_group", groups=True)
def whitened_group(rewards: Rewards, *, whiten: bool = True, whiten_std: WhitenStd = "unbiased") -> Advantages:
    """REINFORCE++ baseline: reward minus the mean of the group, whitened over the batch (arXiv:2501.03262).

    Args:
        rewards: of the samples of an update.
        whiten: Bring the advantages of an update to mean 0 and std 1, over all actions.
        whiten_std: Whiten by the std over n - 1; by that over n, as LightRFT does across its buffer; or by none, which
            only takes the mean off (its no_advantage_std_norm).
    """
    from burnish.rl.advantages import Advantages, whitened

    found = Advantages.of(centred(rewards), rewards.mask).advantage
    return Advantages(whitened(found, rewards.mask, whiten_std) if whiten else found, found)


FILTER_MAX = 3.0  # largest weight of CPGD's clip_filter


@register("advantage", "cpgd", groups=True)
def cpgd(
    rewards: Rewards,
    *,
    weighting: Literal["std", "clip_filter", "equal"] = "std",
) -> Tensor:
    """CPGD: reward minus the mean of the group, with prompts weighed against each other (arXiv:2505.12504).

    Args:
        rewards: of the samples of an update.
        weighting: How prompts weigh against each other: over the std of their rewards; by the share of prompts whose
            rewards differ, so that the others don't thin them out, 3 at most; or alike.
    """
    from burnish.rl.advantages import group_advantages, group_statistics

    reward, group, missing = rewards.reward, rewards.group, rewards.missing
    if weighting == "std":
        return group_advantages(reward, group, missing, scale="group", eps=1e-6, unbiased=False)
    if weighting == "equal":
        return centred(rewards)
    groups = group_statistics(reward, group, missing)
    known, differ = int((groups.count > 0).sum()), int((~groups.constant).sum())
    return centred(rewards) * min(known / max(differ, 1), FILTER_MAX)


@register("advantage", "optimal_baseline", groups=True)
def optimal_baseline(rewards: Rewards) -> Tensor:
    """OPO: reward minus the mean of the group in which long samples weigh more, the baseline of least variance.

    Returns:
        The best baseline is E[|grad log p|^2 r] / E[|grad log p|^2]. With gradients of tokens that are nearly
        orthogonal and of one length, the squared norm grows with the number of tokens l, and the baseline of a group
        is sum(l r) / sum(l) (Hao et al. 2025, arXiv:2505.23585).
    """
    import torch

    from burnish.rl.advantages import group_statistics

    groups = group_statistics(rewards.reward, rewards.group, rewards.missing)
    length = rewards.mask.sum(1).double()
    reward = rewards.reward.double().masked_fill(rewards.missing, 0.0)
    nothing = torch.zeros(len(groups.count), dtype=torch.float64)
    weighed = nothing.index_add(0, groups.label, length * reward)
    lengths = nothing.index_add(0, groups.label, length)
    advantage = reward - (weighed / lengths.clamp_min(1))[groups.label]
    nothing_to_learn = rewards.missing | groups.constant[groups.label]
    return advantage.masked_fill(nothing_to_learn, 0.0).float()


@register("advantage", "pass_at_k", groups=True, least="pass_k")
def pass_at_k(
    rewards: Rewards, *, pass_k: Annotated[int, Field(ge=1, le=10**6)] = 4, pass_reward: Finite = 1.0
) -> Tensor:
    """Pass@k training: what a sample does for the chance that one of k samples succeeds.

    Args:
        rewards: of the samples of an update.
        pass_k: Samples of which one has to succeed; 1 is GRPO's advantage of rewards 0 and 1. At most rollout.n.
        pass_reward: Reward from which a sample has succeeded.

    Returns:
        In closed form (Chen et al. 2025, arXiv:2508.10751, eq. 10 to 15).

        All sets of k of the N samples of a prompt are groups with the reward 1 if one of them has succeeded. With N0
        failures, the mean reward of a group is R = 1 - C(N0, k) / C(N, k), its std sqrt(R (1 - R)), and the mean
        advantage of the groups that a sample is in is

            (1 - R) / std for a success,    (1 - R - C(N0 - 1, k - 1) / C(N - 1, k - 1)) / std for a failure.

        Once nearly every group succeeds there is nothing left to gain, while k = 1 still sharpens.
    """
    from math import comb

    import torch

    from burnish.rl.advantages import group_statistics

    groups = group_statistics(rewards.reward, rewards.group, rewards.missing)
    success = (rewards.reward >= pass_reward) & ~rewards.missing
    solved = torch.zeros(len(groups.count), dtype=torch.long)
    solved = solved.index_add(0, groups.label, success.long())

    def worth(count: int, right: int) -> tuple[float, float]:
        """Of a success and of a failure in a group."""
        wrong = count - right
        if count < pass_k or not right or wrong < pass_k:  # groups of k that are all alike, or none at all
            return 0.0, 0.0
        missed = comb(wrong, pass_k) / comb(count, pass_k)
        std = (missed * (1 - missed)) ** 0.5
        return missed / std, (missed - comb(wrong - 1, pass_k - 1) / comb(count - 1, pass_k - 1)) / std

    each = torch.tensor([*map(worth, groups.count.long().tolist(), solved.tolist())]).view(-1, 2)
    won, lost = each[groups.label].unbind(1)
    return torch.where(success, won, lost).masked_fill(rewards.missing, 0.0)


@register("advantage", "greedy_baseline", greedy=True)
def greedy_baseline(rewards: Rewards) -> Advantages:
    """ReMax: reward minus that of the greedy response to the same prompt (arXiv:2310.10505)."""
    from burnish.rl.advantages import Advantages, returns
    from burnish.rl.surrogates import masked

    found = returns(rewards.actions, rewards.mask, gamma=1.0)
    return Advantages(masked(found - rewards.greedy[:, None], rewards.mask), found)


@register("advantage", "returns")
def discounted(
    rewards: Rewards,
    *,
    whiten: bool = True,
    whiten_std: WhitenStd = "unbiased",
    gamma: Fraction = 1.0,
    turn_rewards: bool = False,
) -> Advantages:
    """REINFORCE: the sum of the rewards from each action on.

    Args:
        rewards: of the samples of an update.
        gamma: Discount of rewards per token.
        whiten: Bring the returns of an update to mean 0 and std 1, over all tokens: its only baseline.
        whiten_std: Whiten by the std over n - 1; by that over n, as LightRFT does across its buffer; or by none, which
            only takes the mean off (its no_advantage_std_norm).
        turn_rewards: Each reward of the environment counts from its own turn back, not from the end of the dialogue;
            what else was earned stands at the end as ever.
    """
    from burnish.rl.advantages import Advantages, returns, whitened

    found = returns(rewards.by_turn if turn_rewards else rewards.actions, rewards.mask, gamma=gamma)
    return Advantages(whitened(found, rewards.mask, whiten_std) if whiten else found, found)


@register("advantage", "gae", critic=True)
def generalised(
    rewards: Rewards,
    *,
    whiten: bool = True,
    whiten_std: WhitenStd = "unbiased",
    gamma: Fraction = 1.0,
    lam: Fraction = 0.95,
    turn_rewards: bool = False,
) -> Advantages:
    """PPO: generalised advantage estimation with a value network.

    Args:
        rewards: of the samples of an update.
        gamma: Discount of rewards per token.
        lam: GAE: 1 takes rewards as they came, 0 the value network's word for all but the next one.
        whiten: Bring the advantages of an update to mean 0 and std 1, over all actions.
        whiten_std: Whiten by the std over n - 1; by that over n, as LightRFT does across its buffer; or by none, which
            only takes the mean off (its no_advantage_std_norm).
        turn_rewards: Each reward of the environment counts from its own turn back, not from the end of the dialogue;
            what else was earned stands at the end as ever.
    """
    from burnish.rl.advantages import Advantages, gae, whitened

    earned = rewards.by_turn if turn_rewards else rewards.actions
    found, learned = gae(earned, rewards.value, rewards.mask, gamma=gamma, lam=lam)
    return Advantages(whitened(found, rewards.mask, whiten_std) if whiten else found, learned)
