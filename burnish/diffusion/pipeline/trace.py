"""What a pipeline computes around its networks: recorded in one run of its own ``__call__``, and computed again.

A run is answered with blanks in place of its networks' outputs. What depends on its states, on its scheduler's times or
on drawn noise is recorded: operations on tensors, and calls of networks. A *segment* is what of it leads from a state
to what the scheduler's step is given. It is computed again for other states, outputs and times, without the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_leaves, tree_map

from burnish.diffusion.pipeline.forwards import Call, Whole
from burnish.diffusion.pipeline.program import (
    NOISE,
    STATE,
    NetworkCall,
    Operation,
    Segment,
    Value,
    compute,
    inputs_of,
    is_noise,
    numbers_in,
)
from burnish.diffusion.pipeline.schedules import Unsupported
from burnish.types.batch import to_device

aten = torch.ops.aten
# a view of one state may be none of several
RESHAPED = {aten.view.default: aten.reshape.default, aten._unsafe_view.default: aten.reshape.default}


class DependsOnHistory(Unsupported):
    """A step depends on those before."""


class Trace(TorchDispatchMode):
    """Records while it is entered."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device  # of networks
        self.entries: list[Operation | NetworkCall] = []
        self._numbers: dict[int, int] = {}  # by the identity of a tensor
        self.tensors: list[Tensor] = []  # by number: kept, so that no other gets its identity
        self._depends: list[int] = []
        self._made: list[int] = []  # the entry that a value comes from, or -1
        self._copies: dict[Any, int] = {}  # of constants that were written to, by their storage
        self._constants: list[Tensor] = []  # these constants, kept as well
        self.is_paused = False
        self._writes: dict[Any, list[int]] = {}  # entries that change a storage

    def leaf(self, tensor: Tensor, depends: int, made: int = -1) -> int:
        """Record a tensor from here on; returns its number."""
        self._numbers[id(tensor)] = number = len(self.tensors)
        self.tensors.append(tensor)
        self._depends.append(depends)
        self._made.append(made)
        return number

    def value(self, leaf: Any) -> Any:
        """What stands for a tensor in arguments: itself where it is constant."""
        if isinstance(leaf, Whole):
            return Whole(self.value(leaf.value))
        if not isinstance(leaf, Tensor):
            return leaf
        if (number := self._numbers.get(id(leaf))) is not None:
            return Value(number)
        if self._copies and (copy := self._copies.get(_storage(leaf))) is not None:
            args = Value(copy), list(leaf.shape), list(leaf.stride()), leaf.storage_offset()
            number = self.leaf(leaf, self._depends[copy], len(self.entries))
            self.entries.append(Operation(aten.as_strided.default, args, {}, [number], self._depends[number]))
            return Value(number)
        return leaf

    def depends(self, tree: Any) -> int:
        """What the tensors in a tree depend on."""
        found = 0
        for leaf in tree_iter(tree):
            if isinstance(value := self.value(leaf.value if isinstance(leaf, Whole) else leaf), Value):
                found |= self._depends[value.number]
        return found

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
        known = [value.number for one in _tensors(args, kwargs) if isinstance(value := self.value(one), Value)]
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        if not known and not drawn:
            return func(*args, **kwargs)
        if known and self.device.type != "cpu":
            args = self._beside(args)
        written = _written(func, args)
        if written is not None and isinstance(self.value(written), Tensor):
            self._copy(written)
        given = tuple(_mapped(one, self.value) for one in args)
        named = {name: _mapped(one, self.value) for name, one in kwargs.items()}
        depends = NOISE if drawn else 0
        for number in known:
            depends |= self._depends[number]
        out = func(*args, **kwargs)
        entry = Operation(RESHAPED.get(func, func), given, named, [], depends)
        if drawn:
            entry.drawn = out.clone()  # it may be written to
        results = [one for one in ([out] if isinstance(out, Tensor) else _items(out)) if isinstance(one, Tensor)]
        if not results:
            if not isinstance(out, bool | int | float):
                return out  # nothing that a tensor's numbers tell
            entry.read = out
        elif "device" in named:
            named["device"] = results[0].device
            if func is aten._to_copy.default and args[0].device.type == "cpu":
                named["non_blocking"] = True  # nobody waits for what is sent
        for one in results:
            known_as = self._numbers.get(id(one))
            number = self.leaf(one, depends, len(self.entries)) if known_as is None else known_as
            self._depends[number] |= depends  # one that is written to
            entry.outputs.append(number)
        if written is not None:
            entry.writes = True
            self._writes.setdefault(_storage(written), []).append(len(self.entries))
        self.entries.append(entry)
        return out

    def apply(self, function: Callable[..., Tensor], tensor: Tensor, *args: Any) -> Tensor:
        """What a function of our own makes of a tensor: one operation."""
        out = function(tensor, *args)
        if isinstance(value := self.value(tensor), Value) and out is not tensor:
            depends = self._depends[value.number]
            number = self.leaf(out, depends, len(self.entries))
            self.entries.append(Operation(function, (value, *args), {}, [number], depends))
        return out

    def beside(self, one: Any) -> Any:
        """A tensor on the networks' device: times lie in the CPU's memory, so that nobody waits for them."""
        moves = isinstance(one, Tensor) and one.device.type == "cpu" != self.device.type
        return self.apply(to_device, one, self.device) if moves else one

    def _beside(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments on one device; a number may be in the CPU's memory."""
        if not any(isinstance(one, Tensor) and one.device.type == self.device.type for one in args):
            return tuple(args)
        return tuple(self.beside(one) if isinstance(one, Tensor) and one.ndim else one for one in args)

    def _copy(self, written: Tensor) -> None:
        """A constant that is written to: every computation does that to a copy."""
        storage, count = _storage(written), written.untyped_storage().nbytes() // written.itemsize
        whole = written.as_strided((count,), (1,), 0).clone()
        self._constants.append(written)
        self._copies[storage] = copy = self.leaf(torch.empty(0), 0, len(self.entries))
        self.entries.append(Operation(aten.clone.default, (whole,), {}, [copy], 0, writes=True))

    def call(self, call: Call, answer: Callable[[], Any]) -> Any:
        """A call of a network whose output is made up."""
        rows = call.rows
        flags = tree_map(rows.has, call.arguments, is_leaf=rows.has)
        leaves = zip(tree_leaves(call.arguments, is_leaf=rows.has), tree_leaves(flags), strict=True)
        # numbers that are alone, as the time of a UNet, are given to each row
        single = [leaf for leaf, rowed in leaves if not rowed and not (isinstance(leaf, Tensor) and not leaf.ndim)]
        with self.paused():
            output = answer()
        entry = NetworkCall(
            call.network,
            tree_map(self.value, call.arguments),
            flags,
            call.kind,
            set(numbers_in(tree_map(self.value, single))),
        )
        for leaf in tree_iter(output):
            if isinstance(leaf, Tensor):
                entry.outputs.append(self.leaf(leaf, STATE, len(self.entries)))
        self.entries.append(entry)
        return output

    def segment(
        self, roots: Sequence[Any], given: Sequence[int], start: int, end: int, *, draws: bool = False,
        noise: Collection[int] = (),
    ) -> Segment:  # fmt: skip
        """What leads to the tensors ``roots`` from the values ``given``, and from times.

        Args:
            roots: tensors.
            given: numbers of values.
            start: the first entry of this segment.
            end: the first one after it.
            draws: whether it begins with noise.
            noise: entries that draw what it may not depend on.

        Raises:
            Unsupported: it depends on something else, or its code reads numbers of the state.
        """
        values = [self.value(root) for root in roots]
        chosen = {
            place for place, entry in enumerate(self.entries[:end])
            if (draws and is_noise(entry)) or (place >= start and not entry.outputs)
        }  # fmt: skip
        others = self._follow(values, chosen, set(given), start, end)
        # what is drawn before the first call of a network is the same for all samples
        setup = next((i for i, one in enumerate(self.entries) if isinstance(one, NetworkCall)), len(self.entries))
        entries = [self.entries[place] for place in sorted(chosen)]
        for place in chosen:
            if not draws and is_noise(self.entries[place]) and (place > setup or place in noise):
                raise Unsupported(MORE + "noise drawn in each step")
        if others and self._matters(others, entries, values):
            raise DependsOnHistory(MORE + "momentum of guidance")
        return Segment(entries, values, list(given), self.tensors, self._depends, draws=draws)

    def noise_of(self, tensors: Sequence[Tensor]) -> set[int]:
        """The entries that draw noise which tensors are made from."""
        chosen = set[int]()
        self._follow(list(map(self.value, tensors)), chosen, set(), 0, len(self.entries))
        return {place for place in chosen if is_noise(self.entries[place])}

    def _follow(self, roots: Sequence[Any], chosen: set[int], seen: set[int], start: int, end: int) -> set[int]:
        """Add the entries that lead to roots, and to those that are chosen; returns values of other steps."""
        others = set[int]()
        following = list(numbers_in(roots))
        following += [number for place in chosen for number in inputs_of(self.entries[place])]
        while following:
            if (number := following.pop()) in seen:
                continue
            seen.add(number)
            made = self._made[number]
            if self._depends[number] & STATE and made < start and self._is_given(number):
                others.add(number)
                continue
            for place in (made, *self._writes.get(_storage(self.tensors[number]), ())):
                if 0 <= place < end and place not in chosen:
                    chosen.add(place)
                    following += inputs_of(self.entries[place])
        return others

    def _is_given(self, number: int) -> bool:
        """Whether no operation makes a value: a state, or what a network answers."""
        return self._made[number] < 0 or isinstance(self.entries[self._made[number]], NetworkCall)

    def _matters(self, others: set[int], entries: Sequence[Operation | NetworkCall], roots: Sequence[Any]) -> bool:
        """Whether states and outputs of other steps change anything: what is only kept beside a state does not."""
        found = []
        for seed in (0, 1):
            draws = [torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)]
            values, reads = dict(enumerate(self.tensors)), []
            for number, tensor in enumerate(self.tensors):
                if self._depends[number] & STATE and self._is_given(number):
                    values[number] = torch.randn(tensor.shape, generator=draws[number in others]).to(tensor)
            for entry in entries:
                if isinstance(entry, NetworkCall):
                    reads += [values[number] for number in inputs_of(entry)]
                else:
                    compute(entry, values)
            found.append(reads + [values[root.number] for root in roots if isinstance(root, Value)])
        return not all(map(torch.equal, *found))


MORE = "its steps depend on more than the state, the time and the prompt: "


def _storage(tensor: Tensor) -> Any:
    return tensor.untyped_storage()._cdata


def _items(out: Any) -> Sequence[Any]:
    return out if isinstance(out, list | tuple) else ()


def _tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    for one in (*args, *kwargs.values()):
        for item in (one,) if isinstance(one, Tensor) else _items(one):
            if isinstance(item, Tensor):
                yield item


def _mapped(one: Any, function: Callable[[Any], Any]) -> Any:
    return [function(item) for item in one] if isinstance(one, list | tuple) else function(one)


def _written(func: Any, args: Any) -> Tensor | None:
    """The tensor that an operation changes."""
    first = func._schema.arguments[:1]
    return args[0] if first and first[0].alias_info is not None and first[0].alias_info.is_write else None
