"""States, log-probs and entropies of response tokens, and of no others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from burnish.language.contexts import unfolded
from burnish.language.head import chosen_scores, scores_of_logits
from burnish.language.model import LanguageModel
from burnish.language.rows import Layout
from burnish.types.batch import to_device
from burnish.types.completion import Completion


@dataclass(frozen=True)
class ResponseStates:
    """The states that predict the tokens of the policy, in order of rows."""

    hidden: Tensor  # [R, D] last hidden states
    mask: Tensor  # [B, T] bool: the R tokens
    index: Tensor  # [R] long: indices of the states in the sequences of the forward pass, one after the other
    logits: Tensor | None = None  # [R, V] where the head is more than a product

    def scatter(self, values: Tensor) -> Tensor:
        """Values [R] of the chosen tokens as [B, T] float32, 0 elsewhere."""
        out = torch.zeros(self.mask.shape, dtype=torch.float32, device=values.device)
        return out.masked_scatter(self.mask, values.float())


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
