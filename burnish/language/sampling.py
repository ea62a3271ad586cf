"""From logits to tokens: temperature, filters, and one counter-based uniform number per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 512  # tokens of a large vocabulary that are summed together

Words = np.ndarray  # uint64 that hold 32 bits, so that products don't overflow

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How responses are sampled.

    Whatever the filters, log-probs are those of the full distribution at ``temperature`` (1 where it is 0) without
    banned tokens: the one that training computes.
    """

    max_new_tokens: int
    min_new_tokens: int = 0  # before these neither stop ids nor stop strings end a response
    temperature: float = 1.0  # 0 takes the most likely token
    first_temperature: float | None = None  # samples the first token (FIRE, arXiv:2410.21236); not its log-prob
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # divides logits of earlier tokens (CTRL, arXiv:1909.05858)
    stop: tuple[str, ...] = ()  # strings that end a response; they stay part of it

    @property
    def scored_at(self) -> float:
        """Temperature of the distribution that log-probs refer to."""
        return self.temperature or 1.0

    @property
    def filters(self) -> bool:
        return bool(self.top_k or self.top_p < 1 or self.min_p)


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits [B, V], where those of seen tokens [B, V] bool are divided by the penalty, or multiplied if negative."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_likely(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [B, V] with -inf for tokens that top-k, min-p or top-p (in this order) exclude; the best is kept."""
    if sampling.top_k and sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.min_p:
        least = logits.amax(-1, keepdim=True) + torch.tensor(sampling.min_p, dtype=logits.dtype).log().item()
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1:
        ranked, order = logits.sort(-1, descending=True)
        probabilities = ranked.softmax(-1)
        # a token is kept while the more likely ones sum to less than top_p
        out = probabilities.cumsum(-1) - probabilities >= sampling.top_p
        out[:, 0] = False  # also where top_p is below the precision of the probabilities
        logits = logits.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)
    return logits


def choose(weights: Tensor, uniform: Tensor) -> Tensor:
    """Tokens [B] by inversion of the cumulative distribution of weights [B, V] at uniform numbers [B] in [0, 1)."""
    if weights.shape[-1] <= 2 * BLOCK:
        return _locate(_cumulative(weights), uniform)[0]
    # a large vocabulary: first a block, then a token of it, which keeps cumulative sums short
    blocks = F.pad(weights, (0, -weights.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(-1)
    cumulative = _cumulative(sums)
    block, target = _locate(cumulative, uniform)
    here = block[:, None]
    rest = (cumulative.gather(-1, here)[:, 0] - target) / sums.gather(-1, here)[:, 0]
    chosen = blocks[torch.arange(len(block), device=block.device), block]
    return block * BLOCK + _locate(_cumulative(chosen), (1 - rest).clamp(0, 1))[0]


def _cumulative(weights: Tensor) -> Tensor:
    return weights.cumsum(-1, dtype=torch.float64)


def _locate(cumulative: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Indices [B] where cumulative weights [B, N] exceed a fraction [B] of their total, and that weight [B]."""
    total = cumulative.select(-1, -1)
    # rounding must not take the product up to the total, beyond which there is no token
    target = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target.unsqueeze(-1), right=True).squeeze(-1)
    return index.clamp_max(cumulative.shape[-1] - 1), target  # the clamp is for NaN weights


def uniforms(keys: Sequence[int], count: int) -> np.ndarray:
    """Uniform numbers in [0, 1): [len(keys), count] float64 with 53 random bits.

    Element [i, j] depends on ``keys[i]`` (63 bits) and on ``j`` alone, not on any other draw.
    """
    shape = (len(keys), count)
    seeds = np.asarray(keys, dtype=np.uint64)[:, None]
    counter = np.broadcast_to(np.arange(count, dtype=np.uint64), shape)
    zero = np.zeros(shape, dtype=np.uint64)
    high, low, _, _ = philox((seeds & _LOW, seeds >> _HALF), (counter, zero, zero, zero))
    bits = (high << np.uint64(21)) ^ (low >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53


def philox(key: tuple[Words, Words], counter: tuple[Words, Words, Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") over arrays of one shape.

    Args:
        key: two words.
        counter: four words.

    Returns:
        Four random words.
    """
    a, b, c, d = counter
    left, right = key
    for _ in range(10):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> _HALF) ^ b ^ left, second & _LOW, (first >> _HALF) ^ d ^ right, first & _LOW
        left, right = (left + _WEYL[0]) & _LOW, (right + _WEYL[1]) & _LOW
    return a, b, c, d
