"""Responses in one packed sequence: Burnish's own plan, for models whose layers take it."""

from __future__ import annotations

from typing import Literal

from torch import nn

from burnish.language.cost import cheapest
from burnish.language.logprobs import ResponseStates
from burnish.language.model import LanguageModel
from burnish.language.rows import Layout, Table, lay_out
from burnish.types.batch import to_device
from burnish.types.completion import Completion


def packed_states(
    model: LanguageModel, network: nn.Module, completion: Completion, *, layout: Layout | Literal["auto"]
) -> ResponseStates:
    """States of a micro-batch, in one forward pass of the decoder; see ``LanguageModel.response_states``."""
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
