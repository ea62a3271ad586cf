"""States of responses by a class's own forward: each with its prompt, or after a prompt that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from burnish.language.logprobs import ResponseStates
from burnish.models.language.own.cache import Cached
from burnish.models.language.own.collation import Conversation, Lengths
from burnish.models.language.own.forwards import Forwards
from burnish.types.batch import to_device
from burnish.types.completion import Completion
from burnish.utils.errors import UserError


def padded_states(
    forwards: Forwards,
    network: Any,
    completion: Completion,
    *,
    fill: dict[str, int],
    lengths: Lengths,
    logits: bool,
    single: bool = False,
) -> ResponseStates:
    """Each response with its prompt, padded on the right.

    Args:
        fill: kinds of the policy's tokens.
        lengths: of rows that share a forward.
        logits: of the class's head too.
        single: all of them must be in one forward.

    Raises:
        UserError: they can't be.
    """
    conversations = Conversation.of(completion, fill)
    device = next(network.parameters()).device
    groups = forwards.collation.groups(conversations, lengths)
    if single and len(groups) > 1:
        raise UserError(
            f"{type(network).__name__} can't have the pictures and videos of a micro-batch in one forward, which "
            "sharded weights and router losses need; train it in one process, or on data with media of one kind"
        )
    prompts = [completion.prompts.table.lengths[number] for number in completion.prompts.index.tolist()]
    hidden, scores, index, start = [], [], {}, 0
    for group in groups:
        some = [conversations[row] for row in group]
        states, heads = forwards.states(network, forwards.inputs(network, some), logits=logits)
        hidden.append(states.flatten(0, 1))
        scores.append(heads.flatten(0, 1) if heads is not None else states)
        for row in group:
            # a token is predicted from the one before it
            index[row] = start + prompts[row] - 1 + completion.mask[row].nonzero().flatten()
            start += states.shape[1]
    order = to_device(torch.cat([index[row] for row in range(len(conversations))]).to(torch.long), device)
    return ResponseStates(
        _joined(hidden).index_select(0, order),
        to_device(completion.mask, device),
        order,
        logits=_joined(scores).index_select(0, order) if logits else None,
    )


def shared_states(
    forwards: Forwards, network: Any, completion: Completion, *, lengths: Lengths, counted: bool
) -> ResponseStates:
    """Each prompt once, and its responses after it by the class's own cache, with gradients through both.

    Args:
        lengths: of prompts that share forwards; different ones are padded on the left.
        counted: the class's cache says how many tokens it holds.
    """
    device = next(network.parameters()).device
    used, owner = completion.prompts.index.unique(return_inverse=True)
    prompts = Conversation.prompts(completion.prompts.table.select(used))
    groups = forwards.collation.groups(prompts, lengths)
    parts: dict[int, Tensor] = {}
    for group in groups:
        place = {prompt: number for number, prompt in enumerate(group)}
        rows = [row for row, prompt in enumerate(owner.tolist()) if prompt in place]
        with out_of_place():
            cached = Cached.prefilled(forwards, network, [prompts[prompt] for prompt in group])
            if counted and cached.length != cached.ids.shape[1]:
                raise AssertionError(f"the cache holds {cached.length} of {cached.ids.shape[1]} tokens of the prompts")
            first = cached.states[:, -1:]
            own = to_device(torch.tensor([place[int(owner[row])] for row in rows]), device)
            ids = completion.ids[rows, : max(int(completion.length[rows].max()) - 1, 0)]
            states = first.index_select(0, own)
            if ids.shape[1]:
                real = torch.arange(ids.shape[1]) < completion.length[rows, None] - 1
                cached.select(own)
                cached.step(to_device(ids, device), to_device(real, device))
                states = torch.cat([states, cached.states], 1)
        for number, row in enumerate(rows):
            parts[row] = states[number, to_device(completion.mask[row].nonzero().flatten(), device)]
    hidden = torch.cat([parts[row] for row in range(len(completion))])
    mask = to_device(completion.mask, device)
    return ResponseStates(hidden, mask, torch.arange(len(hidden), device=device))


@contextmanager
def out_of_place() -> Iterator[None]:
    """Recurrent states are replaced, not overwritten: the backward pass needs the old ones."""
    from transformers.cache_utils import LinearAttentionLayer

    kinds: list[Any] = [LinearAttentionLayer]
    originals = {(kind, name): getattr(kind, name) for kind in kinds for name in _UPDATES}

    def replacing(original: Any, states: str) -> Any:
        def update(layer: Any, new: Tensor, state_idx: int = 0, **more: Any) -> Tensor:
            held = getattr(layer, states)
            if held[state_idx] is not None:
                held[state_idx] = held[state_idx].clone()
            found: Tensor = original(layer, new, state_idx=state_idx, **more)
            return found

        return update

    try:
        for (kind, name), original in originals.items():
            setattr(kind, name, replacing(original, _UPDATES[name]))
        yield
    finally:
        for (kind, name), original in originals.items():
            setattr(kind, name, original)


_UPDATES = {"update_conv_state": "conv_states", "update_recurrent_state": "recurrent_states"}


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
