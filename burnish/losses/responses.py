"""Losses on pairs, on judged samples and on demonstrations, over log-probs of whole responses."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from burnish.rl.preference import preference_loss
from burnish.rl.surrogates import masked

Values = dict[str, Tensor]


def dpo(
    chosen: Tensor,
    rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Values]:
    """DPO (Rafailov et al. 2023, eq. 7), with smoothed labels conservative DPO (Mitchell 2023, eq. 3).

    Args:
        chosen, rejected, reference_chosen, reference_rejected: [P] summed log-probs of the responses.
        beta: strength of the pull to the reference.
        label_smoothing: probability that a pair is the wrong way round, in [0, 0.5).

    Returns:
        Loss [P], and values [P]: ``rewards/chosen``, ``rewards/rejected``, ``rewards/margins``,
        ``rewards/accuracies`` (the chosen one is ahead).
    """
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing is {label_smoothing}; from 0.5 on pairs say nothing, so it must be below")
    won, lost = _log_ratio(chosen, reference_chosen), _log_ratio(rejected, reference_rejected)
    return preference_loss(won - lost, beta=beta, label_smoothing=label_smoothing), _values(beta, won, lost)


def ipo(
    chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, *, beta: float
) -> tuple[Tensor, Values]:
    """IPO: the margin of log-ratios is drawn to 1 / (2 beta) (Azar et al. 2023, eq. 17).

    Args:
        chosen, rejected, reference_chosen, reference_rejected: [P] log-probs of the responses; published results
            use both sums over tokens and means.
        beta: above 0.

    Returns:
        As ``dpo``.
    """
    if beta <= 0:
        raise ValueError(f"beta is {beta}; IPO's target is 1 / (2 beta), so it must be above 0")
    won, lost = _log_ratio(chosen, reference_chosen), _log_ratio(rejected, reference_rejected)
    return preference_loss(won - lost, beta=beta, kind="ipo"), _values(beta, won, lost)


def simpo(chosen: Tensor, rejected: Tensor, *, beta: float, margin: float) -> tuple[Tensor, Values]:
    """SimPO: the likelihood per token is the reward, with a target margin (Meng et al. 2024, arXiv:2405.14734, eq. 6).

    -log sigmoid(beta (chosen - rejected) - margin)

    Args:
        chosen, rejected: [P] mean log-probs of the responses' tokens.
        beta: scale of the reward.
        margin: by which the chosen one's reward is to be ahead.

    Returns:
        As ``dpo``.
    """
    nothing = torch.zeros_like(chosen)
    won, lost = _log_ratio(chosen, nothing), _log_ratio(rejected, nothing)
    return -logsigmoid(beta * (won - lost) - margin), _values(beta, won, lost)


def bco(
    chosen: Tensor,
    rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float,
    shift: Tensor,
) -> Tensor:
    """BCO on pairs: each response is told to be good or bad by itself (Jung et al. 2024, arXiv:2404.04656): [P].

    -log sigmoid(r(chosen) - shift) - log sigmoid(-(r(rejected) - shift)), where r is beta times the log-ratio.

    Args:
        chosen, rejected, reference_chosen, reference_rejected: [P] summed log-probs of the responses.
        beta: scale of the reward.
        shift: [P] or [], mean of the rewards so far.
    """
    won, lost = beta * _log_ratio(chosen, reference_chosen), beta * _log_ratio(rejected, reference_rejected)
    return -logsigmoid(won - shift) - logsigmoid(shift - lost)


def kto(
    logprob: Tensor,
    reference: Tensor,
    desirable: Tensor,
    kl: Tensor,
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> tuple[Tensor, Values]:
    """KTO (Ethayarajh et al. 2024): a sample's own value against a reference point, no pairs.

    Args:
        logprob, reference: [N] summed log-probs of the responses.
        desirable: [N] bool.
        kl: [N] reference points, from ``kto_reference_point``; no gradient goes through them.
        beta: how fast value saturates.
        desirable_weight, undesirable_weight: of the two kinds of samples.

    Returns:
        Loss [N], and values [N]: ``rewards/chosen`` and ``rewards/rejected``, NaN where a sample is of the other
        kind.
    """
    ratio = _log_ratio(logprob, reference)
    ahead = beta * torch.where(desirable, ratio - kl.detach(), kl.detach() - ratio)
    weight = torch.where(desirable, desirable_weight, undesirable_weight)
    reward = beta * ratio.detach()
    nothing = torch.full_like(reward, torch.nan)
    return weight * (1 - ahead.sigmoid()), {
        "rewards/chosen": torch.where(desirable, reward, nothing),
        "rewards/rejected": torch.where(desirable, nothing, reward),
    }


def kto_reference_point(log_ratio: Tensor) -> Tensor:
    """KTO's estimate of the KL from the reference: mean log-ratio, at least 0, no gradient; 0 of no responses.

    Args:
        log_ratio: [N] log-probs of responses under the policy minus those under the reference.

    Returns:
        [].
    """
    return log_ratio.detach().mean().clamp_min(0) if len(log_ratio) else torch.zeros(())


def sft(logprob: Tensor, mask: Tensor) -> Tensor:
    """Negative log-likelihood of demonstrated tokens, [B, T], 0 where masked.

    Args:
        logprob: [B, T].
        mask: [B, T] bool, tokens to imitate: the responses only.
    """
    return -masked(logprob, mask)


def _log_ratio(logprob: Tensor, reference: Tensor) -> Tensor:
    at_least = torch.promote_types(logprob.dtype, torch.float32)
    return logprob.to(at_least) - reference.to(at_least)


def _values(beta: float, won: Tensor, lost: Tensor) -> Values:
    won, lost = beta * won.detach(), beta * lost.detach()
    return {
        "rewards/chosen": won,
        "rewards/rejected": lost,
        "rewards/margins": won - lost,
        "rewards/accuracies": (won > lost).float(),
    }
