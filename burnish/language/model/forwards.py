"""The forward of a class of transformers, as it is: its arguments, and the states that its head is given."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from burnish.language.attention import Plan, attend
from burnish.language.model.base import Embedded
from burnish.language.model.collation import Collation, Conversation, Inputs
from burnish.language.packing import ResponseStates
from burnish.types.batch import to_device
from burnish.types.completion import Completion, Features
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.language.model.capabilities import Capabilities


class Forwards:
    """Runs conversations through a network of one class."""

    def __init__(self, network: Any, collation: Collation, *, pad: int, compute: torch.dtype) -> None:
        self.collation, self.pad, self.compute = collation, pad, compute
        self.accepted = frozenset(accepted(type(network)))

    def inputs(
        self, network: Any, conversations: Sequence[Conversation], *, side: Literal["left", "right"] = "right"
    ) -> Inputs:
        """Arguments of a forward, with the class's own positions."""
        inputs = self.collation.padded(conversations, self.pad, side=side)
        if "position_ids" in self.accepted:  # counted where the tokens are: a GPU would be waited for
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

    def responses(self, network: Any, completion: Completion, known: Capabilities, *, single: bool) -> ResponseStates:
        """States of the policy's tokens: each response with its prompt, padded on the right.

        Args:
            network: that runs them.
            completion: prompts and responses.
            known: whether rows share a forward, and logits of the class's head are needed.
            single: all of them must be in one forward.

        Raises:
            UserError: they can't be.
        """
        conversations, logits = Conversation.of(completion, known.fill), known.own_logits
        groups = self.collation.groups(conversations, together=known.padded)
        if single and len(groups) > 1:
            raise UserError(
                f"{type(network).__name__} can't have the media of a micro-batch in one forward, which sharded weights "
                "and router losses need; train it in one process, or on text"
            )
        device = next(network.parameters()).device
        prompts = [completion.prompts.table.lengths[number] for number in completion.prompts.index.tolist()]
        hidden, scores, index, start = [], [], {}, 0
        for group in groups:
            rows = [conversations[row] for row in group]
            states, heads = self.states(network, self.inputs(network, rows), logits=logits)
            hidden.append(states.flatten(0, 1))
            scores.append(heads.flatten(0, 1) if heads is not None else states)
            for row in group:
                # a token is predicted from the one before it
                index[row] = start + prompts[row] - 1 + completion.mask[row].nonzero().flatten()
                start += states.shape[1]
        order = to_device(torch.cat([index[row] for row in range(len(conversations))]).to(torch.long), device)
        return ResponseStates(
            torch.cat(hidden).index_select(0, order),
            to_device(completion.mask, device),
            order,
            logits=torch.cat(scores).index_select(0, order) if logits else None,
        )

    def embed(
        self, network: Any, decoder: nn.Module, ids: Tensor, slots: Tensor, features: Sequence[Features]
    ) -> Embedded:
        """Embeddings of ids [M] with their media, in order, as the decoder gets them from the class's forward.

        Raises:
            ValueError: the decoder gets tensors that are not told apart by token.
        """
        if not features:
            return Embedded(network.get_input_embeddings()(ids), slots, [])
        if unknown := {name for one in features for name in one.tensors} - self.collation.axes.keys():
            raise ValueError(f"{', '.join(sorted(unknown))} of several prompts can't be joined")
        inputs: Inputs = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None], "use_cache": False}
        inputs |= self.placed(network, self.collation.media(features))
        if "position_ids" in self.accepted:  # they are given to the decoder itself
            inputs["position_ids"] = torch.arange(len(ids), device=ids.device)[None]

        def stop(module: nn.Module, args: Any, given: Inputs) -> None:
            raise ReachedError(dict(given))

        hook = decoder.register_forward_pre_hook(stop, with_kwargs=True)
        given: Inputs = {}
        try:
            with self.precision(inputs):
                network(**inputs)
        except ReachedError as reached:
            given = reached.given
        finally:
            hook.remove()
        deep, mask = given.pop("deepstack_visual_embeds", None), given.pop("visual_pos_masks", None)
        others = [name for name, value in given.items() if isinstance(value, Tensor | list) and name not in GIVEN]
        if others or given.get("inputs_embeds") is None:
            raise ValueError(f"the decoder is given {', '.join(others) or 'no embeddings'}")
        return Embedded(given["inputs_embeds"][0], slots if mask is None else mask[0], list(deep or []))

    def packed(self, decoder: Any, embedding: Embedded, source: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        """Last hidden states [N, D] of a packed sequence ``source`` [N] of a table, at positions [A, N]."""
        slots, deep = embedding.at(source)
        inputs: Inputs = {"visual_pos_masks": slots, "deepstack_visual_embeds": deep} if deep else {}
        inputs |= {
            "inputs_embeds": embedding.tokens.index_select(0, source)[None],
            "position_ids": positions[:, None] if len(positions) > 1 else positions,
            # a mask that is made already; the plan takes its place
            "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=source.device),
        }
        with self.precision(inputs):
            found: Tensor = decoder(**inputs, use_cache=False, plan=plan).last_hidden_state[0]
        return found

    def precision(self, inputs: Inputs) -> Any:
        """The context of a forward pass."""
        device = next(value.device.type for value in inputs.values() if isinstance(value, Tensor))
        # a forward uses each weight once; a cache of the cast ones would only keep a second network until it ends
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


@contextmanager
def caching(network: nn.Module) -> Iterator[None]:
    """Layers keep what they add to a cache, also those that drop it under gradient checkpointing."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [layer for layer in network.modules() if isinstance(layer, GradientCheckpointingLayer) and layer.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


DECODER, TOWER = "burnish_planned", "burnish_flash"  # towers hand boundaries of pictures to what is called flash
GIVEN = ("position_ids", "attention_mask", "inputs_embeds", "input_ids")


class ReachedError(Exception):
    """The decoder was called; not an error."""

    def __init__(self, given: Inputs) -> None:
        self.given = given


def planned(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    plan: Plan | None = None, cu_seq_lens_q: Tensor | None = None, **more: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention by a plan or the boundaries of pictures where there are some, and as transformers has it otherwise."""
    if plan is not None or cu_seq_lens_q is not None:
        if unknown := [name for name in ("s_aux", "softcap") if more.get(name) is not None]:
            raise ValueError(f"attention with {', '.join(unknown)} has no plan")
        return attend(module, query, key, value, attention_mask, plan=plan, cu_seq_lens_q=cu_seq_lens_q, **more)
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    found: tuple[Tensor, Tensor | None] = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    return found


def switch(network: Any, decoder: Any, *, on: bool, tower: bool = True) -> None:
    """Let a decoder's layers attend by a plan, and its vision tower all pictures at once; else they do as before."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    for name in (DECODER, TOWER):
        AttentionInterface.register(name, planned)
        AttentionMaskInterface.register(name, sdpa_mask)
    decoder.config._attn_implementation = DECODER if on else "sdpa"
    vision: Any = getattr(network.config, "vision_config", None)
    if getattr(vision, "_attn_implementation", None) in ("sdpa", TOWER):
        vision._attn_implementation = TOWER if on and tower else "sdpa"
