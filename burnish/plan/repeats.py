"""What a run does many times alike, done once: calls without gradients, and the blocks that a network repeats.

What follows the first one of a kind gives tensors of the same shapes, and costs what the first one cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.checkpoint import checkpoint

from burnish.models.lora import AsInForward
from burnish.plan.counter import ACTIVATIONS, LiveBytes, Peak
from burnish.plan.fakes import is_fake

LEAST = 3  # blocks of a kind, from which on it pays to compute one of them
NUMBERS = ("idx", "id", "index")  # ends of names of attributes that only number the modules of a network


@dataclass(frozen=True)
class Like:
    """What makes a tensor like another one: without values, or with zeros where that one has some."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    fake: bool
    learned: bool  # whether it needs a gradient

    def __call__(self) -> Tensor:
        if self.fake:
            return torch.empty_strided(self.size, self.stride, dtype=self.dtype)
        with _disable_current_modes():
            return torch.zeros(self.size, dtype=self.dtype)


@dataclass(frozen=True)
class Part(Like):
    """One that is a part of larger memory."""

    place: int
    count: int  # of its numbers
    offset: int


@dataclass(frozen=True)
class Argument:
    """An argument that is returned."""

    number: int


def _described(value: Any) -> Any:
    """A tensor as what makes another one like it; other values as they are."""
    if not isinstance(value, Tensor):
        return value
    fake = is_fake(value)
    return Like(value.shape, value.stride() if fake else (), value.dtype, fake, value.requires_grad)


def _returned(value: Any, places: dict[int, int], leaves: Sequence[Any]) -> Any:
    """The same of what a call returns, which may be an argument, or share its memory with others."""
    if not is_fake(value):
        return _described(value)
    place, memory = _place(value), value.untyped_storage().nbytes()
    if place in places and value.shape == leaves[places[place]].shape:
        return Argument(places[place])
    if memory == value.nbytes:
        return _described(value)
    return Part(
        **vars(_described(value)), place=place, count=memory // value.itemsize, offset=int(value.storage_offset())
    )


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _shapes(value: Any) -> Any:
    """What tells calls apart that need other memory: tensors without values, and simple values; times are none."""
    if isinstance(value, Tensor | nn.Module):
        return _described(value) if isinstance(value, Tensor) else id(value)
    if isinstance(value, int | float | str | bool):
        return value
    if isinstance(value, list | tuple) and any(isinstance(one, Tensor | list | tuple) for one in value):
        return tuple(map(_shapes, value))
    if isinstance(value, tuple):
        return tuple(map(_shapes, value))
    return len(value) if hasattr(value, "__len__") else type(value)


@dataclass
class Calls:
    """What calls of a kind give, and cost."""

    outputs: list[Any]  # values, what makes tensors, or the arguments that are returned
    tree: Any
    forward: Peak
    kept: int  # bytes that are left behind, or wait for the backward pass
    inputs: list[int]  # arguments that wait for it
    backward: dict[Any, tuple[Peak, list[Any]]] = field(default_factory=dict)  # passes, and what makes their gradients

    def made(self) -> list[Tensor]:
        """The tensors among the outputs, of which some are parts of the same memory."""
        memory: dict[int, Tensor] = {}
        found = []
        for one in self.outputs:
            if isinstance(one, Part):
                if one.place not in memory:
                    memory[one.place] = torch.empty(one.count, dtype=one.dtype)
                found.append(memory[one.place].as_strided(one.size, one.stride, one.offset))
            elif isinstance(one, Like):
                found.append(one())
        return found

    def returned(self, made: Sequence[Tensor], leaves: Sequence[Any]) -> Any:
        """What a call returns, of its arguments and of tensors that were made for it."""
        tensors = iter(made)
        found = [next(tensors) if isinstance(one, Like) else one for one in self.outputs]
        return tree_unflatten([leaves[one.number] if isinstance(one, Argument) else one for one in found], self.tree)


class Once:
    """A function that is called many times alike: without gradients only the first call of a kind computes."""

    def __init__(
        self, function: Callable[..., Any], counter: LiveBytes, held: Callable[[], Any] = lambda: None
    ) -> None:
        """Args: ``held`` is what else than the shapes of arguments tells calls apart that need other memory."""
        update_wrapper(self, function)
        self.function, self.counter, self.held = function, counter, held
        self.known: dict[Any, Calls] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() or any(map(_is_cache, (*args, *kwargs.values()))):
            return self.function(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        key = self.held(), _shapes((args, tuple(kwargs.values())))
        if key not in self.known:
            self.known[key], found = self._first(leaves, args, kwargs)
            return found
        self.counter.repeated(self.known[key].forward)
        return self.known[key].returned(self.known[key].made(), leaves)

    def _first(self, leaves: Sequence[Any], args: Any, kwargs: Any, *, again: bool = False) -> tuple[Calls, Any]:
        """The first call of a kind; for its backward pass nothing waits if it is done ``again`` there."""
        places = {_place(leaf): number for number, leaf in enumerate(leaves) if is_fake(leaf)}
        waiting = set[int]()

        def waits(value: Tensor) -> Any:
            waiting.add(_place(value))
            return None if again else value.untyped_storage()  # a tensor would hold the graph that holds it

        with saved_tensors_hooks(waits, lambda value: value), self.counter.span() as span:
            before = self.counter.live
            found = self.function(*args, **kwargs)
            values, shape = tree_flatten(found)
            outputs = [_returned(value, places, leaves) for value in values]
            fresh = [one for one, kind in zip(values, outputs, strict=True) if isinstance(kind, Like) and kind.fake]
            kept = self.counter.live - before - self.counter.held(fresh)
        inputs = [] if again else [number for place, number in places.items() if place in waiting]
        return Calls(outputs, shape, span, kept, inputs), found


def _is_cache(value: Any) -> bool:
    """Whether an argument is a cache of keys and values, which every call fills."""
    return hasattr(value, "get_seq_length")


def _recomputing() -> int:
    """How many contexts there are, one in the other, whose activations a backward pass recomputes; 2 are several."""
    hooks = torch._C._autograd
    top = hooks._top_saved_tensors_default_hooks(True)
    if top is None:
        return 0
    hooks._pop_saved_tensors_default_hooks()
    around = hooks._top_saved_tensors_default_hooks(True)
    hooks._push_saved_tensors_default_hooks(*top)
    return 1 if around is None else 2


def repeat_blocks(network: nn.Module, counter: LiveBytes, *, recomputed: bool = False) -> None:
    """Have one block of each kind compute, of those that a network's lists of modules repeat.

    Args:
        network: which is not called yet; only blocks whose weights have no values are repeated.
        counter: which is active.
        recomputed: the network is a list of modules whose activations are recomputed one by one.
    """
    recomputed = getattr(network, "gradient_checkpointing", isinstance(network, nn.ModuleList) and recomputed)
    alike = defaultdict[Any, list[nn.Module]](list)
    for child in network.children():
        alike[_kind(child) if isinstance(network, nn.ModuleList) else id(child)].append(child)
    for blocks in alike.values():
        known: dict[Any, Calls] = {}
        for block in blocks:
            if len(blocks) < LEAST:
                repeat_blocks(block, counter, recomputed=recomputed)
            elif not isinstance(block.forward, Block) and all(map(is_fake, block.parameters())):
                block.forward = Block(block, counter, known, recomputed=recomputed)


def _kind(block: nn.Module) -> Any:
    """Equal for blocks that compute the same, by their classes, numbers and weights. What hooks do nobody knows."""
    if any(module._forward_hooks or module._forward_pre_hooks for module in block.modules() if module is not block):
        return id(block)
    made = [
        (name, type(module), sorted((key, value) for key, value in vars(module).items() if _plain(key, value)))
        for name, module in block.named_modules()
    ]
    weights = [(name, weight.shape, weight.dtype, weight.requires_grad) for name, weight in block.named_parameters()]
    return f"{made} {weights}"


def _plain(name: str, value: Any) -> bool:
    return isinstance(value, bool | int | float | str) and not name.endswith(NUMBERS)


class Block(Once):
    """The forward pass of a block: the first one of its kind computes, and so does the first backward pass."""

    def __init__(self, block: nn.Module, counter: LiveBytes, known: dict[Any, Calls], *, recomputed: bool) -> None:
        """Args: ``known`` are the calls of blocks of this kind, which may be ``recomputed`` by themselves."""
        super().__init__(block.forward, counter, self._adapters)
        self.block, self.known, self.as_in_forward = block, known, AsInForward(block)
        self.recomputed = recomputed and not hasattr(block, "gradient_checkpointing")  # else by its own forward
        self.adapted: list[Any] = [module for module in block.modules() if hasattr(module, "disable_adapters")]

    def _adapters(self) -> Any:
        casts = [getattr(layer, "cast", None) is not None for layer in self.adapted]
        return casts, [(layer.disable_adapters, *layer.active_adapters) for layer in self.adapted]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        regions = _recomputing() if torch.is_grad_enabled() else 0
        filled = any(isinstance(one, list) or _is_cache(one) for one in (*args, *kwargs.values()))
        if filled or regions > self.recomputed:  # lists may be changed; more than this block may be recomputed at once
            return self.function(*args, **kwargs)
        leaves, tree = tree_flatten((args, kwargs))
        again = regions > 0
        learns = torch.is_grad_enabled(), again, torch.is_autocast_enabled("cpu")
        key = str(self.held()), learns, _shapes((args, tuple(kwargs.values())))
        if key not in self.known:
            calls, found = self._first(leaves, args, kwargs, again=again)
            if not torch.is_grad_enabled():
                if calls.kept <= 0:  # nor does the next one leave anything behind
                    self.known[key] = calls
                return found
            del found
            if calls.kept > 0:
                with self.counter.quiet():  # without what the first call made for all that follow
                    calls = self._first(leaves, args, kwargs, again=again)[0]
            self.known[key] = calls
        else:
            self.counter.repeated(self.known[key].forward)
        calls, learned = self.known[key], self.learned(leaves) if torch.is_grad_enabled() else []
        if not learned:
            return calls.returned(calls.made(), leaves)
        held = leaves if again else [leaves[number] for number in calls.inputs]
        call = Call(self, calls, [_described(leaf) if is_fake(leaf) else leaf for leaf in leaves], tree, again, held)
        return calls.returned(_Repeated.apply(call, *learned), leaves)  # type: ignore[no-untyped-call]

    def learned(self, leaves: Sequence[Any]) -> list[Tensor]:
        """Arguments and weights that need a gradient."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return [one for one in (*tensors, *self.block.parameters()) if one.requires_grad]


@dataclass
class Call:
    """A call of a block that has a backward pass."""

    block: Block
    calls: Calls
    leaves: Any  # of its arguments
    tree: Any
    again: bool  # whether its forward pass is done again in its backward pass
    held: Any  # what waits for that: arguments, and all else as one tensor

    def __post_init__(self) -> None:
        self.precision = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        self.adapter = self.block.as_in_forward()[1] if self.block.adapted else nullcontext()
        if self.calls.kept > 0:
            self.held = *self.held, torch.empty(self.calls.kept, dtype=torch.uint8)

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of arguments and weights."""
        counter, known = self.block.counter, self.calls.backward
        given = tuple(one is not None for one in gradients)
        if given not in known:
            with counter.quiet(), self.adapter:
                known[given] = self._compute(gradients)
        span, kinds = known[given]
        counter.repeated(span)
        self.held = self.leaves = None
        with counter.quiet():
            return [kind and kind() for kind in kinds]

    def _compute(self, gradients: Sequence[Tensor | None]) -> tuple[Peak, list[Any]]:
        enabled, dtype = self.precision
        leaves = [leaf().requires_grad_(leaf.learned) if isinstance(leaf, Like) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.tree)
        run = partial(checkpoint, self.block.function, use_reentrant=False) if self.again else self.block.function
        with torch.enable_grad(), torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=False):
            found = zip(tree_flatten(run(*args, **kwargs))[0], self.calls.outputs, strict=True)
            slopes = list(map(_described, gradients))
            end = _End.apply(slopes, *(one for one, kind in found if isinstance(kind, Like)))  # type: ignore[no-untyped-call]
            del found
        one = torch.ones(())
        with self.block.counter.span() as span:
            made = torch.autograd.grad(end, self.block.learned(leaves), one, allow_unused=True)
            kinds = list(map(_described, made))
            del made
        there = self.block.counter.held(slope for slope in gradients if slope is not None)
        span.total -= there
        span.parts[ACTIVATIONS] = span.parts.get(ACTIVATIONS, 0) - there
        return span, kinds


class _End(torch.autograd.Function):
    """A number, whose backward pass begins with these gradients and holds them no longer than an engine does."""

    @staticmethod
    def forward(ctx: Any, slopes: Sequence[Any], *tensors: Tensor) -> Tensor:
        ctx.slopes = slopes
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(one and one() for one in ctx.slopes)


class _Repeated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *learned: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        made = call.calls.made()
        kinds = [kind for kind in call.calls.outputs if isinstance(kind, Like)]
        ctx.mark_non_differentiable(*(one for one, kind in zip(made, kinds, strict=True) if not kind.learned))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.call.backward(gradients)
