"""Surrogates of the policy gradient: clipped ratios and what others make of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Divergence = Literal["reverse", "forward", "jsd"]
LEAST = -1e30  # log-prob of what is impossible; finite, because 0 * -inf is NaN
WEIGHT_MAX = 20.0  # bound of an importance weight


def divergence(student: Tensor, teacher: Tensor, kind: Divergence, *, mix: float = 0.5) -> Tensor:
    """Between distributions over the last axis (Agarwal et al. 2024, arXiv:2306.13649, eq. 1 and 2): [...].

    reverse: KL(student || teacher), which seeks a mode of the teacher; forward: KL(teacher || student), which covers
    it; jsd: the generalised Jensen-Shannon divergence with m = mix teacher + (1 - mix) student,

        mix KL(teacher || m) + (1 - mix) KL(student || m).

    Args:
        student, teacher: [..., V] log-probs; -inf where impossible.
        kind: which of them.
        mix: of jsd, between 0 and 1.
    """
    student, teacher = student.clamp_min(LEAST), teacher.clamp_min(LEAST)
    if kind == "reverse":
        return (student.exp() * (student - teacher)).sum(-1)
    if kind == "forward":
        return (teacher.exp() * (teacher - student)).sum(-1)
    middle = torch.logaddexp(teacher + math.log(mix), student + math.log(1 - mix))
    of_teacher = (teacher.exp() * (teacher - middle)).sum(-1)
    return mix * of_teacher + (1 - mix) * (student.exp() * (student - middle)).sum(-1)


def with_rest(logprob: Tensor) -> Tensor:
    """Log-probs [..., K] of some tokens and that of all others together: [..., K + 1].

    A divergence over these is at most that over all tokens, and 0 only where both agree on all of them.
    """
    known = logprob.exp().sum(-1, keepdim=True).clamp(max=1 - torch.finfo(logprob.dtype).eps)
    return torch.cat([logprob, torch.log1p(-known)], -1)


def sampled_advantage(student: Tensor, teacher: Tensor, kind: Literal["reverse", "forward"]) -> Tensor:
    """The advantage of tokens that the student has drawn, by which a policy gradient descends a divergence: [...].

    reverse: log t - log s, since the gradient of KL(s || t) is -E_s[(log t - log s) grad log s]. forward: t / s - 1,
    since that of KL(t || s) is -E_t[grad log s], an expectation over s with the weight t / s, 20 at most.

    Args:
        student, teacher: [...] log-probs of the tokens.
        kind: the divergence.
    """
    difference = teacher - student
    return difference if kind == "reverse" else difference.exp().clamp(max=WEIGHT_MAX) - 1


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
    weight = mask.float()
    if mode == "seq-mean-token-mean":
        return weight / mask.sum(-1, keepdim=True).clamp_min(1)
    return weight / constant if constant is not None else weight


def terms(mask: Tensor, mode: Aggregation) -> Tensor:
    """What that sum is divided by, []: actions that count, or samples that have one.

    A sample without such an action says nothing, and is not counted as having said zero.
    """
    return mask.sum() if mode == "token-mean" else mask.any(-1).sum()


def gspo(
    logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, *, clip: float, clip_high: float | None = None
) -> Surrogate:
    """GSPO: the ratio of the sequence, geometric mean over its tokens, is clipped as one (arXiv 2507.18071).

    In its token form: every token has the sequence's ratio as value and its own log-prob as gradient, so
    that advantages may differ between tokens. With ``seq-mean-token-mean`` and one advantage it is the paper's.

    Args:
        logprob, old, advantage, mask: [B, K].
        clip, clip_high: around the ratio of the sequence; thousandfold smaller than for tokens.
    """
    difference = log_ratio(logprob, old, mask)
    own = masked(logprob, mask)
    sequence = own - own.detach() + sequence_mean(difference, mask).detach()[:, None]
    advantage = masked(advantage, mask)
    loss, ratio = clipped_loss(sequence, advantage, clip, clip_high)
    return reported(loss, difference, loss > -advantage * ratio, mask)


def gmpo(
    logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, *, clip: float, clip_high: float | None = None
) -> Surrogate:
    """GMPO: geometric mean of token ratios, each clipped in log space before the mean (arXiv 2507.20673).

    Every token carries its sequence's loss; ``seq-mean-token-mean`` counts each sequence once, as the paper does.

    Args:
        logprob, old, mask: [B, K].
        advantage: [B, K]; its mean over a sequence counts.
        clip, clip_high: ratios of actions count within [exp(-clip), exp(clip_high)], on the side that the advantage
            pushes to; clip_high None is clip.
    """
    clip_high = clip if clip_high is None else clip_high
    difference = log_ratio(logprob, old, mask)
    credit = sequence_mean(advantage, mask)
    inside = torch.where(credit[:, None] > 0, difference.clamp(max=clip_high), difference.clamp(min=-clip))
    loss = -credit * sequence_mean(inside, mask).exp()
    return reported(loss[:, None].expand_as(difference), difference, inside != difference, mask)


def cispo(
    logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, *, clip: float, clip_high: float | None = None
) -> Surrogate:
    """CISPO: policy gradient with a clipped importance weight, so no token loses its gradient (arXiv 2506.13585).

    Args:
        logprob, old, advantage, mask: [B, K].
        clip, clip_high: the weight lies within [1 - clip, 1 + clip_high]; the paper leaves it open below, which is
            clip 1. clip_high None is clip.
    """
    difference = log_ratio(logprob, old, mask)
    ratio = difference.detach().exp()
    weight = ratio.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high))
    loss = -weight * masked(advantage, mask) * masked(logprob, mask)
    return reported(loss, difference, weight != ratio, mask)


def sapo(logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, *, tau_pos: float, tau_neg: float) -> Surrogate:
    """SAPO: a soft gate, 4/tau sigmoid(tau (ratio - 1)), in place of clipping (arXiv 2511.20347).

    At ratio 1 its slope is that of the ratio. Its ``actor/pg_clipfrac`` counts tokens whose gradient is less than
    half of what it would be without a gate.

    Args:
        logprob, old, advantage, mask: [B, K].
        tau_pos, tau_neg: above 0; how fast the gate closes for positive advantages and for the rest.
    """
    difference, advantage = log_ratio(logprob, old, mask), masked(advantage, mask)
    tau = torch.where(advantage > 0, tau_pos, tau_neg)
    gate = torch.sigmoid(tau * (difference.exp() - 1))
    closed = 4 * gate.detach() * (1 - gate.detach()) < 0.5
    return reported(-4 / tau * gate * advantage, difference, closed, mask)


def cpgd(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip: float,
    clip_high: float | None = None,
    drift_coef: float = 0.0,
    drift_clip: float = 0.2,
) -> Surrogate:
    """CPGD: policy gradient with a clipped log-ratio and a penalty for leaving the old policy (arXiv 2505.12504).

    -advantage x log-prob, where the log-prob counts no further than log(1 + clip_high) above the old one for a
    positive advantage and log(1 - clip) below it otherwise: no ratio multiplies the gradient. The penalty is the
    k3 estimate of KL(old || policy), whose gradient (ratio - 1) x that of the log-prob is bounded.

    Args:
        logprob, old, advantage, mask: [B, K].
        clip, clip_high: clip is below 1; clip_high None is clip.
        drift_coef: of the penalty; 0 is none.
        drift_clip: bound of ratio - 1 in the penalty's gradient.

    Returns:
        The loss, with ``actor/policy_drift``: the k3 estimate before its coefficient.
    """
    difference, advantage = log_ratio(logprob, old, mask), masked(advantage, mask)
    own, before = masked(logprob, mask), masked(old, mask)
    highest, lowest = before + math.log1p(clip if clip_high is None else clip_high), before + math.log1p(-clip)
    bound = torch.where(advantage > 0, highest, lowest)
    clipped = torch.where(advantage > 0, own > bound, own < bound)
    loss = -torch.where(clipped, bound, own) * advantage
    excess = difference.detach().exp() - 1
    estimate = excess - difference.detach()
    if drift_coef:
        loss = loss + drift_coef * (estimate + excess.clamp(max=drift_clip) * (own - own.detach()))
    found = reported(loss, difference, clipped, mask)
    found.metrics["actor/policy_drift"] = masked(estimate, mask)
    return found


def reinforce(logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> Surrogate:
    """-advantage x log-prob: the policy gradient itself (Williams 1992). Nothing is corrected or clipped.

    Args:
        logprob, old, advantage, mask: [B, K]; ``old`` is only reported on.
    """
    loss = -masked(advantage, mask) * masked(logprob, mask)
    return Surrogate(loss, None, {"actor/ppo_kl": -log_ratio(logprob, old, mask)})


def plain_ratio(logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> Surrogate:
    """-advantage x ratio: importance sampling without a bound."""
    difference = log_ratio(logprob, old, mask)
    return reported(-masked(advantage, mask) * difference.exp(), difference, torch.zeros_like(mask), mask)


def dppo(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    divergence: Literal["tv", "kl"],
    divergence_limit: float,
    ratio_limit: float,
) -> Surrogate:
    """DPPO's binary forms: a trust region of probabilities, not of their ratio (Qi et al. 2026, arXiv:2602.04879).

    With p the probability of an action and q the one that it was sampled with, an action is left out where

        advantage > 0, p > q, D > limit    or    advantage < 0, p < q, D > limit

    and has the loss -advantage x min(p / q, ratio_limit), no gradient through the weight, x log p otherwise. D is
    |p - q| (tv), or q log(q / p) + (1 - q) log((1 - q) / (1 - p)) (kl): an unlikely action may multiply its
    probability, a likely one may not fall far.

    Args:
        logprob, old, advantage, mask: [B, K].
        divergence, divergence_limit: D and its limit.
        ratio_limit: bounds the importance weight.
    """
    difference, advantage = log_ratio(logprob, old, mask), masked(advantage, mask)
    with torch.no_grad():
        moved = difference.detach()
        p, q = masked(logprob, mask).exp(), masked(old, mask).exp()
        if divergence == "tv":
            apart = (p - q).abs()
        else:
            rest_p, rest_q = ((1 - one).clamp_min(torch.finfo(p.dtype).eps) for one in (p, q))
            apart = -q * moved + rest_q * (rest_q.log() - rest_p.log())
        onward = ((advantage > 0) & (moved > 0)) | ((advantage < 0) & (moved < 0))
        out = onward & (apart > divergence_limit)
        weight = torch.where(out, 0.0, moved.exp().clamp(max=ratio_limit))
    return reported(-weight * advantage * masked(logprob, mask), difference, out, mask)


def guard_log_ratio(
    logprob: Tensor, old: Tensor, mean: Tensor, old_mean: Tensor, std: Tensor, share: Tensor | float = 1.0
) -> Tensor:
    """GRPO-Guard's log-ratio: centred at 0 and of equal std at every noise level (arXiv:2510.22319, RatioNorm).

    With the noise z that the step was sampled with, it is the mean of z * (mean - old_mean) over the latent axes:
    the squared difference that draws the plain log-ratio below 0 is added back, and its std, 1 / std, is taken out.

    Args:
        logprob, old: [M] Gaussian log-densities, averaged over the latent axes.
        mean, old_mean: [M, ...] where the step aims under the learning policy and under the one that acted.
        std: [M] of the transition, root of the step length included.
        share: see ``squared_distance``.

    Returns:
        [M], a log-ratio for ``flow_clip``.
    """
    return (logprob - old) * std + squared_distance(mean, old_mean, share) / (2 * std)


def guard_weights(step: Tensor) -> Tensor:
    """GRPO-Guard's balance of gradients across noise levels: the loss of each step is divided by its length [M].

    The mean of a step moves with the velocity times the step length, so long steps would rule the sum.
    """
    return 1 / step


def kl_trust_region(
    logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, kl: Tensor, *, threshold: float
) -> Surrogate:
    """Flow-DPPO: the policy gradient, without steps that have moved too far and would go further.

    A step is left out where its KL reaches the threshold and the ratio lies on the side that the advantage pushes
    to: above 1 with a positive one, below 1 with a negative one. It stays in the number of terms.

    Args:
        logprob, old, advantage, mask: [B, K].
        kl: [B, K] between the two transitions: ``gaussian_kl(mean, old_mean, std)``, or half the squared distance of
            the means, which is the published form without the variance.
        threshold: the largest KL that a step may move on from.

    Returns:
        The loss, with ``actor/ppo_kl``, ``actor/approx_kl``, ``actor/kl_new_old``, ``actor/kl_mask_fraction`` (KL at
        the threshold), ``actor/pos_rm_fraction`` and ``actor/neg_rm_fraction`` (left out with positive and negative
        advantage), ``actor/masked_fraction`` and ``actor/unmasked_fraction``.
    """
    difference = log_ratio(logprob, old, mask)
    ratio, apart = difference.exp(), masked(logprob.detach() - old, mask)
    far = mask & (kl >= threshold)
    positive, negative = far & (advantage > 0) & (ratio > 1), far & (advantage < 0) & (ratio < 1)
    out = positive | negative
    metrics = {
        "actor/ppo_kl": -apart,
        "actor/approx_kl": 0.5 * apart.square(),
        "actor/kl_new_old": masked(kl.detach(), mask),
        "actor/kl_mask_fraction": far.float(),
        "actor/pos_rm_fraction": positive.float(),
        "actor/neg_rm_fraction": negative.float(),
        "actor/masked_fraction": out.float(),
        "actor/unmasked_fraction": (mask & ~out).float(),
    }
    loss = torch.where(out, torch.zeros_like(ratio), -advantage * ratio)
    return Surrogate(masked(loss, mask), masked(ratio.detach(), mask), metrics)


def gaussian_kl(mean: Tensor, other: Tensor, std: Tensor, share: Tensor | float = 1.0) -> Tensor:
    """KL of two Gaussians of equal std, averaged over latent axes: (mean - other)^2 / (2 std^2).

    With the std of the transition it is exact per latent element. Flow-GRPO published it with the std before the
    root of the step length, which is smaller by that step length.

    Args:
        mean, other: [M, ...].
        std: [M].
        share: see ``squared_distance``.

    Returns:
        [M].
    """
    return squared_distance(mean, other, share) / (2 * std.square())


def squared_distance(value: Tensor, other: Tensor, share: Tensor | float = 1.0) -> Tensor:
    """Squared difference averaged over latent axes, a KL up to the variance.

    Of the means of two transitions it is Flow-Factory's x-based KL; of two velocities its v-based one, which is
    also DiffusionNFT's.

    Args:
        value, other: [M, ...].
        share: [M] of the elements that are noised, which the average is over; both are equal in the others.

    Returns:
        [M].
    """
    return (value - other).square().flatten(1).mean(1) / share
