"""States, log-probs and entropies of response tokens, and of no others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from burnish.language.model.universal import LanguageModel
from burnish.language.packing import Layout, ResponseStates, unfolded
from burnish.types.batch import to_device
from burnish.types.completion import Completion


@dataclass(frozen=True)
class TokenScores:
    """Per response token; 0 for tokens that the policy didn't choose."""

    logprob: Tensor  # [B, T] float32
    entropy: Tensor  # [B, T] float32, in nats


def response_states(
    model: LanguageModel, network: nn.Module, completion: Completion, *, layout: Layout | Literal["auto"] = "auto"
) -> ResponseStates:
    """Run a micro-batch; each prompt's media are encoded once, and only states that predict a token are returned.

    Args:
        model: that reads and writes them.
        network: the policy, the reference, or any other network of its class.
        completion: [B] responses.
        layout: of the forward pass, which changes values by rounding only: ``padded``, ``packed``, ``shared``
            (responses share their prompt), or ``auto`` for the cheapest that the model can do.
    """
    rows = unfolded(completion)
    states = model.response_states(network, rows, layout=layout)
    return states if rows is completion else replace(states, mask=to_device(completion.mask, states.hidden.device))


def response_logprobs(
    model: LanguageModel,
    network: nn.Module,
    completion: Completion,
    *,
    temperature: float,
    layout: Layout | Literal["auto"] = "auto",
) -> TokenScores:
    """Log-prob and entropy of every token that the policy chose, at the sampling temperature, with gradients.

    Args:
        temperature: of sampling, above 0. Responses sampled greedily are scored at 1.

    Raises:
        ValueError: the temperature is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; log-probs need one above 0: score greedy responses at 1")
    states = response_states(model, network, completion, layout=layout)
    return score(model, network, states, completion, temperature=temperature)


def score(
    model: LanguageModel, network: nn.Module, states: ResponseStates, completion: Completion, *, temperature: float
) -> TokenScores:
    """Log-prob and entropy from states that are computed already, e.g. where a critic shares them."""
    device = states.hidden.device
    ids = to_device(completion.ids[completion.mask], device)
    banned = to_device(model.banned, device)
    if states.logits is not None:
        logprob, entropy = scores_of_logits(states.logits, ids, temperature=temperature, banned=banned)
    else:
        head = model.head(network)
        logprob, entropy = chosen_scores(
            states.hidden, head.weight, ids, temperature=temperature / head.scale, banned=banned, cap=head.cap
        )
    return TokenScores(states.scatter(logprob), states.scatter(entropy))


CHUNK = 2**24  # bytes of float32 logits in memory at once, on a CPU: about what its caches hold
GPU_CHUNK = 2**28  # on a GPU, which is idle while a product has few rows: 441 of a vocabulary of 152,064
KEEP = 2**22  # probabilities kept for the backward pass, if all fit; else they are recomputed


@dataclass(frozen=True)
class Head:
    """A language head: logits = scale * (weight @ state), and cap * tanh(logits / cap) where there is a cap."""

    weight: Tensor  # [V, D]
    scale: float = 1.0
    cap: float | None = None


def rows_at_once(vocabulary: int, device: torch.device) -> int:
    """Tokens whose logits are in memory together."""
    return max((CHUNK if device.type == "cpu" else GPU_CHUNK) // (4 * vocabulary), 1)


class _Scores(torch.autograd.Function):
    """Both outputs by chunks of tokens, with an analytic backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float, banned: Tensor, cap: float | None
    ) -> tuple[Tensor, Tensor]:
        size = rows_at_once(len(weight), hidden.device)
        keep = ids.numel() * len(weight) <= KEEP and (ctx.needs_input_grad[0] or ctx.needs_input_grad[1])
        logprobs, entropies, normalisers, kept = [], [], [], []
        for chunk, target in zip(hidden.split(size), ids.split(size), strict=True):
            logits = scaled_logits(chunk, weight, temperature, banned, cap)
            normaliser = logits.logsumexp(-1)
            logprobs.append(logits.gather(-1, target[:, None])[:, 0] - normaliser)
            logits -= normaliser[:, None]
            probabilities = logits.exp()
            # clamped, because a banned token gives 0 * -inf
            entropies.append(-logits.clamp_min_(-1e30).mul_(probabilities).sum(-1))
            normalisers.append(normaliser)
            if keep:
                kept.append(probabilities)
        entropy = torch.cat(entropies)
        ctx.save_for_backward(hidden, weight, ids, banned, torch.cat(normalisers), entropy, *kept)
        ctx.temperature, ctx.size, ctx.cap = temperature, size, cap
        ctx.set_materialize_grads(False)  # an entropy that is only logged costs nothing here
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, ids, banned, normaliser, entropy, *kept = ctx.saved_tensors
        by_logprob = torch.zeros_like(entropy) if by_logprob is None else by_logprob
        to_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for number, start in enumerate(range(0, len(ids), ctx.size)):
            rows = slice(start, min(start + ctx.size, len(ids)))
            if kept:
                probabilities = kept[number]
            else:
                logits = scaled_logits(hidden[rows], weight, ctx.temperature, banned, ctx.cap)
                probabilities = logits.sub_(normaliser[rows, None]).exp_()
            # d log p(id) = 1[id] - p;  d entropy = -p (log p + entropy)
            if by_entropy is None:
                slope = probabilities * -by_logprob[rows, None]
            else:
                surprise = probabilities.clamp_min(1e-38).log_().add_(entropy[rows, None]).mul_(by_entropy[rows, None])
                slope = surprise.add_(by_logprob[rows, None]).mul_(probabilities).neg_()
            slope.scatter_add_(1, ids[rows, None], by_logprob[rows, None])
            slope = slope.div_(ctx.temperature)
            if ctx.cap is not None:
                capped = scaled_logits(hidden[rows], weight, 1.0, banned[:0], ctx.cap)
                slope *= 1 - (capped / ctx.cap).square()  # d (cap tanh(x / cap)) = 1 - tanh(x / cap)^2
            slope = slope.to(weight.dtype)
            if to_hidden is not None:
                to_hidden[rows] = (slope @ weight).to(hidden.dtype)
            if to_weight is not None:
                to_weight += slope.T @ hidden[rows].to(weight.dtype)
        return to_hidden, None if to_weight is None else to_weight.to(weight.dtype), None, None, None, None


def scaled_logits(
    hidden: Tensor, weight: Tensor, temperature: float, banned: Tensor, cap: float | None = None
) -> Tensor:
    """Logits [N, V] float32 at a temperature; -inf for banned tokens."""
    logits = torch.nn.functional.linear(hidden.to(weight.dtype), weight).float()
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    if temperature != 1:
        logits /= temperature
    if len(banned):
        logits.index_fill_(-1, banned, -torch.inf)
    return logits


def chosen_scores(
    hidden: Tensor, weight: Tensor, ids: Tensor, *, temperature: float, banned: Tensor, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Log-prob of chosen tokens, and the entropy of the distributions they were chosen from.

    Memory doesn't grow with tokens x vocabulary: logits are computed in chunks, and again in the backward pass.

    Args:
        hidden: [N, D] state that predicts each token.
        weight: [V, D] of the language head.
        ids: [N] long; none of them banned.
        temperature: divides the logits, as in sampling; above 0.
        banned: [K] long, tokens without probability.
        cap: of the logits before they are divided: cap * tanh(logits / cap).

    Returns:
        Log-prob [N] and entropy [N] in nats, float32.
    """
    if not len(ids):
        empty = hidden.float().sum(-1)  # keeps the graph
        return empty, empty
    logprob, entropy = _Scores.apply(hidden, weight, ids, temperature, banned, cap)  # type: ignore[no-untyped-call]
    return logprob, entropy


def scores_of_logits(logits: Tensor, ids: Tensor, *, temperature: float, banned: Tensor) -> tuple[Tensor, Tensor]:
    """The same from logits [N, V], for models whose head is more than a product."""
    scaled = logits.float() / temperature
    if len(banned):
        scaled = scaled.index_fill(-1, banned, -torch.inf)
    logprobs = scaled.log_softmax(-1)
    chosen = logprobs.gather(-1, ids[:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs.clamp_min(-1e30)).sum(-1)
