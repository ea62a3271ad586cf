"""What sampler and trainer disagree about, put right: importance weights, and leaving out what is too far off.

All functions work on log-ratios [B, K], log-prob under the policy that learns minus log-prob under the one that
sampled, over the K denoising steps or tokens of a sample, of which ``mask`` says which count.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from burnish.losses.policy import LOG_RATIO_MAX, ratio_of
from burnish.options import Rule

Level = Literal["step", "sample"]


def importance_weights(
    log_ratio: Tensor,
    mask: Tensor,
    *,
    level: Level,
    upper: float,
    lower: float | None = None,
    batch_normalise: bool = False,
) -> Tensor:
    """Bounded importance weights, which multiply the terms of a loss.

    Args:
        log_ratio: [B, K].
        mask: [B, K] bool.
        level: the ratio of each step (verl's ``token``), or their product for the whole sample (its ``sequence``).
        upper: larger weights become this one (truncated importance sampling).
        lower: if given, weights outside [lower, upper] become 0 instead (IcePop).
        batch_normalise: divide by the mean weight, over steps or over samples according to ``level``.

    Returns:
        [B, K] without gradient, 0 outside the mask.

    Raises:
        ValueError: the bounds are not positive and rising.
    """
    check_bounds(lower, upper)
    raw = raw_weights(log_ratio, mask, level)
    if lower is None:
        weights = raw.clamp(max=upper)
    else:
        weights = torch.where((raw >= lower) & (raw <= upper), raw, torch.zeros_like(raw))
    return weights / mean_weight(weights, mask, level) if batch_normalise else weights


def rejection_mask(log_ratio: Tensor, mask: Tensor, *, rule: Rule, upper: float, lower: float | None = None) -> Tensor:
    """Which steps stay after a trust region on a KL estimate; the others leave the loss and its denominator.

    Of a step's ratio r, k1 is -log r, k2 is (log r)^2 / 2 and k3 is r - 1 - log r. A ``token`` rule judges each step,
    a ``seq`` rule the whole sample by their sum, mean or largest.

    Args:
        log_ratio: [B, K].
        mask: [B, K] bool.
        rule: statistic and how it is taken together.
        upper: k1 may be at most log(upper); k2 and k3 at most ``upper`` itself.
        lower: k1 must be at least log(lower); None means 1 / upper. The others have no lower bound.

    Returns:
        [B, K] bool, the mask without what was rejected.

    Raises:
        ValueError: the bounds are not positive and rising, or a rule is given one that it never reads.
    """
    low, high = rejection_bounds(rule, upper, lower)
    statistic = rejection_statistic(log_ratio, mask, rule)
    return mask & (statistic >= low) & (statistic <= high)


def raw_weights(log_ratio: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Importance weights [B, K] before any bound; 0 outside the mask, without gradient."""
    known = masked(log_ratio.detach(), mask)
    ratio = ratio_of(known if level == "step" else known.sum(1, keepdim=True).expand_as(known))
    return masked(ratio, mask)


def mean_weight(weights: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Mean over steps, or over samples that have any; 1 where it would be 0."""
    rows = mask.any(1)
    mean = masked_mean(weights, mask) if level == "step" else masked_mean(row_mean(weights, mask), rows)
    return torch.where(mean > 1e-8, mean, torch.ones_like(mean))


def rejection_bounds(rule: Rule, upper: float, lower: float | None) -> tuple[float, float]:
    """Smallest and largest allowed value of a rule's statistic."""
    check_bounds(lower, upper)
    if rule.endswith("k1"):
        return math.log(1 / upper if lower is None else lower), math.log(upper)
    if lower is not None:
        raise ValueError(f"lower is {lower}, but {rule} is never negative and has only an upper bound; leave it out")
    return -math.inf, upper


def rejection_statistic(log_ratio: Tensor, mask: Tensor, rule: Rule) -> Tensor:
    """A rule's statistic [B, K] at every step that counts; equal along a sample for a ``seq`` rule."""
    known = masked(log_ratio.detach(), mask).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    how, _, estimator = rule.rpartition("_")
    value = {"k1": -known, "k2": 0.5 * known.square(), "k3": known.exp() - 1 - known}[estimator]
    if how == "token":
        return value
    if how == "seq_sum":
        row = value.sum(1)
    elif how == "seq_mean":
        row = row_mean(value, mask)
    else:  # k2 and k3 are nowhere negative, so steps that don't count, being 0, are never the largest
        row = value.amax(1)
    return row[:, None].expand_as(value)


def check_bounds(lower: float | None, upper: float) -> None:
    """Refuse bounds that no weight can lie between."""
    if upper <= 0:
        raise ValueError(f"upper is {upper}; it bounds a positive quantity from above, so it must be > 0")
    if lower is not None and not 0 < lower <= upper:
        raise ValueError(f"lower is {lower} and upper is {upper}; it must be 0 < lower <= upper")


def masked(value: Tensor, mask: Tensor) -> Tensor:
    """The value where the mask is true, else 0, whatever stands there."""
    return torch.where(mask, value, torch.zeros_like(value))


def masked_mean(value: Tensor, mask: Tensor) -> Tensor:
    """Mean over what counts; 0 if nothing does."""
    return masked(value, mask).sum() / mask.sum().clamp_min(1)


def row_mean(value: Tensor, mask: Tensor) -> Tensor:
    """Mean along each sample [B]; 0 for one without anything that counts."""
    return masked(value, mask).sum(1) / mask.sum(1).clamp_min(1)
