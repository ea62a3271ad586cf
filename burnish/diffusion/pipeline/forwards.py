"""Calls of networks by several rows, put together into few forwards."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import (
    TreeSpec,
    keystr,
    tree_flatten_with_path,
    tree_iter,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
)

from burnish.diffusion.pipeline.base import Agree
from burnish.diffusion.pipeline.networks import attending
from burnish.diffusion.pipeline.schedules import Unsupported
from burnish.types.batch import is_sharded


class Rows(NamedTuple):
    """Tells what has an entry for each row of a call: tensors and lists of that length. All else is for all rows."""

    length: int
    listed: bool  # whether the call's first value is a list

    def has(self, value: Any) -> bool:
        """A list of tensors that have all rows themselves is one of layers, but in calls that begin with a list."""
        if not isinstance(value, list):
            return isinstance(value, Tensor) and value.ndim > 0 and len(value) == self.length
        layers = not self.listed and all(isinstance(item, Tensor) and self.has(item) for item in value)
        return len(value) == self.length and not layers

    def map(self, function: Callable[..., Any], tree: Any, *others: Any) -> Any:
        """The tree, or the last of others like it, with what a function makes of such tensors and lists, and of tensors
        with several entries for each row, as those of frames: it is also given how many."""

        def own(value: Any, *more: Any) -> Any:
            each = int(self.has(value))
            if not each and isinstance(value, Tensor) and value.ndim and not len(value) % self.length:
                each = len(value) // self.length
            return function(each, value, *more) if each else (value, *more)[-1]

        return tree_map(own, tree, *others, is_leaf=self.has)


class Call(NamedTuple):
    """A call that a pipeline makes of one of its networks."""

    network: str
    leaves: list[Any]  # of its arguments; a list with an entry for each row is one
    axes: list[int | None]  # of those that have an entry, or several, for each row: the axis that these lie along
    types: list[torch.dtype | None]  # in the pipeline's own run
    tree: TreeSpec  # of the arguments by name
    rows: Rows
    size: Any  # of a row; it may be a list, too
    kind: str = ""  # equal for calls that may share a forward; see ``kind_of``
    attention: Mapping[str, Any] = {}  # processors in the place of modules' own, by the names of the modules

    @property
    def arguments(self) -> dict[str, Any]:
        """By name."""
        return tree_unflatten(self.leaves, self.tree)  # type: ignore[no-any-return]


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors in a tree."""
    return [leaf for leaf in tree_iter(tree) if isinstance(leaf, Tensor)]


def kind_of(call: Call) -> str:
    """Equal for calls that may share a forward.

    Rules: the same network; the same arguments, of the same types; tensors of the same shapes but for the rows; equal
    values of everything that has no rows, but for scalars, as the time of a UNet.
    """

    def kind(value: Any, axis: int | None) -> Any:
        if isinstance(value, list) and axis is not None:
            return sorted({f"{item.dtype} {item.ndim}" if isinstance(item, Tensor) else "" for item in value})
        if not isinstance(value, Tensor):
            return told(value)
        if axis is not None:
            # the first state of some has the precision of their weights, and those that follow have more
            dtype = torch.float32 if value.is_floating_point() else value.dtype
            return dtype, value.shape[:axis], value.shape[axis + 1 :]
        content = value.cpu().contiguous().view(torch.uint8).numpy() if value.ndim else b""
        return value.dtype, value.shape, hash(bytes(content))

    attention = [(name, type(processor).__name__) for name, processor in call.attention.items()]
    return f"{call.network} {call.tree} {list(map(kind, call.leaves, call.axes))} {attention}"


class Contents(pickle.Pickler):
    """Pickles what an object holds, with tensors by their identity."""

    def persistent_id(self, obj: Any) -> int | None:
        return id(obj) if isinstance(obj, Tensor) else None


def told(value: Any) -> Any:
    """What an argument that is no tensor is compared by: of objects, as caches of attention, all that they hold."""
    if isinstance(value, torch.Generator):
        return torch.Generator
    if not hasattr(value, "__dict__") or callable(value):
        return value
    Contents(contents := io.BytesIO()).dump(value)
    return contents.getvalue()


def groups(calls: Sequence[Call]) -> list[list[int]]:
    """Which calls may share a forward, in order of the networks' names and of appearance."""
    found: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        found.setdefault(call.kind, []).append(i)
    return sorted(found.values(), key=lambda part: (calls[part[0]].network, part[0]))


def joined(calls: Sequence[Call]) -> Call:
    """One call for those of a group. Where other processors attend, which take the first half or third of all rows for
    a branch of guidance, the first rows of all calls come first, and the last ones last."""
    first, counts = calls[0], [call.rows.length for call in calls]
    if len(calls) == 1:
        return first

    def join(axis: int | None, *values: Any) -> Any:
        if isinstance(values[0], Tensor) and not values[0].ndim:
            axis, values = 0, tuple(value.expand(count) for value, count in zip(values, counts, strict=True))
        if axis is None:
            return values[0]
        whole = torch.cat(values, axis) if isinstance(values[0], Tensor) else list(chain(*values))
        return turned(whole, axis, len(calls), counts[0]) if first.attention else whole

    leaves = list(map(join, first.axes, *(call.leaves for call in calls)))
    return first._replace(leaves=leaves, rows=first.rows._replace(length=sum(counts)))


def turned(value: Any, axis: int, outer: int, inner: int) -> Tensor:
    """Rows [outer * inner] along an axis, or several entries for each, by their inner numbers first."""
    return value.unflatten(axis, (outer, inner, -1)).transpose(axis, axis + 1).flatten(axis, axis + 2)  # type: ignore[no-any-return]


class RunDone(BaseException):
    """All that a run was for, with what it has found; not an Exception, which pipelines may catch."""


class Forwards:
    """Runs networks, and knows the shapes of what they have returned for inputs of a size."""

    def __init__(self, compute: torch.dtype) -> None:
        """Args: ``compute`` is the precision of forward passes."""
        self._compute = compute
        self._published = WeakKeyDictionary[nn.Module, bool]()
        self._types: dict[tuple[str, str], torch.dtype] = {}  # of arguments in the pipeline's own run
        self._known: dict[Any, tuple[Any, Rows]] = {}  # by the size of the first input
        self.computes = True  # whether networks may run for inputs of a size that is new
        self.axes: dict[tuple[str, str], int | None] = {}  # of arguments: what is known of them
        self._counts: dict[tuple[str, str], set[int]] = {}  # of rows that they came with
        self._lists: dict[tuple[str, str], set[int]] = {}  # the same of lists of numbers with as many entries
        self._every: dict[str, set[int]] = {}  # counts of rows of a network's calls
        self._ratios: dict[tuple[str, str], list[float | None]] = {}  # of an axis to the rows, where all calls agree

    def anew(self) -> Forwards:
        """Those that know no more of arguments than the shapes of outputs, and run no network."""
        other = Forwards(self._compute)
        other._known, other.computes = self._known, False
        return other

    def noted(
        self, network: str, arguments: dict[str, Any], of_states: Callable[[Any], bool] = lambda value: False
    ) -> Call:
        """A call as the pipeline makes it for a state; ``of_states`` tells which arguments are made of states."""
        first = next(v for v in arguments.values() if isinstance(v, list) or (isinstance(v, Tensor) and v.ndim))
        rows = Rows(len(first), isinstance(first, list))
        every = self._every.setdefault(network, set())
        every.add(rows.length)
        leaves, tree = tree_flatten_with_path(arguments, is_leaf=rows.has)
        axes, types = list[int | None](), list[torch.dtype | None]()
        for path, leaf in leaves:
            key = network, keystr(path)
            for tensor in filter(torch.is_floating_point, tensors_in(leaf)):
                self._types.setdefault(key, tensor.dtype)
                if of_states(tensor):  # which are float32 here, also where the pipeline's own are not
                    self._types[key] = self._compute
            if isinstance(leaf, list) and rows.has(leaf):
                axes.append(0 if tensors_in(leaf) else self._axis_of_numbers(key, rows.length, every))
            else:
                axes.append(self._axis(key, leaf, rows.length) if isinstance(leaf, Tensor) else None)
            types.append(self._types.get(key))
        # lists of numbers that had no entry for each row in this call
        self.axes |= {key: None for key in self._lists if key[0] == network and self._lists[key] != every}
        size = network, *(leaf.shape for leaf in tree_leaves(first[0]))
        return Call(network, [leaf for _, leaf in leaves], axes, types, tree, rows, size)

    def _axis(self, key: tuple[str, str], leaf: Tensor, count: int) -> int | None:
        """Where an argument has its rows: the axis that was as many times as long as they are in all calls.

        With one number of rows, others would be by chance.
        """
        counts = self._counts.setdefault(key, set())
        counts.add(count)
        ratios: list[float | None] = [size / count for size in leaf.shape]
        pairs = zip(ratios, self._ratios.get(key, ratios), strict=False)
        self._ratios[key] = ratios = [ratio if ratio == other else None for ratio, other in pairs]
        known = (
            axis for axis, ratio in enumerate(ratios)
            if ratio is not None and (len(counts) > 1 or (axis, ratio) == (0, 1))
        )  # fmt: skip
        self.axes[key] = axis = next(known, None)
        return axis

    def _axis_of_numbers(self, key: tuple[str, str], count: int, every: set[int]) -> int | None:
        """The same of a list of numbers: 0 if it was as long as there were rows in every call of the network."""
        self._lists.setdefault(key, set()).add(count)
        self.axes[key] = axis = 0 if self._lists[key] == every else None
        return axis

    def __call__(self, network: Callable[..., Any], call: Call) -> Any:
        """The output of a network, in float32.

        It runs as diffusers runs it where its weights rest in less than float32, if its arguments fit when it is first
        called; else under autocast.
        """
        output: Any = None
        context: AbstractContextManager[Any] = nullcontext()
        if self._compute != torch.float32 and isinstance(network, nn.Module):
            known = self._published.get(network)
            if known or (known is None and _rests(network)):
                try:
                    pairs = zip(call.leaves, call.types, strict=True)
                    published = [leaf if dtype is None else _cast(leaf, dtype) for leaf, dtype in pairs]
                    with attending(network, call.attention):
                        output = network(**tree_unflatten(published, call.tree))
                except RuntimeError:
                    if known:
                        raise
            self._published[network] = output is not None
            # a forward uses each weight once; a cache of the cast ones would only keep a second network until it ends
            device = tensors_in(call.leaves)[0].device.type
            context = torch.autocast(device, self._compute, cache_enabled=False)
        if output is None:
            with context, attending(network, call.attention):
                output = network(**call.arguments)
        if not tensors_in(output):
            raise Unsupported(f"its {call.network} returns a {type(output).__name__}, whose tensors can't be found")
        output = _cast(output, torch.float32)
        # expanded zeros take no memory
        if call.size not in self._known:
            zeros = tree_map_only(Tensor, lambda value: value.new_zeros(()).expand(value.shape), output)
            self._known[call.size] = zeros, call.rows
        return output

    def blank(self, network: Callable[..., Any], call: Call) -> Any:
        """An output of zeros; the network runs for inputs of a size that is new, unless ranks hold it together."""
        if call.size not in self._known:
            if not self.computes:
                raise RunDone
            if isinstance(network, nn.Module) and any(is_sharded(weight) for weight in network.parameters()):
                raise Unsupported(
                    f"its {call.network} is called with inputs of a size that its own run didn't have; set "
                    "rollout.height and rollout.width, and give images of one size"
                )
            with torch.no_grad():
                self(network, call)
        zeros, rows = self._known[call.size]
        count = call.rows.length
        return rows.map(
            lambda each, all: (
                all[:1] * count if isinstance(all, list) else all[:1].expand(each * count, *all.shape[1:])
            ),
            zeros,
        )

    def answered(
        self, networks: Mapping[str, Callable[..., Any]], runs: Sequence[Generator[list[Call], Any, Any]],
        agree: Agree | None = None, trained: Sequence[str] = (), *, shares: bool, order: Sequence[int] = (),
    ) -> list[Any]:  # fmt: skip
        """What computations return, when networks have answered all their calls.

        Args:
            networks: by the names of calls.
            runs: computations, which yield the calls that each waits for.
            agree: ranks agree on how many forwards of the networks that are ``trained`` they make.
            trained: their names.
            shares: whether rows may share a forward.
            order: of computations in a forward, by which gradients are summed: of several with the same number, the
                first calls come before the second ones.
        """
        results: list[Any] = [None] * len(runs)
        answers: dict[int, Any] = dict.fromkeys(range(len(runs)))  # for runs that go on
        while True:
            asked: dict[int, list[Call]] = {}
            for i, some in answers.items():
                try:
                    asked[i] = runs[i].send(some)
                except StopIteration as done:
                    results[i] = done.value
            if not asked:
                return results
            places = sorted((order[i] if order else i, at, i) for i, some in asked.items() for at in range(len(some)))
            calls = [asked[i][at] for _, at, i in places]
            outputs: list[Any] = [None] * len(calls)
            here: dict[str, list[list[int]]] = {name: [] for name in networks}
            for part in groups(calls) if shares else [[i] for i in range(len(calls))]:
                here[calls[part[0]].network].append(part)
            counts = {name: len(parts) for name, parts in here.items()}
            spare: Tensor | float = 0.0
            for name, count in (counts if agree is None else counts | agree({n: counts[n] for n in trained})).items():
                for part in here[name]:
                    whole, start = joined([calls[i] for i in part]), 0
                    output = self(networks[name], whole)
                    zeros, rows = self._known[whole.size]
                    if whole.attention and len(part) > 1:
                        back = calls[part[0]].rows.length, len(part)
                        output = rows.map(lambda each, _, value: turned(value, 0, *back), zeros, output)  # noqa: B023
                    for i in part:
                        end = start + calls[i].rows.length
                        outputs[i] = rows.map(lambda each, _, value: value[start * each : end * each], zeros, output)  # noqa: B023
                        start = end
                for _ in range(count - counts[name]):  # 0 with the output's gradients
                    spare = spare + (tree_leaves(self(networks[name], calls[0]))[0] * 0).sum()
            if isinstance(spare, Tensor):
                outputs[0] = tree_map_only(Tensor, spare.add, outputs[0])
            answers = {i: [None] * len(some) for i, some in asked.items()}
            for (_, at, i), output in zip(places, outputs, strict=True):
                answers[i][at] = output


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    """The tree with its floating-point tensors in a precision."""
    return tree_map_only(Tensor, lambda value: value.to(dtype) if value.is_floating_point() else value, tree)


def _rests(network: nn.Module) -> bool:
    """Whether its weights rest in less than float32, but for adapters and those that its class keeps in float32."""
    kept = {"lora_A", "lora_B", *(getattr(network, "_keep_in_fp32_modules", None) or ())}
    return not any(
        weight.dtype == torch.float32 and kept.isdisjoint(name.split("."))
        for name, weight in network.named_parameters()
    )
