"""What a pipeline computes around its networks: recorded in one run of its own ``__call__``, and computed again.

A run is answered with blanks in place of its networks' outputs. What depends on its states, on its scheduler's times or
on drawn noise is recorded: operations on tensors, and calls of networks. A *segment* is what of it leads from a state
to what the scheduler's step is given. It is computed again for other states, outputs and times, without the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from burnish.diffusion.pipeline.forwards import Call, kind_of, tensors_in
from burnish.diffusion.pipeline.program import (
    Entry,
    NetworkCall,
    Operation,
    Segment,
    Value,
    numbers_in,
)
from burnish.diffusion.pipeline.schedules import Unsupported
from burnish.types.batch import to_device

aten = torch.ops.aten


class Trace(TorchDispatchMode):
    """Records while it is entered."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device  # of networks
        self.entries: list[Entry] = []
        self.tensors: list[Tensor] = []  # by number: kept, so that no other gets its identity
        self.tables: dict[int, tuple[str, Tensor]] = {}  # the scheduler's, by their numbers
        self.is_paused = False
        self._numbers: dict[int, int] = {}  # by the identity of a tensor
        self._made: list[int] = []  # the entry that a value comes from, or -1
        self._varying = set[Any]()  # storages of what depends on a state, an output or drawn noise
        self._writes: dict[Any, list[int]] = {}  # entries that change a storage
        self._copies: dict[Any, int] = {}  # of constants that were written to, by their storage

    def leaf(self, tensor: Tensor, *, varies: bool = False, made: int = -1) -> int:
        """Record a tensor from here on; returns its number."""
        self._numbers[id(tensor)] = number = len(self.tensors)
        self.tensors.append(tensor)
        self._made.append(made)
        if varies:
            self._varying.add(_storage(tensor))
        return number

    def value(self, leaf: Any) -> Any:
        """What stands for a tensor in arguments: itself where it is constant."""
        if not isinstance(leaf, Tensor):
            return leaf
        if (number := self._numbers.get(id(leaf))) is not None:
            return Value(number)
        if self._copies and (copy := self._copies.get(_storage(leaf))) is not None:
            args = Value(copy), list(leaf.shape), list(leaf.stride()), leaf.storage_offset()
            number = self.leaf(leaf, made=len(self.entries))
            self.entries.append(Operation((args, {}), [number], aten.as_strided.default))
            return Value(number)
        return leaf

    def varies(self, tree: Any) -> bool:
        """Whether something in a tree depends on a state, an output or drawn noise."""
        values = [self.value(leaf) for leaf in tree_iter(tree)]
        return any(_storage(self.tensors[number]) in self._varying for number in numbers_in(values))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is recorded; no other mode may have been entered later."""
        if self.is_paused:
            yield
            return
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False
            self.__enter__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # attention has this tag for its dropout, and returns several
        drawn = torch.Tag.nondeterministic_seeded in func.tags and len(func._schema.returns) == 1
        known = any(isinstance(self.value(one), Value) for one in tensors_in((args, kwargs)))
        if not known and not drawn:
            return func(*args, **kwargs)
        if known and self.device.type != "cpu":
            args = self._beside(args)
        varies = drawn or self.varies((args, kwargs))
        written = _written(func, args)
        if written is not None and isinstance(self.value(written), Tensor):
            self._copy(written)
        given, named = tree_map(self.value, (args, kwargs))
        entry = Operation((tuple(given), named), [], func, writes=written is not None)
        out = func(*args, **kwargs)
        if drawn:
            entry.drawn = out.clone()  # it may be written to
        results = tensors_in(out)
        if not results:
            if not isinstance(out, bool | int | float):
                return out  # nothing that a tensor's numbers tell
            entry.read = out
        elif "device" in named:
            named["device"] = results[0].device
            if func is aten._to_copy.default and args[0].device.type == "cpu":
                named["non_blocking"] = True  # nobody waits for what is sent
        for one in results:
            if (number := self._numbers.get(id(one))) is None:
                number = self.leaf(one, made=len(self.entries))
            if varies:
                self._varying.add(_storage(one))
            entry.outputs.append(number)
        if written is not None:
            self._writes.setdefault(_storage(written), []).append(len(self.entries))
        self.entries.append(entry)
        return out

    def beside(self, one: Any) -> Any:
        """A tensor on the networks' device: times lie in the CPU's memory, so that nobody waits for them."""
        if not isinstance(one, Tensor) or one.device.type != "cpu" or self.device.type == "cpu":
            return one
        out = to_device(one, self.device)
        if isinstance(value := self.value(one), Value):
            number = self.leaf(out, varies=self.varies(one), made=len(self.entries))
            self.entries.append(Operation(((value, self.device), {}), [number], to_device))
        return out

    def _beside(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments on one device; a number may be in the CPU's memory."""
        if not any(isinstance(one, Tensor) and one.device.type == self.device.type for one in args):
            return tuple(args)
        return tuple(self.beside(one) if isinstance(one, Tensor) and one.ndim else one for one in args)

    def _copy(self, written: Tensor) -> None:
        """A constant that is written to: every computation does that to a copy."""
        whole = written.as_strided((written.untyped_storage().nbytes() // written.itemsize,), (1,), 0)
        self._copies[_storage(written)] = copy = self.leaf(whole, made=len(self.entries))
        self.entries.append(Operation(((whole.clone(),), {}), [copy], aten.clone.default, writes=True))

    def call(self, call: Call, answer: Callable[[], Any]) -> Any:
        """A call of a network whose output is made up."""
        leaves = tree_map(self.value, call.leaves)
        # numbers that are alone, as the time of a UNet, are given to each row
        shared = [
            value for value, leaf, axis in zip(leaves, call.leaves, call.axes, strict=True)
            if axis is None and not (isinstance(leaf, Tensor) and not leaf.ndim)
        ]  # fmt: skip
        entry = NetworkCall(leaves, [], call._replace(leaves=leaves, kind=kind_of(call)), set(numbers_in(shared)))
        with self.paused():
            output = answer()
        entry.outputs = [self.leaf(tensor, varies=True, made=len(self.entries)) for tensor in tensors_in(output)]
        self.entries.append(entry)
        return output

    def segment(
        self, roots: Sequence[Any], given: Sequence[Tensor], start: int, end: int, *, draws: bool = False,
        noise: Collection[int] = (),
    ) -> Segment:  # fmt: skip
        """What leads to the tensors ``roots`` from the tensors ``given``, and from times.

        Args:
            roots: tensors.
            given: states.
            start: the first entry of this segment.
            end: the first one after it.
            draws: whether it begins with noise.
            noise: entries that draw what it may not depend on.

        Raises:
            Unsupported: it depends on something else, or its code reads numbers of the state.
        """
        values, states = ([self.value(one) for one in some] for some in (roots, given))
        if not all(isinstance(state, Value) for state in states):
            raise Unsupported("it begins with what is not a state")
        chosen = {
            place for place, entry in enumerate(self.entries[:end])
            if (draws and entry.drawn is not None) or (place >= start and not entry.outputs)
        }  # fmt: skip
        self._follow(values, chosen, set(numbers_in(states)), start, end)
        # what is drawn before the first call of a network is the same for all samples
        setup = next((i for i, one in enumerate(self.entries) if isinstance(one, NetworkCall)), len(self.entries))
        if any(place > setup or place in noise for place in self._noise(chosen)) and not draws:
            raise Unsupported("its steps depend on more than the state, the time and the prompt: noise in each step")
        entries = [self.entries[place] for place in sorted(chosen)]
        return Segment(entries, values, list(numbers_in(states)), self.tables, draws=draws)

    def noise_of(self, tensors: Sequence[Tensor]) -> set[int]:
        """The entries that draw noise which tensors are made from."""
        chosen = set[int]()
        self._follow([self.value(one) for one in tensors], chosen, set(), 0, len(self.entries))
        return self._noise(chosen)

    def _noise(self, places: Iterable[int]) -> set[int]:
        """Those of some entries that draw noise."""
        return {place for place in places if self.entries[place].drawn is not None}

    def _follow(self, roots: Sequence[Any], chosen: set[int], seen: set[int], start: int, end: int) -> None:
        """Add the entries that lead to roots, and to those that are chosen. What networks answered in earlier steps
        counts as constant: whether a step depends on it, comparisons with other answers tell."""
        following = list(numbers_in(roots))
        following += [number for place in chosen for number in self.entries[place].inputs]
        while following:
            if (number := following.pop()) in seen:
                continue
            seen.add(number)
            for place in (self._made[number], *self._writes.get(_storage(self.tensors[number]), ())):
                if not 0 <= place < end or place in chosen:
                    continue
                if place >= start or isinstance(self.entries[place], Operation):
                    chosen.add(place)
                    following += self.entries[place].inputs


def _storage(tensor: Tensor) -> Any:
    return tensor.untyped_storage()._cdata


def _written(func: Any, args: Any) -> Tensor | None:
    """The tensor that an operation changes."""
    first = func._schema.arguments[:1]
    return args[0] if first and first[0].alias_info is not None and first[0].alias_info.is_write else None
