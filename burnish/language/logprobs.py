"""States, log-probs and entropies of response tokens, and of no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from burnish.language.cost import cheapest
from burnish.language.head import chosen_scores
from burnish.language.model import LanguageModel
from burnish.language.rows import Layout, Table, lay_out
from burnish.types.batch import to_device
from burnish.types.completion import Completion


@dataclass(frozen=True)
class ResponseStates:
    """The states that predict the tokens of the policy, in order of rows."""

    hidden: Tensor  # [R, D] last hidden states
    mask: Tensor  # [B, T] bool: the R tokens
    index: Tensor  # [R] long: indices of the states in the packed sequence

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
        model: the family.
        network: the policy, the reference, or any other network of that family.
        completion: [B] responses.
        layout: of the forward pass, which changes values by rounding only: ``padded``, ``packed``, ``shared``
            (responses share their prompt), or ``auto`` for the cheapest.
    """
    table = Table.of(completion, model.placeholders)
    if layout == "auto":
        layout = cheapest(table, model)
    if not any(len(response) for response in table.response):
        layout = "shared"  # it contains the prompts, so that there is a graph
    packed = lay_out(table, layout)
    device = next(network.parameters()).device
    embedded = model.embed(network, to_device(table.ids, device), to_device(table.slots, device), table.features)
    source = to_device(packed.source, device)
    positions = to_device(table.positions, device)[:, source]
    states = model.states(network, embedded, source, positions, packed.plan(device))
    chosen = to_device(packed.predicts[table.chosen], device)
    return ResponseStates(states.index_select(0, chosen), to_device(completion.mask, device), chosen)


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
    logprob, entropy = chosen_scores(
        states.hidden, model.head(network), ids, temperature=temperature, banned=to_device(model.banned, device)
    )
    return TokenScores(states.scatter(logprob), states.scatter(entropy))
