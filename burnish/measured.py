"""Metrics that alarms look at: errors of means, what rules the reward, groups without signal, what responses are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.metrics import score_columns
from burnish.rl.advantages import deviations, group_statistics
from burnish.types.response_stats import REPORTED, ResponseStats
from burnish.types.rollout import Collected, Rollouts, ScoredResponses, Scores

CLOSE = 1e-5  # relative to the rewards: a sum that differs by less is their sum


def measured(batch: Collected) -> dict[str, float]:
    """Of a batch before it is learned from; an offline batch has nothing to watch."""
    if not isinstance(batch, Rollouts) or not len(batch):
        return {}
    scores, group = batch.scores, batch.group.cpu()
    found = without_signal(scores, group)
    columns = list(score_columns(scores))
    several = sum(counts for _, _, counts in columns) > 1
    for name, value, counts in columns:
        value = value.cpu()
        if not counts or several:
            found |= error_and_std(f"critic/{name}", value, group, std=counts)
    found |= shares(scores, group) if several else {}
    if isinstance(batch, ScoredResponses):
        found |= of_responses(batch.stats, scores, group)
    return found


def error_and_std(name: str, value: Tensor, group: Tensor, *, std: bool) -> dict[str, float]:
    """``NAME/error``, the standard error of a mean over prompts, and the std of samples; NaN in [B] is missing."""
    absent = value.isnan()
    if absent.all():
        return {}
    means = group_statistics(value.nan_to_num(0.0), group, absent)
    known = means.mean[means.count > 0]
    found = {f"{name}/std": float(value[~absent].std(correction=0))} if std else {}
    if len(known) > 1:
        found[f"{name}/error"] = float(known.std() / math.sqrt(len(known)))
    return found


def without_signal(scores: Scores, group: Tensor) -> dict[str, float]:
    """Fractions of the prompts all of whose samples have the highest reward of the batch, or all the same below it."""
    missing = scores.missing.cpu()
    groups = group_statistics(scores.reward.cpu(), group, missing)
    several = groups.count > 1
    if not several.any():
        return {}
    alike = groups.constant[several]
    top = groups.mean[several] >= float(scores.reward.cpu().double()[~missing].max()) - 1e-12
    return {
        "critic/rewards/solved_ratio": float((alike & top).double().mean()),
        "critic/rewards/dead_ratio": float((alike & ~top).double().mean()),
    }


def shares(scores: Scores, group: Tensor) -> dict[str, float]:
    """``critic/NAME/reward_share`` of each component that counts: the part of the differences among samples of a prompt
    that it makes. Their sum is 1; one whose differences others outweigh is below 0.

    Nothing where the reward is no weighted sum of components.
    """
    parts = (scores.applied * scores.counted).masked_fill(scores.applied == 0, 0.0).double().cpu()
    counts = (scores.applied != 0).any(0).cpu()
    absent = scores.missing.cpu() | parts[:, counts].isnan().any(1)
    reward = scores.reward.double().cpu()
    if absent.all() or not torch.allclose(parts[:, counts].sum(1)[~absent], reward[~absent], rtol=CLOSE, atol=CLOSE):
        return {}
    total = deviations(reward, group, absent)
    power = float(total @ total)
    if power == 0:
        return {}
    found = {}
    for name, part, counted in zip(scores.names, parts.unbind(1), counts.tolist(), strict=True):
        if counted:
            found[f"critic/{name}/reward_share"] = float(deviations(part, group, absent) @ total) / power
    return found


def of_responses(stats: Sequence[ResponseStats], scores: Scores, group: Tensor) -> dict[str, float]:
    """``response/NAME/...`` of statistics of responses: mean, std, error, correlation with the reward of a prompt."""
    found: dict[str, float] = {}
    missing = scores.missing.cpu()
    reward = scores.reward.double().cpu()
    for name in REPORTED:
        value = torch.tensor([float(getattr(one, name)) for one in stats], dtype=torch.float64)
        absent = value.isnan()
        if absent.all():
            continue
        found[f"response/{name}/mean"] = float(value[~absent].mean())
        found |= error_and_std(f"response/{name}", value, group, std=True)
        absent |= missing
        own = deviations(value, group, absent)
        paid = deviations(reward, group, absent)
        size = float(own.norm() * paid.norm())
        if size > 0:
            found[f"response/{name}/reward_correlation"] = float(own @ paid) / size
        if name == "length":
            for side, rows in (("better", paid > 0), ("worse", paid < 0)):
                if rows.any():
                    found[f"response/length/{side}"] = float(value[rows].mean())
    return found
