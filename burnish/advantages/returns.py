"""Rewards per token to advantages and returns per token.

Only tokens that the policy chose are steps: between turns, what the environment wrote takes no time and has no
value, so a response in several turns discounts as if its parts stood next to each other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.losses.policy import masked


@torch.no_grad()
def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16); the value after the last token is 0.

    Args:
        rewards, values: [B, T]; what stands at tokens that were not chosen is not read.
        mask: [B, T] bool.
        gamma: discount per token.
        lam: 1 takes rewards as they came, 0 the critic's word for all but the next one.

    Returns:
        Advantages, and returns (advantage + value: what the critic learns), both [B, T], 0 where masked.
    """
    rewards, values = masked(rewards, mask), masked(values, mask)
    advantage = torch.zeros_like(rewards)
    following = running = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        surprise = rewards[:, t] + gamma * following - values[:, t]
        running = torch.where(mask[:, t], surprise + gamma * lam * running, running)
        following = torch.where(mask[:, t], values[:, t], following)
        advantage[:, t] = running
    return masked(advantage, mask), masked(advantage + values, mask)


def returns(rewards: Tensor, mask: Tensor, *, gamma: float) -> Tensor:
    """Discounted sums of the rewards from each token on (REINFORCE): GAE without a critic.

    Args:
        rewards: [B, T].
        mask: [B, T] bool.
        gamma: discount per token.

    Returns:
        [B, T], 0 where masked.
    """
    return gae(rewards, torch.zeros_like(rewards), mask, gamma=gamma, lam=1.0)[0]
