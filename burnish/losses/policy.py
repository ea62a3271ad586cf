"""Losses on the log-probs of actions [B, K]: tokens for a language model, denoising steps for diffusion.

B samples have K actions each, of which ``mask`` says which count. A loss has one value per action, 0 where masked;
``weights`` and ``terms`` say how they are summed, and the trainer divides once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LOG_RATIO_MAX = 20.0  # exp(20) is beyond any clip range, and exp(100) is infinite
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


@dataclass(frozen=True)
class Surrogate:
    """What a surrogate objective makes of log-probs; all [B, K], and 0 where masked."""

    loss: Tensor  # to be minimised
    ratio: Tensor | None  # policy / old policy of each action, without gradient; None if the loss compares nothing
    metrics: dict[str, Tensor]  # reported as means over actions


def extremes_of(ratio: Tensor | None, difference: Tensor | None, mask: Tensor | None = None) -> dict[str, Tensor]:
    """The largest and the smallest probability ratio, and the largest difference to the sampler's log-probs.

    Args:
        ratio: of the terms of a micro-batch; None where nothing is compared.
        difference: absolute; None where the sampler is another policy.
        mask: of those that count; None counts all.
    """
    found: dict[str, Tensor] = {}
    wanted = {"actor/ratio_max": ratio, "actor/ratio_min": ratio, "rollout_corr/logprob_abs_diff_max": difference}
    for name, values in wanted.items():
        sign = -1 if name.endswith("_min") else 1
        if values is not None and values.numel():
            signed = sign * values.detach()
            found[name] = sign * (signed if mask is None else signed.masked_fill(~mask, -torch.inf)).max()
    return found


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """The values where ``mask``, exactly 0 elsewhere, in float32 at least.

    Selected, not multiplied: what stands in padding may be infinite or NaN, and gets no gradient.
    """
    return torch.where(mask, values.to(torch.promote_types(values.dtype, torch.float32)), 0.0)


def log_ratio(logprob: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    """log(policy / other) of each action [B, K], within +-20, 0 where masked."""
    return (masked(logprob, mask) - masked(other, mask)).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)


def ratio_of(difference: Tensor) -> Tensor:
    """exp of log-ratios that never overflows."""
    return difference.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean [B] over the actions of each sample that count; 0 for a sample without any."""
    return masked(values, mask).sum(-1) / mask.sum(-1).clamp_min(1)


def ppo_clip(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip: float,
    clip_high: float | None = None,
    dual_clip: float | None = None,
) -> Surrogate:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7), with DAPO's two clip ranges and dual clipping.

    Args:
        logprob, old, advantage: [B, K] under the policy, under the one that acted, and the advantage.
        mask: [B, K] bool.
        clip, clip_high: the ratio counts within [1 - clip, 1 + clip_high]; clip_high None is clip.
        dual_clip: above 1; an action of negative advantage costs at most this many times it (Ye et al. 2020).

    Returns:
        The loss, with ``actor/pg_clipfrac`` (actions whose clipping acts, as verl counts), its part
        ``actor/pg_clipfrac_lower`` where dual clipping acts, and ``actor/ppo_kl`` (old - new log-prob).
    """
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip is {dual_clip}; it bounds a ratio that starts at 1, so it must be above 1")
    difference, advantage = log_ratio(logprob, old, mask), masked(advantage, mask)
    loss, ratio = clipped_loss(difference, advantage, clip, clip_high)
    clipped, bounded = loss > -advantage * ratio, torch.zeros_like(mask)
    if dual_clip is not None:
        bounded = (advantage < 0) & (loss > -advantage * dual_clip)
        loss = torch.where(bounded, -advantage * dual_clip, loss)
    found = reported(loss, difference, clipped, mask)
    found.metrics["actor/pg_clipfrac_lower"] = bounded.float()
    return found


def flow_clip(
    logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, *, clip: float, clip_high: float | None = None
) -> Surrogate:
    """The same as Flow-GRPO and DanceGRPO report it (Liu et al. 2025, arXiv:2505.05470, eq. 5).

    Returns:
        The loss, with ``actor/pg_clipfrac`` (ratio outside the range, whether clipping acts or not) and its parts
        ``_higher`` and ``_lower``, and ``actor/ppo_kl``.
    """
    loss, ratio = clipped_loss(log_ratio(logprob, old, mask), masked(advantage, mask), clip, clip_high)
    ratio = ratio.detach()
    high = clip if clip_high is None else clip_high
    higher, lower = (mask & (ratio > 1 + high)).float(), (mask & (ratio < 1 - clip)).float()
    metrics = {
        "actor/pg_clipfrac": higher + lower,
        "actor/pg_clipfrac_higher": higher,
        "actor/pg_clipfrac_lower": lower,
        "actor/ppo_kl": masked((old - logprob).detach(), mask),
    }
    return Surrogate(masked(loss, mask), masked(ratio, mask), metrics)


def clipped_loss(difference: Tensor, advantage: Tensor, clip: float, clip_high: float | None) -> tuple[Tensor, Tensor]:
    """PPO's loss of log-ratios, and their ratios, of one shape."""
    ratio = difference.exp()
    clipped = ratio.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high))
    return torch.maximum(-advantage * ratio, -advantage * clipped), ratio


def reported(loss: Tensor, difference: Tensor, clipped: Tensor, mask: Tensor) -> Surrogate:
    """A loss [B, K] with what every surrogate over log-ratios ``difference`` reports."""
    difference = difference.detach()
    metrics = {"actor/ppo_kl": -difference, "actor/pg_clipfrac": (clipped & mask).float()}
    return Surrogate(masked(loss, mask), masked(difference.exp(), mask), metrics)


def weights(mask: Tensor, mode: Aggregation, constant: float | None = None) -> Tensor:
    """What the loss of each action is multiplied by before everything is summed, by verl's names.

    Args:
        mask: [B, K] bool, actions that count. For a loss over selected ones that is still divided by all of them
            (high-entropy selection) give all, with a loss that is 0 where not selected.
        mode: ``token-mean``: every action of the batch alike (DAPO). ``seq-mean-token-mean``: every sample alike, its
            actions averaged (GRPO, DeepSeekMath eq. 3). ``seq-mean-token-sum``: sums of actions, averaged over
            samples. ``seq-mean-token-sum-norm``: the same over a constant length (Dr.GRPO). As in today's verl it is
            a mean over samples; verl's first versions left their sum, a batch size times as large.
        constant: that length, usually the largest response; needed by that mode and by no other.

    Returns:
        [B, K] float32, 0 where masked.
    """
    if (mode == "seq-mean-token-sum-norm") != (constant is not None):
        raise ValueError(
            f"constant is {constant} with {mode}: seq-mean-token-sum-norm divides by it and no other mode does; "
            "give the largest response length with that mode only"
        )
    if constant is not None and not constant > 0:
        raise ValueError(f"constant is {constant}; token sums are divided by it, so it must be above 0")
    weight = mask.float()
    if mode == "seq-mean-token-mean":
        return weight / mask.sum(-1, keepdim=True).clamp_min(1)
    return weight / constant if constant is not None else weight


def terms(mask: Tensor, mode: Aggregation) -> Tensor:
    """What that sum is divided by, []: actions that count, or samples that have one.

    A sample without such an action says nothing, and is not counted as having said zero.
    """
    return mask.sum() if mode == "token-mean" else mask.any(-1).sum()
