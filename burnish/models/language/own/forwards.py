"""The forward of a class of transformers, as it is: its arguments, and the states that its head is given."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from burnish.models.language.own.collation import Collation, Conversation, Inputs
from burnish.types.batch import to_device


class Forwards:
    """Runs conversations through a network of one class."""

    def __init__(self, network: Any, collation: Collation, *, pad: int, compute: torch.dtype) -> None:
        self.collation, self.pad, self.compute = collation, pad, compute
        self.accepted = frozenset(accepted(type(network)))
        self.counts = True  # positions are given; else a class counts them otherwise than when it decodes

    def inputs(
        self, network: Any, conversations: Sequence[Conversation], *, side: Literal["left", "right"] = "right"
    ) -> Inputs:
        """Arguments of a forward, with the class's own positions."""
        inputs = self.collation.padded(conversations, self.pad, side=side)
        if self.counts and "position_ids" in self.accepted:  # counted where the tokens are: a GPU would be waited for
            rest = {name: value for name, value in inputs.items() if name != "input_ids" and name in self.accepted}
            inputs["position_ids"] = network._prepare_position_ids_for_generation(inputs["input_ids"], rest)
        return self.placed(network, inputs)

    def placed(self, network: Any, inputs: Inputs) -> Inputs:
        """What the forward takes of some tensors, where the network is and in the precision of its weights."""
        device = next(network.parameters()).device
        inputs = {name: to_device(value, device) for name, value in inputs.items() if name in self.accepted}
        return inputs | {name: value.to(network.dtype) for name, value in inputs.items() if value.is_floating_point()}

    def states(self, network: Any, inputs: Inputs, *, logits: bool = False) -> tuple[Tensor, Tensor | None]:
        """States [B, L, D] that the head is given, and its logits [B, L, V] where they are asked for."""
        out, states = self.call(network, inputs | {"use_cache": False}, logits="all" if logits else "last")
        return states, out.logits if logits else None

    def precision(self, inputs: Inputs) -> Any:
        """The context of a forward pass."""
        device = next(value.device.type for value in inputs.values() if isinstance(value, Tensor))
        return torch.autocast(device, self.compute, enabled=self.compute != torch.float32, cache_enabled=False)

    def call(self, network: Any, inputs: Inputs, *, logits: Literal["all", "last"]) -> tuple[Any, Tensor]:
        """The class's output, and the states [B, L, D] that its head is given; logits for all tokens, or the last."""
        seen: list[Tensor] = []

        def head(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            seen.append(given[0])
            return None if logits == "all" else (given[0][:, -1:], *given[1:])

        hook = network.get_output_embeddings().register_forward_pre_hook(head)
        try:
            with self.precision(inputs):
                out = network(**inputs, return_dict=True)
        finally:
            hook.remove()
        if not seen:
            raise HeadUnusedError
        return out, seen[0]


def accepted(kind: type) -> Iterator[str]:
    """Names of the arguments of a class's forward; where it passes others on, those of the classes above it too."""
    for one in kind.__mro__:
        if "forward" in vars(one):
            parameters = inspect.signature(vars(one)["forward"]).parameters
            yield from parameters
            if not any(value.kind is value.VAR_KEYWORD for value in parameters.values()):
                return
        if one is nn.Module:
            return


class HeadUnusedError(Exception):
    """The forward of a class doesn't call the module that it names as its head."""


def recomputing(network: nn.Module) -> list[nn.Module]:
    """Layers that are computed again in the backward pass; they keep nothing in a cache."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [layer for layer in network.modules() if isinstance(layer, GradientCheckpointingLayer) and layer.training]


@contextmanager
def caching(network: nn.Module) -> Iterator[None]:
    """Layers keep what they add to a cache, also those that drop it under gradient checkpointing."""
    layers = recomputing(network)
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True
