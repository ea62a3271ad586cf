"""What a run does many times alike, done once: calls without gradients, and the blocks that a network repeats.

What follows the first one of a kind gives tensors of the same shapes, and costs what the first one cost.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from burnish.plan.counter import ACTIVATIONS, LiveBytes, Peak, key_of, storage_of
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

    @classmethod
    def of(cls, value: Any) -> Any:
        """Of a tensor; other values as they are."""
        if not isinstance(value, Tensor):
            return value
        fake = is_fake(value)
        return cls(value.shape, value.stride() if fake else (), value.dtype, fake, value.requires_grad)

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


@dataclass
class Cost:
    """What calls of a kind give, and cost."""

    outputs: list[Any]  # values, or what makes tensors
    tree: Any
    returned: dict[int, int]  # outputs that are arguments, by their numbers
    forward: Peak
    kept: int  # bytes that are left behind, or wait for the backward pass
    inputs: list[int]  # arguments that wait for it
    backward: Peak = field(default_factory=Peak)
    gradients: list[Any] = field(default_factory=list)  # what makes those of arguments and weights

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

    def result(self, made: Sequence[Tensor], leaves: Sequence[Any]) -> Any:
        """What a call returns, of its arguments and of tensors that were made for it."""
        tensors = iter(made)
        found = [next(tensors) if isinstance(one, Like) else one for one in self.outputs]
        for place, number in self.returned.items():
            found[place] = leaves[number]
        return tree_unflatten(found, self.tree)


def _output(value: Any) -> Any:
    """What makes an output of a call, which may share its memory with others."""
    kind = Like.of(value)
    if not is_fake(value) or (memory := storage_of(value).nbytes()) == value.nbytes:
        return kind
    return Part(**vars(kind), place=key_of(value), count=memory // value.itemsize, offset=int(value.storage_offset()))


def _shapes(value: Any) -> Any:
    """What tells calls apart that need other memory: tensors without values, and simple values; times are none."""
    if isinstance(value, nn.Module):
        return id(value)
    if isinstance(value, Tensor | int | float | str | bool):
        return Like.of(value)
    if isinstance(value, tuple) or (isinstance(value, list) and any(isinstance(one, Tensor | list) for one in value)):
        return tuple(map(_shapes, value))
    return len(value) if hasattr(value, "__len__") else type(value)


class Once:
    """A function that is called many times alike: without gradients only the first call of a kind computes."""

    def __init__(
        self, function: Callable[..., Any], counter: LiveBytes, held: Callable[[], Any] = lambda: None
    ) -> None:
        """Args: ``held`` is what else than the shapes of arguments tells calls apart that need other memory."""
        update_wrapper(self, function)
        self.function, self.counter, self.held = function, counter, held
        self.known: dict[Any, Cost] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() or any(map(_is_cache, (*args, *kwargs.values()))):
            return self.function(*args, **kwargs)
        leaves, tree = tree_flatten((args, kwargs))
        key = self.held(), _shapes((args, tuple(kwargs.values())))
        return self.repeated(key, leaves, tree)

    def repeated(self, key: Any, leaves: Sequence[Any], tree: Any, most: float = math.inf) -> Any:
        """What a call without gradients returns; it is computed once if it leaves at most so many bytes behind."""
        if key in self.known:
            cost = self.known[key]
            self.counter.repeated(cost.forward)
            return cost.result(cost.made(), leaves)
        cost, found = self.measured(self.function, leaves, tree)
        if cost.kept <= most:
            self.known[key] = cost
        return found

    def measured(self, function: Callable[..., Any], leaves: Sequence[Any], tree: Any) -> tuple[Cost, Any]:
        """What a call costs, and what it returns."""
        places = {key_of(leaf): number for number, leaf in enumerate(leaves) if is_fake(leaf)}
        waiting = set[int]()

        def waits(value: Tensor) -> Tensor:
            waiting.add(key_of(value))
            return value.detach()  # itself would hold the graph that holds it

        args, kwargs = tree_unflatten(leaves, tree)
        with saved_tensors_hooks(waits, lambda value: value), self.counter.span() as span:
            before = self.counter.live
            found = function(*args, **kwargs)
            kept = self.counter.live - before
        values, shape = tree_flatten(found)
        arguments = {}
        for place, value in enumerate(values):
            number = places.get(key_of(value)) if is_fake(value) else None
            if number is not None and value.shape == leaves[number].shape:
                arguments[place] = number
        outputs = [None if place in arguments else _output(value) for place, value in enumerate(values)]
        fresh = [one for one, kind in zip(values, outputs, strict=True) if isinstance(kind, Like) and kind.fake]
        kept -= self.counter.held(fresh)
        inputs = [number for place, number in places.items() if place in waiting]
        return Cost(outputs, shape, arguments, span, kept, inputs), found


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
        known: dict[Any, Cost] = {}
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

    def __init__(self, block: nn.Module, counter: LiveBytes, known: dict[Any, Cost], *, recomputed: bool) -> None:
        """Args: ``known`` are the calls of blocks of this kind, which may be ``recomputed`` by themselves."""
        super().__init__(block.forward, counter, self._adapters)
        self.block, self.known = block, known
        self.recomputed = recomputed and not hasattr(block, "gradient_checkpointing")  # else by its own forward
        self.adapted: list[Any] = [module for module in block.modules() if hasattr(module, "disable_adapters")]

    def _adapters(self) -> Any:
        return str([
            (getattr(layer, "cast", None) is None, layer.disable_adapters, layer.active_adapters)
            for layer in self.adapted
        ])  # fmt: skip

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        regions = _recomputing() if torch.is_grad_enabled() else 0
        filled = any(isinstance(one, list) or _is_cache(one) for one in (*args, *kwargs.values()))
        if filled or regions > self.recomputed:  # lists may be changed; more than this block may be recomputed at once
            return self.function(*args, **kwargs)
        leaves, tree = tree_flatten((args, kwargs))
        learned = self.learned(leaves) if torch.is_grad_enabled() else []
        precision = torch.is_autocast_enabled("cpu")
        key = self.held(), bool(learned), regions, precision, _shapes((args, tuple(kwargs.values())))
        if not learned:
            return self.repeated(key, leaves, tree, most=0)  # else the next one leaves something behind, too
        if key in self.known:
            self.counter.repeated(self.known[key].forward)
        else:
            self.known[key] = self._with_gradients(leaves, tree, again=regions > 0)
        cost = self.known[key]
        held = leaves if regions else [leaves[number] for number in cost.inputs]
        return cost.result(_Repeated.apply(self.counter, cost, held, *learned), leaves)  # type: ignore[no-untyped-call]

    def learned(self, leaves: Sequence[Any]) -> list[Tensor]:
        """Arguments and weights that need a gradient."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return [one for one in (*tensors, *self.block.parameters()) if one.requires_grad]

    def _with_gradients(self, leaves: Sequence[Any], tree: Any, *, again: bool) -> Cost:
        """What a forward and a backward pass cost, in which the forward pass may be done again."""
        function = partial(checkpoint, self.function, use_reentrant=False, preserve_rng_state=False)
        own = [leaf.detach().requires_grad_() if _learns(leaf) else leaf for leaf in leaves]
        run = partial(self.measured, function if again else self.function, own, tree)
        run()  # makes what all that follow have, too
        with self.counter.quiet():
            cost, found = run()
            outputs = zip(cost.outputs, tree_flatten(found)[0], strict=True)
            values = [value for kind, value in outputs if isinstance(kind, Like) and kind.learned]
            slopes = [Like.of(torch.empty_like(value)) for value in values]
            end, one = _End.apply(slopes, *values), torch.ones(())  # type: ignore[no-untyped-call]
            del found, outputs, values
            with self.counter.span() as cost.backward:
                made = torch.autograd.grad(end, self.learned(own), one, allow_unused=True)
                cost.gradients = list(map(Like.of, made))
                del made
        return cost


def _learns(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


class _End(torch.autograd.Function):
    """A number, whose backward pass begins with these gradients and holds them no longer than an engine does."""

    @staticmethod
    def forward(ctx: Any, slopes: Sequence[Like], *tensors: Tensor) -> Tensor:
        ctx.slopes = slopes
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(slope() for slope in ctx.slopes)


class _Repeated(torch.autograd.Function):
    """The outputs of a block that costs what another one did, of what is learned in it; ``held`` waits with it."""

    @staticmethod
    def forward(ctx: Any, counter: LiveBytes, cost: Cost, held: Sequence[Any], *learned: Tensor) -> tuple[Tensor, ...]:
        ctx.counter, ctx.cost = counter, cost
        ctx.held = [*held, torch.empty(max(cost.kept, 0), dtype=torch.uint8)]
        ctx.set_materialize_grads(False)
        made = cost.made()
        kinds = [kind for kind in cost.outputs if isinstance(kind, Like)]
        ctx.mark_non_differentiable(*(one for one, kind in zip(made, kinds, strict=True) if not kind.learned))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        there = ctx.counter.held(one for one in gradients if one is not None)  # by the engine
        span: Peak = ctx.cost.backward
        parts = span.parts | {ACTIVATIONS: span.parts.get(ACTIVATIONS, 0) - there}
        ctx.counter.repeated(replace(span, total=span.total - there, parts=parts))
        del ctx.held
        with ctx.counter.quiet():
            return None, None, None, *(kind and kind() for kind in ctx.cost.gradients)
