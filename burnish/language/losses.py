"""Losses on pairs, on judged samples and on demonstrations, over log-probs of whole responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from burnish.rl.surrogates import masked

Values = dict[str, Tensor]
CERTAIN = 1e-6  # distance from log-prob 0 at which odds stop growing


def simpo(won: Tensor, lost: Tensor, *, beta: float, margin: float) -> Tensor:
    """SimPO: the likelihood per token is the reward, with a target margin (Meng et al. 2024, arXiv:2405.14734, eq. 6).

    -log sigmoid(beta (won - lost) - margin)

    Args:
        won, lost: [P] mean log-probs of the tokens of the chosen and of the rejected responses.
        beta: scale of the reward.
        margin: by which the chosen one's reward is to be ahead.

    Returns:
        [P].
    """
    return -logsigmoid(beta * (won - lost) - margin)


def log_odds_ratio(won: Tensor, lost: Tensor) -> Tensor:
    """log(odds(chosen) / odds(rejected)), where odds = P / (1 - P) and log P is a mean over tokens: [P]."""
    odds = [one - torch.log(-torch.expm1(one.clamp(max=-CERTAIN))) for one in (won, lost)]
    return odds[0] - odds[1]


def orpo(won: Tensor, lost: Tensor) -> Tensor:
    """ORPO's loss of the odds ratio (Hong et al. 2024, arXiv:2403.07691): -log sigmoid(log odds ratio), [P].

    Args:
        won, lost: [P] mean log-probs of the tokens of the chosen and of the rejected responses.
    """
    return -logsigmoid(log_odds_ratio(won, lost))


def bco(won: Tensor, lost: Tensor, *, beta: float, shift: Tensor) -> Tensor:
    """BCO on pairs: each response is told to be good or bad by itself (Jung et al. 2024, arXiv:2404.04656): [P].

    -log sigmoid(r(chosen) - shift) - log sigmoid(-(r(rejected) - shift)), where r is beta times the log-ratio.

    Args:
        won, lost: [P] log pi - log pi_ref of the chosen and of the rejected responses, summed over tokens.
        beta: scale of the reward.
        shift: [P] or [], mean of the rewards so far.
    """
    return -logsigmoid(beta * won - shift) - logsigmoid(shift - beta * lost)


def implicit_rewards(won: Tensor, lost: Tensor, *, beta: float) -> Values:
    """What is reported of pairs, [P] each, from log pi - log pi_ref of the chosen and of the rejected responses."""
    won, lost = beta * won.detach(), beta * lost.detach()
    return {
        "rewards/chosen": won,
        "rewards/rejected": lost,
        "rewards/margins": won - lost,
        "rewards/accuracies": (won > lost).float(),
    }


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
    ratio = logprob - reference
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


Ties = Literal["rao_kupper", "davidson"]


def log_outcomes(ahead: Tensor, *, ties: Ties | None, strength: float = 5.0) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs that the first one wins, that it is a tie, and that the second one wins.

    Without ties it is Bradley and Terry's model (1952): P(first) = sigmoid(ahead), and a tie is impossible. Rao and
    Kupper (1967, eq. 2.1), as VideoReward uses it (Liu et al. 2025, arXiv:2501.13918): P(first) = sigmoid(ahead - ln
    theta), and what both leave is a tie. Davidson (1970, eq. 2.4): P(tie) is nu times the geometric mean of the
    other two.

    Args:
        ahead: score of the first minus score of the second, any shape.
        ties: model of ties.
        strength: theta above 1, or nu above 0; not read without ties.
    """
    if ties is None:
        return logsigmoid(ahead), torch.full_like(ahead, -math.inf), logsigmoid(-ahead)
    if ties == "rao_kupper":
        shift = math.log(strength)
        first, second = logsigmoid(ahead - shift), logsigmoid(-ahead - shift)
        return first, first + second + math.log(strength**2 - 1), second
    half = ahead / 2
    parts = torch.stack([half, torch.full_like(half, math.log(strength)), -half])
    first, tie, second = parts - parts.logsumexp(0)
    return first, tie, second


def comparison(
    first: Tensor,
    second: Tensor,
    outcome: Tensor,
    margin: Tensor,
    *,
    ties: Ties | None = None,
    center: float = 0.0,
) -> Tensor:
    """Negative log-likelihood of what people preferred.

    Args:
        first, second: scores, any shape.
        outcome: 1 where the first was preferred, -1 the second, 0 a tie, nan where nobody said.
        margin: by how much the preferred one has to be ahead at least (Touvron et al. 2023, arXiv:2307.09288, eq. 2);
            not read where there is no winner.
        ties: as ``log_outcomes`` takes it.
        center: weight of (first + second)^2, which keeps scores around 0 (Eisenstein et al. 2023, arXiv:2312.09244).

    Returns:
        The same shape; 0 where the outcome is nan.
    """
    known = ~outcome.isnan()
    label = torch.where(known, outcome, 0.0)
    won, tie, lost = log_outcomes(first - second - label * margin, ties=ties)
    likely = torch.where(label > 0, won, torch.where(label < 0, lost, tie))
    return torch.where(known, center * (first + second).square() - likely, 0.0)


def regression(score: Tensor, target: Tensor, *, kind: Literal["mse", "bce"]) -> Tensor:
    """Squared error, or binary cross-entropy of sigmoid(score) with a target in [0, 1]; 0 where the target is nan."""
    known = ~target.isnan()
    given = torch.where(known, target, 0.0)
    if kind == "mse":
        loss = (score - given).square()
    else:
        loss = binary_cross_entropy_with_logits(score, given, reduction="none")
    return torch.where(known, loss, 0.0)


def token_weight(logprob: Tensor, kind: Literal["probability", "phi"]) -> Tensor:
    """Weight of a token in its negative log-likelihood, without gradient, from its log-prob: the same shape.

    probability: p, which makes imitation a policy gradient with reward 1 (DFT, Wu et al. 2025, arXiv:2508.05629). phi:
    p (1 - p), the largest where the policy is unsure (CHORD, Zhang et al. 2025, arXiv:2508.11408, eq. 8).
    """
    probability = logprob.detach().exp()
    return probability if kind == "probability" else probability * (1 - probability)


def high_entropy_mask(
    entropy: Tensor, mask: Tensor, fraction: float, *, per: Literal["batch", "sequence"] = "batch"
) -> Tensor:
    """The tokens of highest entropy: those at or above one threshold ("Beyond the 80/20 rule", arXiv 2506.01939).

    The threshold is the entropy of the token that stands at ``fraction`` of the chosen tokens, rounded down and one
    at least. Tokens that tie with it are all in, whatever their order; padding never is. The threshold belongs to
    everything that is given: give the whole optimizer batch.

    Args:
        entropy: [B, T] under the policy that sampled.
        mask: [B, T] bool.
        fraction: of the chosen tokens; 0, and 1 or more, select them all.
        per: one threshold for the batch, as in the paper, or one for each sequence.

    Returns:
        [B, T] bool.
    """
    if not 0 < fraction < 1:
        return mask.clone()
    if per == "sequence":
        rows = zip(entropy.split(1), mask.split(1), strict=True)
        return torch.cat([high_entropy_mask(row, chosen, fraction) for row, chosen in rows]) if len(mask) else mask
    found = masked(entropy, mask)[mask]
    if not len(found):
        return torch.zeros_like(mask)
    threshold = found.topk(max(1, int(len(found) * fraction))).values[-1]
    return mask & (masked(entropy, mask) >= threshold)


def covariance(logprob: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """What each action adds to the covariance of log-prob and advantage (arXiv:2505.22617, eq. 10): [B, K].

    (log p - its mean) x (advantage - its mean), over all actions that count: give the whole batch. Their mean is how
    fast the policy's entropy falls.
    """
    count = mask.sum().clamp_min(1)
    logprob, advantage = masked(logprob, mask), masked(advantage, mask)
    return masked((logprob - logprob.sum() / count) * (advantage - advantage.sum() / count), mask)


def value_loss(
    value: Tensor, old_value: Tensor, returns: Tensor, mask: Tensor, *, clip: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the squared error, the larger one of the value and of the value clipped around the old one (PPO).

    Args:
        value, old_value, returns: [B, T].
        mask: [B, T] bool.
        clip: how far from the old value a value counts; None never clips.

    Returns:
        Loss per token, and ``critic/vf_clipfrac`` (tokens where the clipped error is the larger one), both [B, T].
    """
    value, old_value, returns = masked(value, mask), masked(old_value, mask), masked(returns, mask)
    error = (value - returns).square()
    if clip is None:
        return error / 2, {"critic/vf_clipfrac": torch.zeros_like(error)}
    moved = value - old_value
    held = (old_value + moved.clamp(-clip, clip) - returns).square()
    # within the range the two differ by rounding alone, which is no clipping
    clipped = (held > error) & (moved.abs() > clip)
    return torch.maximum(error, held) / 2, {"critic/vf_clipfrac": clipped.float()}


def load_balancing(router_logits: Sequence[Tensor], top_k: int) -> Tensor:
    """The Switch Transformer's auxiliary loss (Fedus et al. 2021, arXiv:2101.03961, eq. 4), as transformers defines it.

    Args:
        router_logits: per layer [N, E]; all layers count as one.
        top_k: experts per token, which the loss is where all experts are used alike.
    """
    logits = torch.cat(list(router_logits)).float()
    experts = logits.shape[-1]
    load = torch.bincount(logits.topk(top_k, -1).indices.flatten(), minlength=experts) / len(logits)
    return experts * (load * logits.softmax(-1).mean(0)).sum()
