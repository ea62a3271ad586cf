"""Surrogates of the policy gradient: clipped ratios and what others make of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

LEAST = -1e30  # log-prob of what is impossible; finite, because 0 * -inf is NaN
WEIGHT_MAX = 20.0  # bound of an importance weight


def divergence(
    student: Tensor, teacher: Tensor, kind: Literal["reverse", "forward", "jsd"], *, mix: float = 0.5
) -> Tensor:
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


def hybrid_divergence(
    student: Tensor,
    teacher: Tensor,
    shared: Tensor,
    own: Tensor,
    theirs: Tensor,
    kind: Literal["reverse", "forward", "jsd"],
    *,
    mix: float = 0.5,
    weight: float,
) -> Tensor:
    """Between distributions over the tokens of two tokenizers: GOLD's hybrid loss (Patiño et al. 2025), [N].

        w divergence(tokens that both have) + (1 - w) sum over i of |i-th largest of the others, s - t|

    The second term is universal logit distillation (Boizard et al. 2024, arXiv:2402.12030).

    Args:
        student, teacher: [N, V] and [N, W] log-probs, which need not sum to 1.
        shared: [2, K] long, ids of the tokens that both have.
        own, theirs: [U] and [X] long, those of the others.
        kind, mix: of the divergence.
        weight: w.
    """
    known = divergence(student.index_select(-1, shared[0]), teacher.index_select(-1, shared[1]), kind, mix=mix)
    width = max(len(own), len(theirs))
    others = ((student, own), (teacher, theirs))
    ranked = [side.index_select(-1, ids).exp().sort(-1, descending=True).values for side, ids in others]
    first, second = (pad(side, (0, width - side.shape[-1])) for side in ranked)
    return weight * known + (1 - weight) * (first - second).abs().sum(-1)


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


def variance_proxies(advantage: Tensor, score_power: Tensor) -> dict[str, Tensor]:
    """Of terms with a known score, verl's proxies of the variance of the gradient, before its norm is known.

    Args:
        advantage: [M].
        score_power: [M] squared norm of the gradient of the log-prob.

    Returns:
        One value per term, [M] each.
    """
    return {
        "variance_proxy/proxy2_total_power": advantage.square() * score_power,
        "variance_proxy/expected_a_squared": advantage.square(),
        "variance_proxy/expected_w": score_power,
    }
