"""Responses of the greatest length, of which a forecast decodes the first tokens and the last one.

What lies between them is a cache that grows, which is done to it without computing anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from burnish.forecast.counter import CACHES, LiveBytes
from burnish.language.decoding import DecodingRows

WRITTEN = 3  # tokens of a response that are decoded
ORDINARY = 7  # a token that no response ends with


@contextmanager
def endless(
    counter: LiveBytes, *, skips: bool, conversations: int = 0, tokens: int = 0, most: int = 0
) -> Iterator[None]:
    """Responses are written until their limit.

    Args:
        counter: which is active.
        skips: write their first tokens, and then the last one, with a cache that has grown as it would have on the way.
        conversations: that are kept for their next turn.
        tokens: of each of them.
        most: bytes that they may take.
    """
    import burnish.language.decoding as module
    from burnish.language.fast_decoder import FastDecoder
    from burnish.language.layers import Layers
    from burnish.language.model.class_cache import Cached, ClassDecoder

    way = _Way(counter, skips=skips)

    def held(each: int) -> Tensor:
        """Memory of conversations of so many bytes."""
        with counter.made_as(CACHES):
            return torch.empty(min(each * conversations, most), dtype=torch.uint8)

    def ordinary(weights: Tensor, noise: Tensor) -> Tensor:
        return torch.full((len(weights),), ORDINARY)

    def stepping(self: Layers, x: Tensor, rotation: Tensor, cache: Any) -> Tensor:
        counter.label(CACHES, cache.memory)
        if columns := way.columns():
            _lengthened(counter, cache, columns)
        return step(self, x, rotation, cache)

    def fast(self: FastDecoder, *given: Any) -> None:
        way.begin(self.rows)
        layers = self.layers
        others = held(2 * len(layers.layers) * layers.pairs * layers.width * layers.compute.itemsize * tokens)
        run(self, *given)
        del others

    def own_stepping(self: Cached, *given: Any) -> None:
        counter.label(CACHES, _held(self))
        if columns := way.columns():
            _lengthened_own(counter, self, columns)
        own_step(self, *given)

    def own(self: ClassDecoder, *given: Any) -> None:
        way.begin(self.rows)  # each batch has a cache of its own
        decode(self, *given)

    step, run, own_step, decode = Layers.step, FastDecoder.run, Cached.step, ClassDecoder._decode
    replaced: list[tuple[Any, str, Any]] = [
        (module, "choose", ordinary), (Layers, "step", stepping), (FastDecoder, "run", fast),
        (Cached, "step", own_stepping), (ClassDecoder, "_decode", own),
    ]  # fmt: skip
    with ExitStack() as stack:
        for owner, name, function in replaced:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, function)
        yield


class _Way:
    """How far responses have come."""

    def __init__(self, counter: LiveBytes, *, skips: bool) -> None:
        self.counter, self.skips = counter, skips
        self._longest: int | None = None  # of the rows, before they were cut
        self._left = self._steps = 0

    def begin(self, rows: DecodingRows) -> None:
        """Rows begin to be written."""
        if not self.skips:
            return
        self._left, self._steps = max(rows.longest - WRITTEN, 0), 0
        rows.cut(WRITTEN)

    def columns(self) -> int:
        """By how many tokens a cache is to grow before a step."""
        self._steps += 1
        if self._steps != WRITTEN - 1:
            return 0
        left, self._left = self._left, 0
        return left


def _lengthened(counter: LiveBytes, cache: Any, columns: int) -> None:
    """Let a cache grow by so many columns, one after the other as far as memory is concerned."""
    with counter.made_as(CACHES):
        while cache.columns < cache.end + columns:
            cache._reserve(cache.columns + 1)
    cache.end += columns


def _layers(cached: Any) -> list[Any]:
    """The layers of a class's own cache, where it is of a kind that transformers has in common."""
    from burnish.language.model.class_cache import caches

    found: list[Any] = []
    for name in caches():
        found += getattr(cached.arguments.get(name), "layers", ())
    return found


def _held(cached: Any) -> Iterator[Any]:
    """Tensors of a class's own cache; those of recurrent layers are in dictionaries."""
    for layer in _layers(cached):
        for value in vars(layer).values():
            yield from value.values() if isinstance(value, dict) else (value,)


def _lengthened_own(counter: LiveBytes, cached: Any, columns: int) -> None:
    """The same for a class's own cache, a layer after the other: each is copied when a token is added."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    width = cached.ids.shape[1]
    cached.ids = torch.cat([cached.ids, cached.ids[:, -1:].expand(-1, columns)], 1)
    for name, value in cached.arguments.items():  # masks, positions and kinds
        if isinstance(value, Tensor) and value.shape[-1] in (width, width + 1):
            cached.arguments[name] = torch.cat([value, value[..., -1:].expand(*value.shape[:-1], columns)], -1)
    for layer in _layers(cached):
        if not isinstance(layer, DynamicLayer) or not layer.is_initialized:
            continue  # recurrent states are as large as before
        held = layer.keys.shape[-2]
        more = columns
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length += columns
            more = min(columns, max(layer.sliding_window - 1 - held, 0))
        with counter.made_as(CACHES):
            for name in ("keys", "values"):
                old = getattr(layer, name)
                setattr(layer, name, old.new_empty(*old.shape[:-2], held + more, old.shape[-1]))
                del old
