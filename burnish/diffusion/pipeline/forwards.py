"""Calls of networks by several rows, put together into few forwards."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_leaves, tree_map, tree_map_only, tree_map_with_path

from burnish.diffusion.pipeline.base import Agree
from burnish.diffusion.pipeline.schedules import Unsupported
from burnish.types.batch import is_sharded


@dataclass(frozen=True)
class Whole:
    """An argument that is for all rows, also where it is as long as they are many."""

    value: Tensor | list[Any]


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

    def map(self, function: Callable[[Any], Any], tree: Any) -> Any:
        """The tree with what a function makes of such tensors and lists."""
        return tree_map(lambda value: function(value) if self.has(value) else value, tree, is_leaf=self.has)


def tiled(value: Any, copies: int) -> Any:
    """A tensor or a list several times, one after the other."""
    if copies == 1:
        return value
    if isinstance(value, list):
        return value * copies
    return torch.cat([value] * copies)


@dataclass(frozen=True)
class Call:
    """A call that a pipeline makes of one of its networks."""

    network: str
    arguments: dict[str, Any]  # by name
    shares: str | None = None  # equal for calls that may share a forward, where that is known

    @property
    def first(self) -> Any:
        """Its first list, or tensor with rows."""
        return next(v for v in self.arguments.values() if isinstance(v, list) or (isinstance(v, Tensor) and v.ndim))

    @property
    def rows(self) -> Rows:
        return Rows(len(self.first), isinstance(self.first, list))

    @property
    def size(self) -> Any:
        """Of a row; it may be a list, too."""
        return self.network, *(leaf.shape for leaf in tree_leaves(self.first[0]))

    @property
    def kind(self) -> str:
        """Equal for calls that may share a forward.

        Rules: the same network; the same arguments, of the same types; tensors of the same shapes but for the rows;
        equal values of everything that has no rows, but for scalars, as the time of a UNet.
        """
        if self.shares is not None:
            return self.shares

        def kind(value: Any) -> Any:
            rowed, value = self.rows.has(value), value.value if isinstance(value, Whole) else value
            if isinstance(value, list):
                return sorted({f"{item.dtype} {item.ndim}" if isinstance(item, Tensor) else "" for item in value})
            if not isinstance(value, Tensor):
                return value
            content = b"" if rowed or not value.ndim else value.cpu().contiguous().view(torch.uint8).numpy()
            # the first state of some has the precision of their weights, and those that follow have more
            dtype = torch.float32 if rowed and value.is_floating_point() else value.dtype
            return dtype, value.shape[1:] if rowed else value.shape, hash(bytes(content))

        return f"{self.network} {tree_map(kind, self.arguments, is_leaf=self.rows.has)}"


def groups(calls: Sequence[Call]) -> list[list[int]]:
    """Which calls may share a forward, in order of the networks' names and of appearance."""
    found: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        found.setdefault(call.kind, []).append(i)
    return sorted(found.values(), key=lambda part: (calls[part[0]].network, part[0]))


def joined(calls: Sequence[Call]) -> Call:
    """One call for those of a group."""
    if len(calls) == 1:
        return calls[0]
    rows, counts = calls[0].rows, [call.rows.length for call in calls]

    def join(*values: Any) -> Any:
        if isinstance(values[0], Tensor) and not values[0].ndim:
            return torch.cat([value.expand(count) for value, count in zip(values, counts, strict=True)])
        if not rows.has(values[0]):
            return values[0]
        return torch.cat(values) if isinstance(values[0], Tensor) else list(chain(*values))

    return Call(calls[0].network, tree_map(join, *(call.arguments for call in calls), is_leaf=rows.has))


class Forwards:
    """Runs networks, and knows the shapes of what they have returned for inputs of a size."""

    def __init__(self, compute: torch.dtype) -> None:
        """Args: ``compute`` is the precision of forward passes."""
        self._compute = compute
        self._published = WeakKeyDictionary[nn.Module, bool]()
        self._types: dict[tuple[str, str], torch.dtype] = {}  # of arguments in the pipeline's own run
        self._known: dict[Any, tuple[Any, Rows]] = {}  # by the size of the first input
        self._whole = set[tuple[str, str]]()  # arguments of networks that were once longer or shorter than the rows

    def noted(
        self, network: str, arguments: dict[str, Any], of_states: Callable[[Any], bool] = lambda value: False
    ) -> Call:
        """A call as the pipeline makes it for a state; ``of_states`` tells which arguments are made of states."""
        rows = Call(network, arguments).rows

        def marked(path: Any, value: Any) -> Any:
            for one in tree_leaves(value):
                if isinstance(one, Tensor) and one.is_floating_point():
                    self._types.setdefault((network, keystr(path)), one.dtype)
                    if of_states(one):  # which are float32 here, also where the pipeline's own are not
                        self._types[network, keystr(path)] = self._compute
            if not (isinstance(value, Tensor) and value.ndim) and not isinstance(value, list):
                return value
            if not rows.has(value):
                self._whole.add((network, keystr(path)))
            return Whole(value) if (network, keystr(path)) in self._whole else value

        return Call(network, tree_map_with_path(marked, arguments, is_leaf=rows.has))

    def __call__(self, network: Callable[..., Any], call: Call) -> Any:
        """The output of a network, in float32."""
        ways = self._ways(network, call)
        for published, arguments, context in ways:
            try:
                with context:
                    output = network(**arguments)
            except RuntimeError:
                if published and len(ways) > 1:
                    continue
                raise
            if isinstance(network, nn.Module):
                self._published[network] = published
            break
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(output)):
            raise Unsupported(f"its {call.network} returns a {type(output).__name__}, whose tensors can't be found")
        output = tree_map_only(Tensor, lambda value: value.float() if value.is_floating_point() else value, output)
        # expanded zeros take no memory
        if (size := call.size) not in self._known:
            zeros = tree_map_only(Tensor, lambda value: value.new_zeros(()).expand(value.shape), output)
            self._known[size] = zeros, call.rows
        return output

    def _ways(
        self, network: Callable[..., Any], call: Call
    ) -> list[tuple[bool, dict[str, Any], AbstractContextManager[Any]]]:
        """How to run a network: as diffusers does where its weights rest in less than float32, else under autocast. The
        first time it has both, as its arguments may not fit."""
        plain = tree_map_only(Whole, lambda whole: whole.value, call.arguments)
        if self._compute == torch.float32 or not isinstance(network, nn.Module):
            return [(False, plain, nullcontext())]
        # a forward uses each weight once; a cache of the cast ones would only keep a second network until it ends
        cast = torch.autocast(next(network.parameters()).device.type, self._compute, cache_enabled=False)
        known, ways = self._published.get(network), list[Any]()
        if _rests(network) if known is None else known:
            ways.append((True, self._as_published(call), nullcontext()))
        if not known:
            ways.append((False, plain, cast))
        return ways

    def _as_published(self, call: Call) -> dict[str, Any]:
        """Arguments in the precision that the pipeline would give them in."""

        def typed(path: Any, value: Any) -> Any:
            value = value.value if isinstance(value, Whole) else value
            dtype = self._types.get((call.network, keystr(path)))
            if dtype is None:
                return value
            return tree_map_only(Tensor, lambda one: one.to(dtype) if one.is_floating_point() else one, value)

        found: dict[str, Any] = tree_map_with_path(typed, call.arguments, is_leaf=call.rows.has)
        return found

    def blank(self, network: Callable[..., Any], call: Call) -> Any:
        """An output of zeros; the network runs for inputs of a size that is new, unless ranks hold it together."""
        if (size := call.size) not in self._known:
            if isinstance(network, nn.Module) and any(is_sharded(weight) for weight in network.parameters()):
                raise Unsupported(
                    f"its {call.network} is called with inputs of a size that its own run didn't have; set "
                    "rollout.height and rollout.width, and give images of one size"
                )
            with torch.no_grad():
                self(network, call)
        zeros, rows = self._known[size]
        return rows.map(lambda value: tiled(value[:1], call.rows.length), zeros)

    def answered(
        self, networks: Mapping[str, Callable[..., Any]], runs: Sequence[Generator[list[Call], Any, Any]],
        agree: Agree | None = None, trained: Sequence[str] = (), *, shares: bool,
    ) -> list[Any]:  # fmt: skip
        """What computations return, when networks have answered all their calls.

        Args:
            networks: by the names of calls.
            runs: computations, which yield the calls that each waits for.
            agree: ranks agree on how many forwards of the networks that are ``trained`` they make.
            trained: their names.
            shares: whether rows may share a forward.
        """
        found: list[Any] = [None] * len(runs)
        asked: dict[int, list[Call]] = {}

        def resume(i: int, answers: list[Any] | None) -> None:
            try:
                asked[i] = runs[i].send(answers)
            except StopIteration as done:
                found[i] = done.value

        for i in range(len(runs)):
            resume(i, None)
        while asked:
            calls = [call for some in asked.values() for call in some]
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
                    for i in part:
                        at = slice(start, start := start + calls[i].rows.length)
                        outputs[i] = whole.rows.map(operator.itemgetter(at), output)
                for _ in range(count - counts[name]):  # 0 with the output's gradients
                    spare = spare + (tree_leaves(self(networks[name], calls[0]))[0] * 0).sum()
            if isinstance(spare, Tensor):
                outputs[0] = tree_map_only(Tensor, spare.add, outputs[0])
            answers = iter(outputs)
            for i, some in list(asked.items()):
                del asked[i]
                resume(i, [next(answers) for _ in some])
        return found


def _rests(network: nn.Module) -> bool:
    """Whether its weights rest in less than float32, but for adapters and those that its class keeps in float32."""
    kept = {"lora_A", "lora_B", *(getattr(network, "_keep_in_fp32_modules", None) or ())}
    return not any(
        weight.dtype == torch.float32 and kept.isdisjoint(name.split("."))
        for name, weight in network.named_parameters()
    )
