"""Advantages of responses against others to the same prompt. A missing reward gives and gets nothing."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from burnish.advantages import group_advantages, group_statistics

Kind = Literal["grpo", "dr_grpo", "rloo", "reinforce_baseline"]


def group_advantage(
    reward: Tensor, group: Tensor, missing: Tensor, kind: Kind, *, eps: float = 1e-6, unbiased: bool = True
) -> Tensor:
    """Reward against the rewards of its group; exactly 0 in a group of one, of equal rewards, and where missing.

    Args:
        reward: [B].
        group: [B] long ids.
        missing: [B] bool.
        kind: ``grpo``: minus the mean, over the std (DeepSeekMath, sec. 4.1). ``dr_grpo`` and
            ``reinforce_baseline``: minus the mean; the one feeds it to the loss as it is, the other whitens it over
            the batch. ``rloo``: minus the mean of the others (Ahmadian et al. 2024).
        eps, unbiased: of grpo's std, as verl and TRL take them.

    Returns:
        [B] float32.
    """
    if kind == "grpo":
        return group_advantages(reward, group, missing, scale="group", eps=eps, unbiased=unbiased)
    centred = group_advantages(reward, group, missing, scale="none")
    if kind != "rloo":
        return centred
    groups = group_statistics(reward, group, missing)
    others = (groups.count - 1).clamp_min(1)
    return (centred.double() * (groups.count / others)[groups.label]).float()


def remax_advantage(reward: Tensor, greedy: Tensor, missing: Tensor) -> Tensor:
    """Reward minus that of the greedy response to the same prompt (ReMax; Li et al. 2024).

    Args:
        reward: [B].
        greedy: [B] reward of the prompt's greedy response.
        missing: [B] bool, where either is missing.

    Returns:
        [B] float32, 0 where missing.
    """
    return torch.where(missing, 0.0, reward.double() - greedy.double()).float()


def cpgd_advantages(
    reward: Tensor,
    group: Tensor,
    missing: Tensor,
    weight: Literal["std", "clip_filter", "equal"] = "std",
    *,
    clip: float = 3.0,
    eps: float = 1e-6,
) -> Tensor:
    """CPGD's three weightings of the reward minus the mean of its group (arXiv 2505.12504).

    Args:
        reward: [B].
        group: [B] long ids; a group is whole here, whatever micro-batches it will be cut into.
        missing: [B] bool.
        weight: ``std`` divides by the group's biased std; ``clip_filter`` multiplies by the number of groups over
            the number of those whose rewards differ, so that groups without signal don't thin out the others;
            ``equal`` does neither.
        clip: at most so much of ``clip_filter``.
        eps: added to the std.

    Returns:
        [B] float32.
    """
    if weight == "std":
        return group_advantages(reward, group, missing, scale="group", eps=eps, unbiased=False)
    centred = group_advantages(reward, group, missing, scale="none")
    if weight == "equal":
        return centred
    groups = group_statistics(reward, group, missing)
    known, differ = int((groups.count > 0).sum()), int((~groups.constant).sum())
    return centred * min(known / max(differ, 1), clip)


def dynamic_sampling(reward: Tensor, group: Tensor, missing: Tensor) -> Tensor:
    """DAPO's filter (arXiv 2503.14476): which samples are in a group that says something, one whose rewards differ.

    Equality is that of the numbers, whatever they are: all wrong, all right, or all with the same partial reward.

    Args:
        reward: [B].
        group: [B] long ids.
        missing: [B] bool.

    Returns:
        [B] bool.
    """
    groups = group_statistics(reward, group, missing)
    return ~groups.constant[groups.label]
