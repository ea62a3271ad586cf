"""Rewards to training signals: pure functions of tensors. Only here does anything look across samples."""

from burnish.advantages.groups import (
    Groups,
    Scale,
    depthwise_advantages,
    group_advantages,
    group_statistics,
    normalise_each,
    optimality,
)
from burnish.advantages.responses import cpgd_advantages, dynamic_sampling, group_advantage, remax_advantage
from burnish.advantages.returns import gae, returns
from burnish.advantages.selection import best_against_worst, pairs, select_best, select_best_worst
from burnish.advantages.shaping import clip_values, overlong_penalty, place_reward, place_step_rewards, shape_rewards
from burnish.advantages.turns import turn_numbers
from burnish.advantages.whitening import Moments, RunningMoments, moments, whiten

__all__ = [
    "Groups",
    "Moments",
    "RunningMoments",
    "Scale",
    "best_against_worst",
    "clip_values",
    "cpgd_advantages",
    "depthwise_advantages",
    "dynamic_sampling",
    "gae",
    "group_advantage",
    "group_advantages",
    "group_statistics",
    "moments",
    "normalise_each",
    "optimality",
    "overlong_penalty",
    "pairs",
    "place_reward",
    "place_step_rewards",
    "remax_advantage",
    "returns",
    "select_best",
    "select_best_worst",
    "shape_rewards",
    "turn_numbers",
    "whiten",
]
