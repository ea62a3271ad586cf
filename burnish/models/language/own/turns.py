"""Conversations in a class's own cache, taken out of a batch and put together again: they go on after a turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.models.language.own.cache import Cached, caches
from burnish.models.language.own.collation import KINDS, Inputs

STATES = ("conv_states", "recurrent_states")  # of layers without keys, by number; they have no columns


def taken(cached: Cached, row: int, columns: int) -> Cached:
    """A copy of one row, with as many columns as it has tokens: those before are padding."""
    arguments = {name: _apart(value) if name in caches() else value for name, value in _kept(cached).items()}
    own = Cached(cached.forwards, cached.network, cached.ids, arguments)
    _resize(own, columns)
    own.select(torch.tensor([row], device=own.ids.device))
    return own


def joined(parts: Sequence[Cached]) -> Cached:
    """The rows of several, in order, padded on the left to the longest; the parts are used up."""
    longest = max(part.ids.shape[1] for part in parts)
    first = parts[0]
    for part in parts:
        part.arguments = _kept(part)
        _resize(part, longest)
    arguments: Inputs = {"use_cache": True}
    for name in dict.fromkeys(name for part in parts for name in part.arguments if name != "use_cache"):
        values = [part.arguments.get(name) for part in parts]
        if name in caches():
            arguments[name] = _together(values)
        else:  # kinds of tokens are given only where a prompt has some
            blanks = [torch.zeros_like(part.arguments["attention_mask"]) for part in parts]
            known = [blank if value is None else value for blank, value in zip(blanks, values, strict=True)]
            arguments[name] = torch.cat(known, 1 if name == "position_ids" and known[0].ndim == 3 else 0)
    own = Cached(first.forwards, first.network, torch.cat([part.ids for part in parts]), arguments)
    if all(part.logits.shape[1] for part in parts):
        own.logits = torch.cat([part.logits for part in parts])
    return own


def size(cached: Cached) -> int:
    """Bytes of the caches."""
    held = (value for name, value in cached.arguments.items() if name in caches())
    return sum(tensor.nbytes for value in held for layer in value.layers for tensor in tensors_of(layer))


def _kept(cached: Cached) -> Inputs:
    """What of the arguments has a column per token; media are in the cache already."""
    names = {"attention_mask", "position_ids", "use_cache", *caches()}
    return {name: value for name, value in cached.arguments.items() if name in names or name.endswith(KINDS)}


def _apart(cache: Any) -> Any:
    """A cache that may be changed; its tensors are those of the other."""
    from transformers import DynamicCache

    if type(cache) is not DynamicCache or not {type(layer).__name__ for layer in cache.layers} <= LAYERS:
        raise NotImplementedError(f"nothing is known of a {type(cache).__name__} with {cache}")
    own = copy(cache)
    own.layers = [copy(layer) for layer in cache.layers]
    for layer in own.layers:
        vars(layer).update({name: dict(states) for name in STATES if (states := vars(layer).get(name)) is not None})
    return own


LAYERS = {
    "DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer", "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer",
}  # fmt: skip


def has_keys(layer: Any) -> bool:
    """Whether a layer of a cache holds keys and values of tokens."""
    return getattr(layer, "is_initialized", False) and getattr(layer, "keys", None) is not None


def tensors_of(layer: Any) -> Iterator[Tensor]:
    """All that a layer of a cache holds."""
    if has_keys(layer):
        yield from (layer.keys, layer.values)
    for name in STATES:
        yield from (state for state in getattr(layer, name, {}).values() if state is not None)


def _resize(cached: Cached, columns: int) -> None:
    """Cut columns at the beginning, which are padding, or add some."""
    more = columns - cached.ids.shape[1]
    if not more:
        return
    cached.ids = F.pad(cached.ids, (more, 0), value=cached.forwards.pad)
    for name, value in cached.arguments.items():
        if isinstance(value, Tensor):
            cached.arguments[name] = F.pad(value, (more, 0))
        elif name in caches():
            for layer in value.layers:
                _resize_layer(layer, columns)


def _resize_layer(layer: Any, columns: int) -> None:
    if not has_keys(layer):
        return
    held = columns
    if hasattr(layer, "sliding_window"):
        layer.cumulative_length = columns
        held = min(columns, layer.sliding_window - 1)
    for name in ("keys", "values"):
        tensor = getattr(layer, name)
        setattr(layer, name, F.pad(tensor, (0, 0, held - tensor.shape[-2], 0)))


def _together(several: Sequence[Any]) -> Any:
    """Caches of the same columns as one."""
    own = _apart(several[0])
    for number, layer in enumerate(own.layers):
        others = [one.layers[number] for one in several]
        if has_keys(layer):
            layer.keys = torch.cat([other.keys for other in others])
            layer.values = torch.cat([other.values for other in others])
        for name in STATES:
            for key, state in vars(layer).get(name, {}).items():
                if state is not None:
                    vars(layer)[name][key] = torch.cat([vars(other)[name][key] for other in others])
    return own
