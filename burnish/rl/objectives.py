"""What is maximised for each action, as recipes choose it: functions of tensors; keyword-only parameters are options.

All take log-probs under the policy and under the one that acted, advantages and a mask, [B, K] each; clip_high None is
clip. PyTorch is imported when one is called: configurations are read without it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from burnish.options import NonNegative, Positive
from burnish.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.rl.surrogates import Surrogate

DRIFT_MAX = 0.2  # bound of ratio - 1 in the gradient of CPGD's drift
Clip = Annotated[float, Field(gt=0, le=1)]  # ratios below 1 - clip can't exist above 1


@register("surrogate", "clip", whole_samples=False)
def ppo_clip(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip: Clip = 0.2,
    clip_high: Positive | None = None,
    dual_clip: Annotated[float, Field(gt=1)] | None = None,
) -> Surrogate:
    """PPO's clipped ratio (Schulman et al. 2017, eq. 7), with DAPO's two clip ranges and dual clipping.

    Args:
        logprob, old, advantage, mask: see above.
        clip: Clip range of the probability ratio.
        clip_high: Upper clip range if it is to differ from the lower one; null takes clip.
        dual_clip: A token of negative advantage costs at most this many times it, so above 1 (3 is usual); null sets no
            bound (Ye et al. 2020).

    Returns:
        The loss, with ``actor/pg_clipfrac`` (actions whose clipping acts, as verl counts), its part
        ``actor/pg_clipfrac_lower`` where dual clipping acts, and ``actor/ppo_kl`` (old - new log-prob).
    """
    import torch

    from burnish.rl.surrogates import clipped_loss, log_ratio, masked, reported

    difference, advantage = log_ratio(logprob, old, mask), masked(advantage, mask)
    loss, ratio = clipped_loss(difference, advantage, clip, clip_high)
    clipped, bounded = loss > -advantage * ratio, torch.zeros_like(mask)
    if dual_clip is not None:
        bounded = (advantage < 0) & (loss > -advantage * dual_clip)
        loss = torch.where(bounded, -advantage * dual_clip, loss)
    found = reported(loss, difference, clipped, mask)
    found.metrics["actor/pg_clipfrac_lower"] = bounded.float()
    return found


@register("surrogate", "flow_clip", whole_samples=False)
def flow_clip(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip: Clip = 1e-4,
    clip_high: Positive | None = None,
) -> Surrogate:
    """PPO's clipped ratio, with the defaults of Flow-GRPO and what it reports (arXiv:2505.05470, eq. 5).

    Args:
        logprob, old, advantage, mask: see above.
        clip: Clip range of the probability ratio; log-probs are means over latents, so ratios stay near 1.
        clip_high: Upper clip range if it is to differ from the lower one; null takes clip.

    Returns:
        The loss, with ``actor/pg_clipfrac`` (ratio outside the range, whether clipping acts or not) and its parts
        ``_higher`` and ``_lower``, and ``actor/ppo_kl``.
    """
    from burnish.rl.surrogates import Surrogate, clipped_loss, log_ratio, masked

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
    return Surrogate(loss, masked(ratio, mask), metrics)


@register("surrogate", "gspo")
def gspo(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip: Clip = 3e-4,
    clip_high: Positive | None = 4e-4,
) -> Surrogate:
    """GSPO: the ratio of the whole sample, clipped as one (arXiv:2507.18071).

    Args:
        logprob, old, advantage, mask: see above.
        clip: Clip range of the ratio of a sample, which is a geometric mean over its actions: it moves far less than
            one.
        clip_high: Upper clip range; null takes clip.

    Returns:
        In its token form: every token has the sequence's ratio as value and its own log-prob as gradient, so
        that advantages may differ between tokens. With ``seq-mean-token-mean`` and one advantage it is the paper's.
    """
    from burnish.rl.surrogates import clipped_loss, log_ratio, masked, reported, sequence_mean

    difference = log_ratio(logprob, old, mask)
    own = masked(logprob, mask)
    sequence = own - own.detach() + sequence_mean(difference, mask).detach()[:, None]
    advantage = masked(advantage, mask)
    loss, ratio = clipped_loss(sequence, advantage, clip, clip_high)
    return reported(loss, difference, loss > -advantage * ratio, mask)


@register("surrogate", "gmpo")
def gmpo(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip: Clip = 0.4,
    clip_high: Positive | None = None,
) -> Surrogate:
    """GMPO: geometric mean of the ratios of a sample, each clipped before the mean (arXiv:2507.20673).

    Args:
        logprob, old, advantage, mask: see above.
        clip: Ratios count within exp(-clip) to exp(clip), on the side that the advantage pushes to.
        clip_high: Upper clip range if it is to differ from the lower one; null takes clip.

    Returns:
        Every token carries its sequence's loss; ``seq-mean-token-mean`` counts each sequence once, as the paper does.
    """
    import torch

    from burnish.rl.surrogates import log_ratio, reported, sequence_mean

    clip_high = clip if clip_high is None else clip_high
    difference = log_ratio(logprob, old, mask)
    credit = sequence_mean(advantage, mask)
    inside = torch.where(credit[:, None] > 0, difference.clamp(max=clip_high), difference.clamp(min=-clip))
    loss = -credit * sequence_mean(inside, mask).exp()
    return reported(loss[:, None].expand_as(difference), difference, inside != difference, mask)


@register("surrogate", "cispo", whole_samples=False)
def cispo(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip: Clip = 1.0,
    clip_high: Positive | None = 4.0,
) -> Surrogate:
    """CISPO: policy gradient with clipped importance weights, so no token loses its gradient (arXiv:2506.13585).

    Args:
        logprob, old, advantage, mask: see above.
        clip: Importance weights count from 1 - clip on; 1 leaves them open below, as the paper does.
        clip_high: Importance weights count up to 1 + clip_high; null takes clip.
    """
    from burnish.rl.surrogates import log_ratio, masked, reported

    difference = log_ratio(logprob, old, mask)
    ratio = difference.detach().exp()
    weight = ratio.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high))
    loss = -weight * masked(advantage, mask) * masked(logprob, mask)
    return reported(loss, difference, weight != ratio, mask)


@register("surrogate", "sapo", whole_samples=False)
def sapo(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    tau_pos: Positive = 1.0,
    tau_neg: Positive = 1.05,
) -> Surrogate:
    """SAPO: a soft gate in place of clipping, 4/tau sigmoid(tau (ratio - 1)) (arXiv:2511.20347).

    Args:
        logprob, old, advantage, mask: see above.
        tau_pos: How fast the gate closes for actions of positive advantage.
        tau_neg: How fast the gate closes for the others; faster, because pushing one token down lifts all others.

    Returns:
        At ratio 1 its slope is that of the ratio. Its ``actor/pg_clipfrac`` counts tokens whose gradient is less than
        half of what it would be without a gate.
    """
    import torch

    from burnish.rl.surrogates import log_ratio, masked, reported

    difference, advantage = log_ratio(logprob, old, mask), masked(advantage, mask)
    tau = torch.where(advantage > 0, tau_pos, tau_neg)
    gate = torch.sigmoid(tau * (difference.exp() - 1))
    closed = 4 * gate.detach() * (1 - gate.detach()) < 0.5
    return reported(-4 / tau * gate * advantage, difference, closed, mask)


@register("surrogate", "cpgd", whole_samples=False)
def cpgd(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    clip_high: Positive | None = None,
    drift_coef: NonNegative = 0.0,
) -> Surrogate:
    """CPGD: policy gradient in log-probs, with a penalty for leaving the old policy (arXiv:2505.12504).

    Args:
        logprob, old, advantage, mask: see above.
        clip: Clip range of the probability ratio.
        clip_high: Upper clip range if it is to differ from the lower one; null takes clip.
        drift_coef: Weight of the penalty for leaving the old policy.

    Returns:
        -advantage x log-prob, where the log-prob counts no further than log(1 + clip_high) above the old one for a
        positive advantage and log(1 - clip) below it otherwise: no ratio multiplies the gradient. The penalty is the
        k3 estimate of KL(old || policy), whose gradient (ratio - 1) x that of the log-prob is bounded at 0.2.

        The loss, with ``actor/policy_drift``: the k3 estimate before its coefficient.
    """
    import torch

    from burnish.rl.surrogates import log_ratio, masked, reported

    difference, advantage = log_ratio(logprob, old, mask), masked(advantage, mask)
    own, before = masked(logprob, mask), masked(old, mask)
    highest, lowest = before + math.log1p(clip if clip_high is None else clip_high), before + math.log1p(-clip)
    bound = torch.where(advantage > 0, highest, lowest)
    clipped = torch.where(advantage > 0, own > bound, own < bound)
    loss = -torch.where(clipped, bound, own) * advantage
    excess = difference.detach().exp() - 1
    estimate = excess - difference.detach()
    if drift_coef:
        loss = loss + drift_coef * (estimate + excess.clamp(max=DRIFT_MAX) * (own - own.detach()))
    found = reported(loss, difference, clipped, mask)
    found.metrics["actor/policy_drift"] = masked(estimate, mask)
    return found


@register("surrogate", "dppo", whole_samples=False)
def dppo(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    divergence: Literal["tv", "kl"] = "tv",
    divergence_limit: Positive = 0.15,
) -> Surrogate:
    """DPPO: the policy gradient without actions whose probability has moved too far, and would move on.

    Args:
        logprob, old, advantage, mask: see above.
        divergence: How far an action has moved: its probability (tv, total variation), or the KL of taking it or not
            (kl).
        divergence_limit: Divergence from which on an action counts no more; the paper takes 0.15 for tv and 0.05 for
            kl.

    Returns:
        Its binary forms: a trust region of probabilities, not of their ratio (Qi et al. 2026, arXiv:2602.04879).

        With p the probability of an action and q the one that it was sampled with, an action is left out where

            advantage > 0, p > q, D > limit    or    advantage < 0, p < q, D > limit

        and has the loss -advantage x min(p / q, 20), no gradient through the weight, x log p otherwise. D is
        |p - q| (tv), or q log(q / p) + (1 - q) log((1 - q) / (1 - p)) (kl): an unlikely action may multiply its
        probability, a likely one may not fall far.
    """
    import torch

    from burnish.rl.surrogates import WEIGHT_MAX, log_ratio, masked, reported

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
        weight = torch.where(out, 0.0, moved.exp().clamp(max=WEIGHT_MAX))
    return reported(-weight * advantage * masked(logprob, mask), difference, out, mask)


@register("surrogate", "drpo", whole_samples=False)
def drpo(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    divergence_limit: Positive = 12.5,
) -> Surrogate:
    """DRPO: ratio times advantage, less a penalty that grows with how far a probability has moved (arXiv:2606.09821).

    Args:
        logprob, old, advantage, mask: see above.
        divergence_limit: Change of a probability at which its action pulls no more; beyond it is pulled back.

    Returns:
        With the ratio r of an action's probability p to the one that it was sampled with, q,

            -advantage r + |advantage| q (r - 1)^2 / (2 divergence_limit),

        whose gradient is that of the ratio times 1 - sign(advantage (r - 1)) |p - q| / divergence_limit: DPPO's trust
        region with a slope in place of an edge. ``actor/pg_clipfrac`` counts actions beyond it.
    """
    from burnish.rl.surrogates import log_ratio, masked, reported

    difference, advantage = log_ratio(logprob, old, mask), masked(advantage, mask)
    moved = difference.exp() - 1
    before = masked(old, mask).exp()
    penalty = advantage.abs() * before * moved.square() / (2 * divergence_limit)
    beyond = (before * moved.detach()).abs() > divergence_limit
    return reported(penalty - advantage * (1 + moved), difference, beyond, mask)


@register("surrogate", "ratio", whole_samples=False)
def plain_ratio(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
) -> Surrogate:
    """Ratio times advantage, not clipped: whoever takes it bounds the policy otherwise."""
    from burnish.rl.surrogates import log_ratio, masked, reported

    difference = log_ratio(logprob, old, mask)
    return reported(-masked(advantage, mask) * difference.exp(), difference, mask & False, mask)


@register("surrogate", "reinforce", whole_samples=False, compares=False)
def reinforce(
    logprob: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor,
) -> Surrogate:
    """REINFORCE: log-prob times advantage; nothing is compared or clipped (Williams 1992)."""
    from burnish.rl.surrogates import Surrogate, log_ratio, masked

    loss = -masked(advantage, mask) * masked(logprob, mask)
    return Surrogate(loss, None, {"actor/ppo_kl": -log_ratio(logprob.detach(), old, mask)})
