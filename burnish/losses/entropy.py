"""How undecided the policy is, and the tokens where it is most."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from burnish.rl.surrogates import masked


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy in nats of softmax(logits); forbidden tokens (-inf) add nothing and get no gradient.

    Args:
        logits: [..., V].

    Returns:
        [...] float32.
    """
    logprob = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    return -(logprob.exp() * logprob.masked_fill(logprob == -torch.inf, 0.0)).sum(-1)


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
