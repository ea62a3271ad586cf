"""From logits to tokens: temperature, the filters that users know, and one uniform number per token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 512  # tokens of a large vocabulary that are summed together


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How responses are sampled.

    Whatever filters are on, reported log-probs are those of the full distribution at ``temperature`` (at 1 where it
    is 0), without the tokens that can't be written at all: the one that training computes.
    """

    max_new_tokens: int
    min_new_tokens: int = 0  # before these neither a stop id nor a stop string ends a response
    temperature: float = 1.0  # 0 takes the most likely token
    first_temperature: float | None = None  # of the first token (FIRE sampling, arXiv:2410.21236); its log-prob is not
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # divides logits of tokens that were there before (CTRL, arXiv:1909.05858)
    stop: tuple[str, ...] = ()  # strings that end a response; they stay part of it

    def __post_init__(self) -> None:
        wrong = {
            "max_new_tokens": (self.max_new_tokens < 1, ">= 1"),
            "min_new_tokens": (not 0 <= self.min_new_tokens <= self.max_new_tokens, "between 0 and max_new_tokens"),
            "temperature": (not self.temperature >= 0, ">= 0"),
            "first_temperature": (self.first_temperature is not None and not self.first_temperature > 0, "> 0 or None"),
            "top_k": (self.top_k < 0, ">= 0; 0 keeps all"),
            "top_p": (not 0 < self.top_p <= 1, "in (0, 1]; 1 keeps all"),
            "min_p": (not 0 <= self.min_p < 1, "in [0, 1); 0 keeps all"),
            "repetition_penalty": (not self.repetition_penalty > 0, "> 0; 1 is none"),
            "stop": (any(not text for text in self.stop), "made of strings that are not empty"),
        }
        for name, (is_wrong, range_) in wrong.items():
            if is_wrong:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {range_}")

    @property
    def scored_at(self) -> float:
        """Temperature of the distribution that log-probs refer to."""
        return self.temperature or 1.0

    @property
    def filters(self) -> bool:
        return bool(self.top_k or self.top_p < 1 or self.min_p)


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits [B, V] with those of seen tokens [B, V] bool divided by the penalty, or multiplied where negative."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_likely(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [B, V] with -inf where top-k, min-p or top-p leave a token out, in this order; the best always stays."""
    if sampling.top_k and sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.min_p:
        least = logits.amax(-1, keepdim=True) + torch.tensor(sampling.min_p, dtype=logits.dtype).log().item()
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1:
        ranked, order = logits.sort(-1, descending=True)
        chances = ranked.softmax(-1)
        # a token stays as long as those before it do not make up top_p
        out = chances.cumsum(-1) - chances >= sampling.top_p
        out[:, 0] = False  # also where top_p is too small for the chances' precision
        logits = logits.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)
    return logits


def choose(weights: Tensor, uniform: Tensor) -> Tensor:
    """Tokens [B] by inversion of the cumulative distribution of weights [B, V] at uniform numbers [B] in [0, 1)."""
    if weights.shape[-1] <= 2 * BLOCK:
        return _locate(_cumulative(weights), uniform)[0]
    # of a large vocabulary first a block of it, then a token of that block: little is summed one by one
    blocks = F.pad(weights, (0, -weights.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(-1)
    cumulative = _cumulative(sums)
    block, aim = _locate(cumulative, uniform)
    here = block[:, None]
    behind = (cumulative.gather(-1, here)[:, 0] - aim) / sums.gather(-1, here)[:, 0]
    chosen = blocks[torch.arange(len(block), device=block.device), block]
    return block * BLOCK + _locate(_cumulative(chosen), (1 - behind).clamp(0, 1))[0]


def _cumulative(weights: Tensor) -> Tensor:
    return weights.cumsum(-1, dtype=torch.float64)


def _locate(cumulative: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Places [B] where cumulative weights [B, N] pass a part [B] of their total, and that part as a weight [B]."""
    total = cumulative[:, -1]
    # rounding may not carry the product to the total, behind which there is no token
    aim = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
    place = torch.searchsorted(cumulative, aim[:, None], right=True)[:, 0]
    return place.clamp_max(cumulative.shape[-1] - 1), aim  # weights that are no numbers are passed nowhere
