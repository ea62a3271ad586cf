"""Shorter runs with the same peaks: what is done hundreds of times alike is done once or twice."""

from __future__ import annotations

from collections import Counter, UserDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import update_wrapper
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.utils._pytree import tree_map

from burnish.forecast.counter import GRADIENTS, OPTIMIZER, WEIGHTS, LiveBytes, Peak
from burnish.forecast.fakes import is_fake
from burnish.rl.algorithm import Metrics
from burnish.training.exchange import bring
from burnish.training.optimizer import ParameterGroup
from burnish.training.trainer import Trainer, rank_micro_batches
from burnish.types.batch import Batch

ENOUGH = 2  # micro-batches, where none is taken for done: the second finds gradients that it adds to
UPDATE, BACKWARD, STEP = "update, forward", "update, backward", "update, optimizer"


@dataclass(frozen=True)
class Rests:
    """Categories of what options may keep in CPU memory."""

    shards: str = WEIGHTS  # of the networks that are trained
    gradients: str = GRADIENTS
    states: str = OPTIMIZER
    average: str = WEIGHTS


class BriefTrainer(Trainer):
    """A trainer that learns from the first rows of every batch alone, while it holds all of them.

    Once it is primed, its next update is like any later one: optimizers have their states, and a micro-batch finds the
    gradients that the one before has left. Without that, the first of two updates is there for these states.
    """

    _counter: LiveBytes
    _rests: Rests
    _primed = False
    _learned: set[int]  # weights that have had a gradient
    _before: set[str]  # phases that were over when the optimizers got their states
    _steps = 0
    _brought: Counter[str]  # bytes by phase of rows that other ranks computed, in a step
    _received: Counter[str]  # bytes by phase, in the step that was taken, but for these
    _work: Counter[tuple[str, str]]  # of that step

    @classmethod
    def of(cls, trainer: Trainer, counter: LiveBytes, rests: Rests) -> BriefTrainer:
        """Another trainer, but brief."""
        made = cls(**{field.name: getattr(trainer, field.name) for field in fields(trainer) if field.init})
        made._counter, made._rests = counter, rests
        return made

    def prime(self, update: int) -> None:
        """Stand before ``update`` without having learned: a step with gradients of zero makes the optimizers' states.

        Weights that turn out to get no gradient have none in a run; they are taken out of the peaks then.
        """
        self._primed, self._learned, self._before = True, set(), set(self._counter.peaks)
        for group in self.groups:
            for weight in group.parameters.values():
                weight.register_post_accumulate_grad_hook(lambda one: self._learned.add(id(one)))
            self._fill_gradients(group)
            with self._counter.phase(STEP, self._rests.states):
                group.step()
            group.zero_grad()
        del self._counter.peaks[STEP]  # that of the update counts
        self._counter.work.clear()
        self.optimizer_steps += 1
        self.roles.optimizer_steps = self.optimizer_steps
        self.roles.stepped()
        self.algorithm.after_update(self.roles, update - 1)
        self.publish(update - 1)

    def update(self, batch: Batch, update: int) -> Metrics:
        self._steps = 0
        return super().update(batch, update)

    def _micro_batches(self, mini: Batch) -> Iterator[tuple[Batch, float]]:
        """The first ones. Those that are left out would have other ranks send as much as the last."""
        every = rank_micro_batches(self.algorithm, mini, self.roles.micro_batch_size, self.rows)
        counter, done, one = self._counter, 0, Counter[str]()
        before = counter.wires()
        first = next(every, None) or self._any_row(mini)
        self._brought += counter.wires() - before
        left = 1 if self._primed and next(every, None) is not None else 0
        done_before = Counter(counter.work)
        if left:
            for group in self.groups:  # an earlier micro-batch has left these
                self._fill_gradients(group)
        for part, weight in chain([first], every):
            before = counter.wires()
            yield part.to(self.roles.device), weight
            one, done = counter.wires() - before, done + 1
            if self._primed:
                self._forget_unlearned()
            if done == (ENOUGH if self.optimizer_steps and not self._primed else 1):
                break
        learned = counter.work - done_before
        more = left + sum(1 for _ in every)
        counter.received_again(one, more)
        counter.work_again(learned, more / done)

    def _any_row(self, mini: Batch) -> tuple[Batch, float]:
        """A row of another rank, where there are fewer rows than ranks and this one has none."""
        own = bring(mini, self.ranks, [slice(0, 1)] * self.ranks.size)
        return next(self.algorithm.micro_batches(own, self.roles.micro_batch_size)), 1.0

    def _step(self, mini: Batch, update: int) -> Metrics:
        self._steps += 1
        if self._steps > 1:
            next(super()._micro_batches(mini), None)  # how many rows come from others is of each step its own
            self._counter.received_again(self._received, 1)
            self._counter.work_again(self._work, 1)
            return {}
        before, self._brought, done = self._counter.wires(), Counter(), Counter(self._counter.work)
        metrics = super()._step(mini, update)
        self._received = self._counter.wires() - before - self._brought
        self._work = self._counter.work - done
        return metrics

    def _fill_gradients(self, group: ParameterGroup) -> None:
        for weight in group.parameters.values():
            weight.grad = torch.zeros_like(weight)
        self._counter.label(self._rests.gradients, (weight.grad for weight in group.parameters.values()))

    def _forget_unlearned(self) -> None:
        """Drop gradients and states of weights that no loss depends on, also from the peaks so far."""
        for sharded in self.roles.shards.networks.values():
            self._learned |= {id(sharded.parameters[name]) for name in sharded._learned}
        counter, rests = self._counter, self._rests
        for group in self.groups:
            for weight in group.parameters.values():
                if id(weight) in self._learned or weight.grad is None:
                    continue
                states = [optimizer.state.pop(weight, {}) for optimizer in group.optimizers]
                held = [one for state in states for one in state.values() if isinstance(one, Tensor)]
                sizes = sum(map(counter.held_by, held)), counter.held_by(weight.grad)
                weight.grad = None
                for name, peak in counter.peaks.items():
                    if name not in self._before:
                        peak.less(rests.states, sizes[0])
                    if name in (UPDATE, BACKWARD):
                        peak.less(rests.gradients, sizes[1])


class Once:
    """A function that is called many times alike: without gradients only the first call of a kind computes.

    The others give tensors of the same shapes, and cost at their peak what the first one cost.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        key: Callable[..., Any],
        counter: LiveBytes,
        known: dict[Any, tuple[Any, Peak, int]] | None = None,
    ) -> None:
        """Remember nothing yet.

        Args:
            function: whose results have tensors.
            key: of its arguments, equal for calls that need the same memory.
            counter: which is active.
            known: results, peaks, and what other ranks sent for them, of functions that cost the same.
        """
        update_wrapper(self, function)
        self.function, self.key, self.counter = function, key, counter
        self.known = {} if known is None else known

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() or any(map(is_filled, (*args, *kwargs.values()))):
            return self.function(*args, **kwargs)
        key = self.key(*args, **kwargs)
        if key not in self.known:
            before = self.counter.wire
            with self.counter.span() as span:
                found = self.function(*args, **kwargs)
            self.known[key] = (shape_of(found), span, self.counter.wire - before)
            return found
        shape, span, wire = self.known[key]
        self.counter.received(wire)
        self.counter.repeated(span)
        return empty_like_shape(shape)


def is_filled(argument: Any) -> bool:
    """Whether every call adds to an argument: a cache of keys and values, or those that layers share."""
    return hasattr(argument, "get_seq_length") or isinstance(argument, UserDict)


def alike(network: nn.Module, counter: LiveBytes) -> None:
    """Have equal blocks of a network compute once for inputs of a shape, where there are no gradients."""
    kinds: dict[Any, dict[Any, tuple[Any, Peak, int]]] = {}
    for owner in network.modules():
        for block in owner if isinstance(owner, nn.ModuleList) else ():
            if isinstance(block.forward, Once):
                continue  # networks may share blocks
            block.forward = Once(block.forward, shapes, counter, kinds.setdefault(kind_of(block), {}))


def kind_of(block: nn.Module) -> Any:
    """Equal for modules of the same classes, settings and shapes; the place among the others is no setting."""
    held = tuple((name, one.shape, one.dtype) for name, one in block.named_parameters())
    settings = tuple(
        (where, type(module), name, value)
        for where, module in block.named_modules() for name, value in vars(module).items()
        if _is_simple(value) and not name.endswith(("idx", "index", "layer_id"))
    )  # fmt: skip
    return held, settings


def _is_simple(value: Any) -> bool:
    """Whether a module's attribute is a setting, such as a width, or the strides of a convolution."""
    if isinstance(value, tuple):
        return all(map(_is_simple, value))
    return isinstance(value, str | int | float | bool | None)


def shapes(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """What tells calls apart that need other memory: shapes, and simple values but for times."""
    found: list[Any] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append((value.shape, value.dtype))
        elif isinstance(value, nn.Module):
            found.append(id(value))
        elif isinstance(value, list | tuple) and any(isinstance(one, Tensor) for one in value):
            found.append(shapes(*value))  # networks that take the samples of a batch one by one
        elif isinstance(value, Sequence) or hasattr(value, "__len__"):
            found.append(len(value))
        elif isinstance(value, int | float | str | bool):
            found.append(value)
    return tuple(found)


@dataclass(frozen=True)
class _Shape:
    size: torch.Size
    dtype: torch.dtype
    device: torch.device


def shape_of(value: Any) -> Any:
    """What ``empty_like_shape`` makes the like of again, without holding the tensors."""

    def described(one: Any) -> Any:
        return _Shape(one.shape, one.dtype, one.device) if is_fake(one) else one

    return tree_map(described, value)


def empty_like_shape(shape: Any) -> Any:
    """Tensors like those that ``shape_of`` has described."""

    def made(one: Any) -> Any:
        if isinstance(one, _Shape):
            return torch.empty(one.size, dtype=one.dtype, device=one.device)
        return one.clone() if isinstance(one, Tensor) else one

    return tree_map(made, shape)


def _backward(loss: Tensor) -> None:
    """``loss.backward()``, but that modes see what is computed again in it: functions are handed to one only."""
    _engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


@contextmanager
def _phase_of_backward(counter: LiveBytes) -> Iterator[None]:
    def backward(loss: Tensor) -> None:
        with counter.phase(BACKWARD):
            _backward(loss)

    before = Tensor.backward
    Tensor.backward = backward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Tensor.backward = before  # type: ignore[method-assign]


@contextmanager
def phases_of_updates(counter: LiveBytes, groups: Iterable[ParameterGroup], rests: Rests) -> Iterator[None]:
    """Tell forward passes, backward passes and steps of optimizers apart, and gradients from activations."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def label(weight: Tensor) -> None:
        counter.label(rests.gradients, [weight.grad])

    stepping = ExitStack()
    with ExitStack() as hooks:
        for group in groups:
            for weight in group.parameters.values():
                hooks.callback(weight.register_post_accumulate_grad_hook(label).remove)
        before = register_optimizer_step_pre_hook(
            lambda *_: stepping.enter_context(counter.phase(STEP, rests.states)) and None
        )
        hooks.callback(before.remove)
        after = register_optimizer_step_post_hook(lambda *_: stepping.close())
        hooks.callback(after.remove)
        hooks.enter_context(counter.phase(UPDATE))
        hooks.enter_context(_phase_of_backward(counter))
        yield
