"""Shorter runs with the same peaks: what is done hundreds of times alike is done once or twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from burnish.algorithms.base import Metrics
from burnish.forecast.counter import GRADIENTS, OPTIMIZER, LiveBytes
from burnish.forecast.fakes import is_fake
from burnish.training.parameter_groups import ParameterGroup
from burnish.training.trainer import Trainer
from burnish.types.batch import Batch

ENOUGH = 2  # micro-batches of a mini-batch, and mini-batches of an update: the second finds gradients and moments
UPDATE, BACKWARD, STEP = "update, forward", "update, backward", "update, optimizer"


class BriefTrainer(Trainer):
    """A trainer that learns from the first rows of every batch alone, while it holds all of them."""

    taken = 0

    @classmethod
    def of(cls, trainer: Trainer) -> BriefTrainer:
        """Another trainer, but brief."""
        return cls(**{field.name: getattr(trainer, field.name) for field in fields(trainer) if field.init})

    def update(self, batch: Batch, update: int) -> Metrics:
        self.taken = 0
        return super().update(batch, update)

    def _micro_batches(self, mini: Batch) -> Iterator[tuple[Batch, float]]:
        yield from islice(super()._micro_batches(mini), ENOUGH)

    def _step(self, mini: Batch, update: int) -> Metrics:
        self.taken += 1
        return super()._step(mini, update) if self.taken <= ENOUGH else {}


class Once:
    """A function without gradients that gives the same shapes for the same: its first result is made again, empty."""

    def __init__(
        self, function: Callable[..., Any], key: Callable[..., Any], counter: LiveBytes, *, kept: bool = True
    ) -> None:
        """Args: ``key`` is equal for calls that need the same memory."""
        self.function, self.key, self.counter, self.kept = function, key, counter, kept
        self.known: dict[Any, tuple[Any, int]] = {}  # results, and what other ranks sent for them

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return self.function(*args, **kwargs)
        key = self.key(*args, **kwargs)
        if key not in self.known:
            before = self.counter.wire
            found = self.function(*args, **kwargs)
            self.known[key] = (_shape(found), self.counter.wire - before)
            return found
        shape, wire = self.known[key]
        self.counter.received(wire)
        return _empty(shape)


@dataclass(frozen=True)
class _Shape:
    size: torch.Size
    dtype: torch.dtype
    device: torch.device


def _shape(value: Any) -> Any:
    """What ``_empty`` makes the like of again, without holding the tensors."""

    def described(one: Any) -> Any:
        return _Shape(one.shape, one.dtype, one.device) if is_fake(one) else one

    return tree_map(described, value)


def _empty(shape: Any) -> Any:
    def made(one: Any) -> Any:
        if isinstance(one, _Shape):
            return torch.empty(one.size, dtype=one.dtype, device=one.device)
        return one.clone() if isinstance(one, Tensor) else one

    return tree_map(made, shape)


class _Backward(TorchFunctionMode):
    def __init__(self, counter: LiveBytes) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not Tensor.backward:
            return func(*args, **(kwargs or {}))
        with self.counter.phase(BACKWARD):
            return func(*args, **(kwargs or {}))


@contextmanager
def phases_of_updates(counter: LiveBytes, groups: Iterable[ParameterGroup]) -> Iterator[None]:
    """Tell forward passes, backward passes and steps of optimizers apart, and gradients from activations."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def label(weight: Tensor) -> None:
        counter.label(GRADIENTS, [weight.grad])

    stepping = ExitStack()
    with ExitStack() as hooks:
        for group in groups:
            for weight in group.parameters.values():
                hooks.callback(weight.register_post_accumulate_grad_hook(label).remove)  # type: ignore[no-untyped-call]
        before = register_optimizer_step_pre_hook(
            lambda *_: stepping.enter_context(counter.phase(STEP, OPTIMIZER)) and None
        )
        hooks.callback(before.remove)
        after = register_optimizer_step_post_hook(lambda *_: stepping.close())
        hooks.callback(after.remove)
        hooks.enter_context(counter.phase(UPDATE))
        hooks.enter_context(_Backward(counter))
        yield
