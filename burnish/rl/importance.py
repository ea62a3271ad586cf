"""Importance weights between the policy that sampled and the one that learns, and metrics of how far they are apart."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from burnish.options import Rule
from burnish.rl.surrogates import LOG_RATIO_MAX, masked, ratio_of
from burnish.rl.surrogates import sequence_mean as row_mean

Level = Literal["step", "sample"]


def importance_weights(
    log_ratio: Tensor,
    mask: Tensor,
    *,
    level: Level,
    upper: float,
    lower: float | None = None,
    batch_normalise: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    """Bounded importance weights, which multiply the terms of a loss, and how many the bounds changed.

    Args:
        log_ratio: [B, K].
        mask: [B, K] bool.
        level: the ratio of each step (verl's ``token``), or their product for the whole sample (its ``sequence``).
        upper: larger weights become this one (truncated importance sampling).
        lower: if given, weights outside [lower, upper] become 0 instead (IcePop).
        batch_normalise: divide by the mean weight, over steps or over samples according to ``level``.

    Returns:
        Weights [B, K] without gradient, 0 outside the mask. Metrics: the fractions beyond the bounds, whose lower one
        is 1 / upper if none is given, and at level ``sample`` the smallest and the largest, are those of the unbounded
        weights; all else is of those that are applied, before they are divided by their mean.
    """
    rows = mask.any(1)
    known = masked(log_ratio.detach(), mask)
    raw = masked(ratio_of(known if level == "step" else known.sum(1, keepdim=True).expand_as(known)), mask)
    if lower is None:
        weights = raw.clamp(max=upper)
    else:
        weights = torch.where((raw >= lower) & (raw <= upper), raw, torch.zeros_like(raw))
    low = 1 / upper if lower is None else lower
    by_sample, raw_by_sample = row_mean(weights, mask)[rows], row_mean(raw, mask)[rows]
    judged = raw[mask] if level == "step" else raw_by_sample
    extremes = weights[mask] if level == "step" else raw_by_sample
    mean, square = masked_mean(weights, mask), masked_mean(weights.square(), mask)
    found: dict[str, Tensor] = {
        "rollout_is_mean": mean,
        "rollout_is_max": extremes.max(),
        "rollout_is_min": extremes.min(),
        "rollout_is_ratio_fraction_high": _share(judged > upper),
        "rollout_is_ratio_fraction_low": _share(judged < low),
        "rollout_is_std": (square - mean.square()).clamp_min(0).sqrt(),
        "rollout_is_eff_sample_size": torch.where(square > 0, mean.square() / square, torch.zeros_like(mean)),
        "rollout_is_seq_mean": by_sample.mean(),
        "rollout_is_seq_std": _std(by_sample),
        "rollout_is_seq_max": by_sample.max(),
        "rollout_is_seq_min": by_sample.min(),
        "rollout_is_seq_max_deviation": (by_sample - 1).abs().max(),
        "rollout_is_seq_fraction_high": _share(raw_by_sample > upper),
        "rollout_is_seq_fraction_low": _share(raw_by_sample < low),
    }
    if lower is not None:
        found["rollout_is_oob_ratio"] = _share((raw[mask] < lower) | (raw[mask] > upper))
    if batch_normalise:
        factor = mean if level == "step" else by_sample.mean()
        factor = torch.where(factor > 1e-8, factor, torch.ones_like(factor))
        found["rollout_is_batch_norm_factor"] = factor
        weights = weights / factor
    return weights, _named(found)


def rejection(
    log_ratio: Tensor, mask: Tensor, *, rule: Rule, upper: float, lower: float | None = None
) -> tuple[Tensor, dict[str, float]]:
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
        [B, K] bool, the mask without what was rejected; what the rule measures and how much it rejects.
    """
    low, high = -math.inf, upper
    if rule.endswith("k1"):
        low, high = math.log(1 / upper if lower is None else lower), math.log(upper)
    statistic = rejection_statistic(log_ratio, mask, rule)
    kept = mask & (statistic >= low) & (statistic <= high)
    by_step, by_sample = statistic[mask], row_mean(statistic, mask)[mask.any(1)]
    judged = by_step if rule.startswith("token") else by_sample
    bounded = by_step.clamp(0.0 if math.isinf(low) else low, high)
    name = f"rollout_rs_{rule}"
    found: dict[str, Tensor] = {
        f"{name}_mean": by_step.mean(),
        f"{name}_max": by_step.max(),
        f"{name}_min": by_step.min(),
        f"{name}_fraction_high": _share(judged > high),
        f"{name}_fraction_low": _share(judged < low),
        f"{name}_std": (bounded.square().mean() - bounded.mean().square()).clamp_min(0).sqrt(),
        f"{name}_seq_mean": by_sample.mean(),
        f"{name}_seq_std": _std(by_sample),
        f"{name}_seq_max": by_sample.max(),
        f"{name}_seq_min": by_sample.min(),
        f"{name}_seq_max_deviation": by_sample.abs().max(),
        f"{name}_seq_fraction_high": _share(by_sample > high),
    }
    if rule.endswith("k1"):
        found[f"{name}_seq_fraction_low"] = _share(by_sample < low)
    return kept, _named(found) | rejected_fractions(kept, mask, name)


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


def masked_mean(value: Tensor, mask: Tensor) -> Tensor:
    """Mean over what counts; 0 if nothing does."""
    return masked(value, mask).sum() / mask.sum().clamp_min(1)


PREFIX = "rollout_corr/"


def correction_metrics(
    logprob: Tensor, sampled: Tensor, mask: Tensor, *, time: Tensor | None = None, scale: Tensor | None = None
) -> dict[str, float]:
    """How far the policy that learns is from the one that sampled, by several measures.

    Args:
        logprob: [B, K] under the policy that learns, before its first step.
        sampled: [B, K] under the one that sampled.
        mask: [B, K] bool.
        time: [B, K] t in [0, 1]; if given, the absolute difference is reported by timestep (1000 t) as well.
        scale: [B, K] nats of a step per unit of its log-prob, where that is a mean over elements.

    Returns:
        ``kl`` (k1), ``k3_kl``, ``chi2_token`` and ``chi2_seq``, in nats of whole steps; perplexities of both and how
        they differ, ``logprob_abs_diff_mean`` and ``_max``, in the units of the log-probs; each under
        ``rollout_corr/``.
    """
    rows = mask.any(1)
    if not rows.any():
        return {}
    log_ratio = masked(logprob.detach() - sampled, mask)
    ours, theirs = (-row_mean(value.detach(), mask)[rows] for value in (logprob, sampled))
    difference, absolute = ours - theirs, log_ratio.abs()
    nats = log_ratio if scale is None else masked(log_ratio * scale, mask)
    bounded = nats.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    by_sample = nats.sum(1)[rows].clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    found: dict[str, Tensor] = {
        "training_ppl": ours.exp().mean(),
        "training_log_ppl": ours.mean(),
        "kl": masked_mean(-nats, mask),
        "k3_kl": masked_mean(bounded.exp() - nats - 1, mask),
        "rollout_ppl": theirs.exp().mean(),
        "rollout_log_ppl": theirs.mean(),
        "log_ppl_diff": difference.mean(),
        "log_ppl_abs_diff": difference.abs().mean(),
        "log_ppl_diff_max": difference.max(),
        "log_ppl_diff_min": difference.min(),
        "ppl_ratio": difference.exp().mean(),
        "chi2_token": masked_mean((2 * bounded).exp(), mask) - 1,
        "chi2_seq": (2 * by_sample).exp().mean() - 1,
        "logprob_abs_diff_mean": masked_mean(absolute, mask),
        "logprob_abs_diff_max": absolute.max(),
    }
    if time is not None:
        timestep = (1000 * time).round().long()
        for level in timestep[mask].unique().tolist():
            found[f"logprob_abs_diff/ts_{level}"] = masked_mean(absolute, mask & (timestep == level))
    return _named(found)


def joint_metrics(log_ratio: Tensor, mask: Tensor, *, level: Level, applied: Tensor) -> dict[str, float]:
    """How many samples the unbounded weights of whole denoising steps are worth.

    In thousands of dimensions bounds hide it: truncated weights look healthy however little two policies share.

    Args:
        log_ratio: [B, K] in nats.
        mask: [B, K] bool.
        level: of each step, or of the whole sample.
        applied: [B, K] weights after their bounds.

    Returns:
        The effective sample size, (mean w)^2 / mean w^2, as a share: ``rollout_is_eff_sample_size`` of the unbounded
        weights, ``rollout_is_applied_eff_sample_size`` of those that are applied.
    """
    known = masked(log_ratio.detach(), mask).double()
    logs = known[mask] if level == "step" else known.sum(1)[mask.any(1)]
    return _named(
        {
            "rollout_is_eff_sample_size": _effective_share((logs - logs.max()).exp()),
            "rollout_is_applied_eff_sample_size": _effective_share(applied[mask].double()),
        }
    )


def rejected_fractions(kept: Tensor, mask: Tensor, name: str = "rollout_rs") -> dict[str, float]:
    """What was rejected: the share of steps, and of samples that lost any.

    Args:
        kept: [B, K] bool, the product of the rules' masks.
        mask: [B, K] bool, what counted before.
        name: of one rule; by default of all together.
    """
    lost = mask & ~kept
    fractions = {"masked_fraction": lost[mask], "seq_masked_fraction": lost.any(1)[mask.any(1)]}
    return _named({f"{name}_{part}": _share(rejected) for part, rejected in fractions.items()})


def _named(found: dict[str, Tensor]) -> dict[str, float]:
    return {PREFIX + name: float(value) for name, value in found.items()}


def _effective_share(weights: Tensor) -> Tensor:
    square = weights.square().mean()
    return torch.where(square > 0, weights.mean().square() / square, torch.zeros_like(square))


def _share(yes: Tensor) -> Tensor:
    return yes.float().mean()


def _std(value: Tensor) -> Tensor:
    return value.std() if len(value) > 1 else value.new_zeros(())
