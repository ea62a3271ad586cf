"""The rules by which rewards become advantages: of a sample against the others of its prompt, or of each action.

Each takes ``Rewards`` and its options, and returns advantages [B] or [B, K], or ``Advantages`` where the returns
that are reported differ from them. The options are explained in ``burnish.algorithms.advantages``.
"""

from __future__ import annotations

from math import comb
from typing import Any, Literal

import torch
from torch import Tensor

from burnish.advantages.groups import Scale, group_advantages, group_statistics, normalise_each
from burnish.advantages.returns import gae, returns
from burnish.advantages.rewards import Advantages, Rewards
from burnish.advantages.whitening import StdKind, whitened
from burnish.losses.policy import masked


def group(
    rewards: Rewards,
    *,
    advantage_std: Scale,
    advantage_eps: float,
    advantage_unbiased: bool,
    advantage_trimmed_ratio: float,
    advantage_aggregation: Literal["sum", "each", "gdpo"],
) -> Tensor:
    """GRPO's advantage [B], of the weighted sum of rewards or of each by itself (GDPO, arXiv:2601.05242)."""
    how: Any = {
        "scale": advantage_std, "eps": advantage_eps, "unbiased": advantage_unbiased,
        "trimmed_ratio": advantage_trimmed_ratio,
    }  # fmt: skip
    if advantage_aggregation == "sum":
        return group_advantages(rewards.reward, rewards.group, rewards.missing, **how)
    whiten = advantage_aggregation == "gdpo"
    return normalise_each(
        rewards.components, rewards.applied, rewards.group, rewards.missing, whiten=whiten, **how
    )  # fmt: skip


def group_steps(rewards: Rewards, *, advantage_std: Literal["group", "none"], advantage_eps: float) -> Tensor:
    """GRPO with process rewards [B, K] (arXiv:2402.03300, 4.1.3).

    The reward of each step is compared with those of all steps of the group, and an action gets the sum over the
    steps that end with it or later. What of a reward belongs to no step is compared as a whole, and counts for all.
    """
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


def centred(rewards: Rewards) -> Tensor:
    """Reward minus the mean of its group [B] (Dr. GRPO, arXiv:2503.20783)."""
    return group_advantages(rewards.reward, rewards.group, rewards.missing, scale="none")


def leave_one_out(rewards: Rewards) -> Tensor:
    """Reward minus the mean of the others of its group [B] (RLOO, arXiv:2402.14740)."""
    groups = group_statistics(rewards.reward, rewards.group, rewards.missing)
    others = (groups.count - 1).clamp_min(1)
    return (centred(rewards).double() * (groups.count / others)[groups.label]).float()


def whitened_group(rewards: Rewards, *, whiten: bool, whiten_std: StdKind) -> Advantages:
    """Reward minus the mean of its group, whitened over all actions (REINFORCE++ baseline, arXiv:2501.03262)."""
    found = Advantages.of(centred(rewards), rewards.mask).advantage
    return Advantages(whitened(found, rewards.mask, whiten_std) if whiten else found, found)


def cpgd(rewards: Rewards, *, weighting: Literal["std", "clip_filter", "equal"], weighting_clip: float) -> Tensor:
    """CPGD's three weightings of the reward minus the mean of its group [B] (arXiv:2505.12504).

    ``std`` divides by the group's biased std; ``clip_filter`` multiplies by the number of groups over the number of
    those whose rewards differ, ``weighting_clip`` at most, so that groups without signal don't thin out the others;
    ``equal`` does neither.
    """
    reward, group, missing = rewards.reward, rewards.group, rewards.missing
    if weighting == "std":
        return group_advantages(reward, group, missing, scale="group", eps=1e-6, unbiased=False)
    if weighting == "equal":
        return centred(rewards)
    groups = group_statistics(reward, group, missing)
    known, differ = int((groups.count > 0).sum()), int((~groups.constant).sum())
    return centred(rewards) * min(known / max(differ, 1), weighting_clip)


def optimal_baseline(rewards: Rewards) -> Tensor:
    """OPO's advantage [B]: reward minus the baseline of least variance (Hao et al. 2025, arXiv:2505.23585).

    The best baseline is E[|grad log p|^2 r] / E[|grad log p|^2]. With gradients of tokens that are nearly orthogonal
    and of one length, the squared norm grows with the number of tokens l, and the baseline of a group is
    sum(l r) / sum(l).
    """
    groups = group_statistics(rewards.reward, rewards.group, rewards.missing)
    length = rewards.mask.sum(1).double().masked_fill(rewards.missing, 0.0)
    reward = rewards.reward.double().masked_fill(rewards.missing, 0.0)
    nothing = torch.zeros(len(groups.count), dtype=torch.float64)
    weighed = nothing.index_add(0, groups.label, length * reward)
    lengths = nothing.index_add(0, groups.label, length)
    advantage = reward - (weighed / lengths.clamp_min(1))[groups.label]
    nothing_to_learn = rewards.missing | groups.constant[groups.label]
    return advantage.masked_fill(nothing_to_learn, 0.0).float()


def pass_at_k(rewards: Rewards, *, pass_k: int, pass_reward: float) -> Tensor:
    """Pass@k training's advantage [B] in closed form (Chen et al. 2025, arXiv:2508.10751, eq. 10 to 15).

    All sets of k of the N samples of a prompt are groups with the reward 1 if one of them has succeeded. With N0
    failures, the mean reward of a group is R = 1 - C(N0, k) / C(N, k), its std sqrt(R (1 - R)), and the mean advantage
    of the groups that a sample is in is

        (1 - R) / std for a success,    (1 - R - C(N0 - 1, k - 1) / C(N - 1, k - 1)) / std for a failure.

    Once nearly every group succeeds there is nothing left to gain, while k = 1 still sharpens.
    """
    groups = group_statistics(rewards.reward, rewards.group, rewards.missing)
    success = (rewards.reward >= pass_reward) & ~rewards.missing
    solved = torch.zeros(len(groups.count), dtype=torch.long)
    solved = solved.index_add(0, groups.label, success.long())
    won: list[float] = []
    lost: list[float] = []
    for count, right in zip(groups.count.long().tolist(), solved.tolist(), strict=True):
        wrong = count - right
        if count < pass_k or not right or wrong < pass_k:  # groups of k that are all alike, or none at all
            won.append(0.0)
            lost.append(0.0)
            continue
        missed = comb(wrong, pass_k) / comb(count, pass_k)
        std = (missed * (1 - missed)) ** 0.5
        won.append(missed / std)
        lost.append((missed - comb(wrong - 1, pass_k - 1) / comb(count - 1, pass_k - 1)) / std)
    right_or_wrong = torch.where(success, torch.tensor(won)[groups.label], torch.tensor(lost)[groups.label])
    return right_or_wrong.masked_fill(rewards.missing, 0.0)


def greedy_baseline(rewards: Rewards) -> Advantages:
    """Reward minus that of the greedy response to the same prompt (ReMax, arXiv:2310.10505)."""
    found = returns(rewards.actions, rewards.mask, gamma=1.0)
    return Advantages(masked(found - rewards.greedy[:, None], rewards.mask), found)


def discounted(rewards: Rewards, *, gamma: float, whiten: bool, whiten_std: StdKind, turn_rewards: bool) -> Advantages:
    """Discounted sums of the rewards from each action on (REINFORCE), whitened over all actions."""
    found = returns(rewards.by_turn if turn_rewards else rewards.actions, rewards.mask, gamma=gamma)
    return Advantages(whitened(found, rewards.mask, whiten_std) if whiten else found, found)


def generalised(
    rewards: Rewards, *, gamma: float, lam: float, whiten: bool, whiten_std: StdKind, turn_rewards: bool
) -> Advantages:
    """Generalised advantage estimation, whitened over all actions (PPO)."""
    earned = rewards.by_turn if turn_rewards else rewards.actions
    found, learned = gae(earned, rewards.value, rewards.mask, gamma=gamma, lam=lam)
    return Advantages(whitened(found, rewards.mask, whiten_std) if whiten else found, learned)
