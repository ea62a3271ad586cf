"""Activation checkpointing in which one of several equal blocks computes, and its peaks are counted for the others.

A block that is recomputed keeps nothing but its inputs between its forward and its backward pass, so that what each
pass takes above them is the same for blocks that are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from burnish.forecast.brief import empty_like_shape, is_filled, kind_of, shape_of, shapes
from burnish.forecast.counter import LiveBytes, Peak


@dataclass
class _Known:
    """What a block of a kind took, and gave."""

    outputs: Any
    forward: Peak
    backward: Peak | None = None
    reached: list[bool] = field(default_factory=list)  # which inputs and weights have had a gradient


class Recomputed:
    """Takes the place of ``torch.utils.checkpoint.checkpoint`` in a network."""

    def __init__(self, original: partial[Any], counter: LiveBytes) -> None:
        self.original, self.counter = original, counter
        self.contexts: Callable[[], tuple[AbstractContextManager[None], ...]] = original.keywords["context_fn"]
        self.known: dict[Any, _Known] = {}

    def __call__(self, called: Any, *args: Any) -> Any:
        block, compute, more = called, called, {}
        if isinstance(called, partial) and len(called.args) == 1:  # of a layer's forward, with what it takes by name
            (block,), more = called.args, called.keywords
            compute = partial(called.func, block)
        filled = any(map(is_filled, (*args, *more.values())))
        if filled or not torch.is_grad_enabled() or not isinstance(block, nn.Module):
            return self.original(called, *args)
        leaves = [one for one in tree_leaves((args, more)) if isinstance(one, Tensor) and one.requires_grad]
        weights = [one for one in block.parameters() if one.requires_grad]
        if not (leaves or weights):
            return self.original(called, *args)
        needed = tuple(one.requires_grad for one in (*leaves, *block.parameters()))
        key = kind_of(block), shapes(*args, **more), needed
        return _Block.apply(  # type: ignore[no-untyped-call]
            self, key, compute, (args, more), len(leaves), *leaves, *weights
        )


def recompute_alike(network: nn.Module, counter: LiveBytes) -> None:
    """Have equal blocks of a network that recomputes activations compute once.

    Nothing may be exchanged between ranks inside of what is recomputed.
    """
    made: dict[int, Recomputed] = {}
    for module in network.modules():
        func = vars(module).get("_gradient_checkpointing_func")
        if isinstance(func, partial) and "context_fn" in func.keywords:
            replaced: Any = module
            replaced._gradient_checkpointing_func = made.setdefault(id(func), Recomputed(func, counter))


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Recomputed, key: Any, compute: Any, given: Any, inputs: int, *tensors: Tensor) -> Any:
        """Args: ``given`` are arguments and those by name, ``inputs`` how many of the ``tensors`` are among them."""
        ctx.run, ctx.key, ctx.compute, ctx.arguments = run, key, compute, given
        ctx.given, ctx.weights = tensors[:inputs], tensors[inputs:]
        ctx.again = run.contexts()[1]
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        known = run.known.get(key)
        if known is not None:
            run.counter.repeated(known.forward)
            return empty_like_shape(known.outputs)
        with run.counter.span() as span:
            found = compute(*given[0], **given[1])
        run.known[key] = _Known(shape_of(found), span)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        run: Recomputed = ctx.run
        known = run.known[ctx.key]
        if known.backward is None:
            return (None, None, None, None, None, *_measured(ctx, known, gradients))
        run.counter.repeated(known.backward)
        # those of weights are added where they are, and take no memory of their own
        made = [torch.empty_like(one) for one in ctx.given]
        made += [one.new_empty(()).expand(one.shape) for one in ctx.weights]
        found = [one if reached else None for one, reached in zip(made, known.reached, strict=True)]
        return (None, None, None, None, None, *found)


def _measured(ctx: Any, known: _Known, gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """Compute a block again and go back through it; gradients of its weights are added to them here."""
    weights: tuple[Tensor, ...] = ctx.weights
    learned: set[int] = set()
    leaves, tree = tree_flatten(ctx.arguments)
    places = [i for i, one in enumerate(leaves) if isinstance(one, Tensor) and one.requires_grad]
    with ExitStack() as stack:
        for weight in weights:
            stack.callback(weight.register_post_accumulate_grad_hook(lambda one: learned.add(id(one))).remove)
        known.backward = stack.enter_context(ctx.run.counter.span())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(ctx.again)
        enabled, dtype = ctx.autocast
        for i in places:
            leaves[i] = leaves[i].detach().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=False):
            args, more = tree_unflatten(leaves, tree)
            found = tree_leaves(ctx.compute(*args, **more))
        both = zip(found, gradients, strict=True)  # some blocks return no state of the text
        pairs = [(one, g) for one, g in both if isinstance(one, Tensor) and one.requires_grad and g is not None]
        del found
        outputs, slopes = zip(*pairs, strict=True)
        _engine_run_backward(outputs, slopes, False, False, (), allow_unreachable=True, accumulate_grad=True)
    given = [leaves[i].grad for i in places]
    known.reached = [one is not None for one in given] + [id(weight) in learned for weight in weights]
    return [*given, *(None for _ in weights)]
