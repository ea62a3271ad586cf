"""What a run does many times alike, done once: calls without gradients, and the blocks that a network repeats.

What follows the first one of a kind gives tensors of the same shapes, and costs what the first one cost.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from burnish.plan.counter import LiveBytes, Peak, key_of
from burnish.plan.fakes import is_fake

LEAST = 3  # blocks of a kind, from which on it pays to compute one of them
NUMBERS = ("idx", "id", "index")  # ends of names of attributes that only number the modules of a network


class Like(NamedTuple):
    """What makes a tensor without values like another one."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    learned: bool  # whether it needs a gradient
    spec: Any = None  # where this is a rank's share of it

    @classmethod
    def of(cls, value: Any) -> Any:
        """Of a tensor without values; others as they are."""
        if not is_fake(value):
            return value
        own = getattr(value, "_local_tensor", value)
        return cls(own.shape, own.stride(), own.dtype, value.requires_grad, getattr(value, "_spec", None))

    def made(self) -> Tensor:
        """One with memory of its own, also in the place of a part of larger memory."""
        reach = 1 + sum((count - 1) * step for count, step in zip(self.size, self.stride, strict=True))
        if reach > self.size.numel():
            own = torch.empty(self.size, dtype=self.dtype)
        else:
            own = torch.empty_strided(self.size, self.stride, dtype=self.dtype)
        return own if self.spec is None else DTensor(own, self.spec, requires_grad=False)


def made_of(value: Any) -> Any:
    """A tensor for what makes it like another one; a copy of a tensor with values, and anything else as it is."""
    if isinstance(value, Like):
        return value.made()
    return value.clone() if isinstance(value, Tensor) else value


@dataclass
class Cost:
    """What calls of a kind return, and cost."""

    outputs: list[Any]  # values, or what makes tensors
    tree: Any
    returned: dict[int, int]  # outputs that are arguments, by their numbers
    forward: Peak
    kept: int  # bytes that are left behind, or wait for the backward pass
    inputs: list[int]  # arguments that wait for it
    backward: Peak = field(default_factory=Peak)
    gradients: list[Any] = field(default_factory=list)  # what makes those of arguments and weights

    def result(self, outputs: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """What a call returns, of what was made for it and of its arguments."""
        found = [leaves[self.returned[i]] if i in self.returned else one for i, one in enumerate(outputs)]
        return tree_unflatten(found, self.tree)


def _shapes(value: Any) -> Any:
    """What tells calls apart that need other memory: shapes of tensors, and simple values; times are none."""
    if isinstance(value, nn.Module):
        return id(value)
    if isinstance(value, Tensor):
        return Like.of(value) if is_fake(value) else (value.shape, value.dtype, value.requires_grad)
    if isinstance(value, int | float | str):
        return value
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
            return cost.result(list(map(made_of, cost.outputs)), leaves)
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
        own = {i: places[key_of(one)] for i, one in enumerate(values) if is_fake(one) and key_of(one) in places}
        returned = {i: number for i, number in own.items() if values[i].shape == leaves[number].shape}
        kept -= self.counter.held(one for i, one in enumerate(values) if is_fake(one) and i not in own)
        outputs = [None if i in returned else Like.of(one) for i, one in enumerate(values)]
        inputs = [number for key, number in places.items() if key in waiting]
        return Cost(outputs, shape, returned, span, kept, inputs), found


def compute_once(parts: Iterable[nn.Module], counter: LiveBytes) -> None:
    """Have text encoders, VAEs and other networks that are not trained compute each shape once."""
    for part in parts:
        name = "decode" if hasattr(part, "decode") else "forward"
        setattr(part, name, Once(getattr(part, name), counter))


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
        return [one for one in (*leaves, *self.block.parameters()) if isinstance(one, Tensor) and one.requires_grad]

    def _with_gradients(self, leaves: Sequence[Any], tree: Any, *, again: bool) -> Cost:
        """What a forward and a backward pass cost, in which the forward pass may be done again."""
        function = partial(checkpoint, self.function, use_reentrant=False, preserve_rng_state=False)
        own = [one.detach().requires_grad_() if getattr(one, "requires_grad", False) else one for one in leaves]
        run = partial(self.measured, function if again else self.function, own, tree)
        run()  # makes what all that follow have, too
        with self.counter.quiet():
            cost, found = run()
            learned = [isinstance(kind, Like) and kind.learned for kind in cost.outputs]
            ends = [one for one, learns in zip(tree_flatten(found)[0], learned, strict=True) if learns]
            slopes = list(map(torch.empty_like, ends))
            with self.counter.span() as cost.backward:
                made = torch.autograd.grad(ends, self.learned(own), slopes, allow_unused=True)
                cost.gradients = list(map(Like.of, made))
                del made
        return cost


class _Repeated(torch.autograd.Function):
    """The outputs of a block that costs what another one did, of what is learned in it; ``held`` waits with it."""

    @staticmethod
    def forward(ctx: Any, counter: LiveBytes, cost: Cost, held: Sequence[Any], *learned: Tensor) -> tuple[Any, ...]:
        ctx.counter, ctx.cost = counter, cost
        ctx.held = [*held, torch.empty(max(cost.kept, 0), dtype=torch.uint8)]
        ctx.set_materialize_grads(False)
        made = tuple(map(made_of, cost.outputs))
        fixed = [one for one, kind in zip(made, cost.outputs, strict=True) if not getattr(kind, "learned", False)]
        ctx.mark_non_differentiable(*(one for one in fixed if isinstance(one, Tensor)))
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.counter.repeated(ctx.cost.backward)
        del ctx.held
        with ctx.counter.quiet():
            return None, None, None, *map(made_of, ctx.cost.gradients)
