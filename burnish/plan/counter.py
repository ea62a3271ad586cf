"""Counts the live bytes of tensors, by phase and by what they are for; on fake tensors as on real ones."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from burnish.config.hardware import NODE
from burnish.training.flop_counter import FlopCounter

DEVICE, META = torch.ops.prim.device.default, torch.device("meta")
SMALL = 1 << 10  # elements of a tensor that may be on either side
ROUNDED = 512  # bytes: CUDA's caching allocator gives multiples of it

WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS = "weights", "gradients", "optimizer", "activations"
CACHES, BATCH, BUFFERS, REWARDS = "caches", "batch", "buffers", "rewards"
CATEGORIES = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, CACHES, BATCH, BUFFERS, REWARDS)
SHARDS, AVERAGE = "shards", "average"  # of the networks that are trained: see ``LiveBytes.rests``
HOST, STORED = "host", "stored"  # in CPU memory where the networks are on a GPU: offloaded weights, and samples
IN_HOST = (HOST, STORED)
OPERATIONS, KERNELS, MOVED = "operations", "kernels", "bytes"  # of work
INSIDE, BETWEEN = "of its machine", "of others"  # bytes that it receives from ranks
SENT = {  # times that a tensor goes round a ring
    **dict.fromkeys(("_allgather_base_", "_reduce_scatter_base_", "alltoall_base_", "allgather_", "alltoall_"), 1),
    "allreduce_": 2,
}
NO_KERNELS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_unsafe_view")
EXCHANGES = ("c10d", "_c10d_functional", "fsdp")  # namespaces of what ranks do together


Tell = Callable[[str], None]  # is told what is computed next


def silent(text: str) -> None:
    """Tell nobody."""


@dataclass(eq=False)
class Peak:
    """The most bytes that were alive at once in a phase."""

    total: int = 0
    parts: dict[str, int] = field(default_factory=dict)  # by category, at that moment
    host: int = 0  # the most bytes in CPU memory at once
    work: Counter[str] = field(default_factory=Counter)  # operations, kernels, bytes that these move, or ranks send


@dataclass
class _Storage:
    size: int
    category: str
    alive: weakref.ref[Any]


class LiveBytes(TorchDispatchMode):
    """A mode that sees every tensor which an operation returns, and when its memory is freed.

    Memory that a kernel takes and frees inside, and what libraries keep for themselves, stays unseen.
    """

    def __init__(self, entered: Tell = silent) -> None:
        """Args: ``entered`` is told of every phase that begins."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.entered, self.compute = entered, _compute
        self.peaks: dict[str, Peak] = {}  # of every phase, in the order that they were first entered in
        self.done: Counter[str] = Counter()  # all work so far: operations, kernels, and bytes that these move
        self.category = ACTIVATIONS  # of what is made from now on
        self.times: dict[str, float] = {}  # a category whose tensors stand for more of them, and how many
        self.rests = {SHARDS: WEIGHTS, AVERAGE: WEIGHTS}  # what a category counts as: HOST is in CPU memory
        self._by: Counter[str] = Counter()
        self._known: dict[int, _Storage] = {}
        self._phases: list[str] = []
        self._spans: list[Peak] = []
        self._resize: Any = torch.UntypedStorage.resize_
        self._patches = ExitStack()
        self._formulas = FlopCounter().formulas

    @property
    def live(self) -> int:
        """Bytes in the memory of the device."""
        return sum(self.parts().values())

    @contextmanager
    def phase(self, name: str, category: str | None = None) -> Iterator[None]:
        """Count to a phase; within another one, that one goes on afterwards.

        Args:
            name: of the phase.
            category: of what is made in it; None keeps that of the phase around it.
        """
        if not self._phases:
            gc.collect()
            self.entered(name)
        self._phases.append(name)
        self.peaks.setdefault(name, Peak())
        with self.made_as(category or self.category):
            self._risen()
            try:
                yield
            finally:
                self._phases.pop()
        self._risen()

    def restart(self, *kept: str) -> None:
        """Forget all phases but those, and what stood for more of its kind."""
        gc.collect()
        self.peaks, self.times, self._by = {name: self.peaks[name] for name in kept}, {}, Counter()
        for known in self._known.values():
            self._by[known.category] += known.size

    @contextmanager
    def made_as(self, category: str) -> Iterator[None]:
        """What is made in this context is of a category."""
        before, self.category = self.category, self.rests.get(category, category)
        try:
            yield
        finally:
            self.category = before

    @contextmanager
    def span(self) -> Iterator[Peak]:
        """The peak of what happens in this context, as what it adds to what was alive before."""
        before, parts, done = self.live, self.parts(), Counter(self.done)
        found = Peak(before, parts)
        self._spans.append(found)
        try:
            yield found
        finally:
            self._spans.remove(found)
            found.total -= before
            found.work = self.done - done
            found.parts = {name: size - parts.get(name, 0) for name, size in found.parts.items()}

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """What happens in this context counts to spans alone, and not to the phase; what is left of it counts later."""
        before, self._phases = self._phases, []
        try:
            yield
        finally:
            self._phases = before

    def repeated(self, span: Peak) -> None:
        """The same happens again."""
        self._did(span.work)
        self._risen(span)

    def label(self, category: str, tensors: Any) -> None:
        """Say what tensors are for: those of a phase so far, and those that were made before counting began."""
        for tensor in tensors_of(tensors):
            self._add(tensor, self.rests.get(category, category), again=True)

    def repeat_work(self, phase: str, times: float, some: Mapping[str, float] | None = None, more: float = 1.0) -> None:
        """What a phase did stands for so many times as much, but ``some`` of it for ``more`` times."""
        if phase in self.peaks:
            some = some or {}
            every = self.peaks[phase].work.items()
            work: Any = {kind: amount * times + some.get(kind, 0) * (more - times) for kind, amount in every}
            self.peaks[phase].work = Counter(work)

    def held(self, tensors: Iterable[Tensor]) -> int:
        """Bytes of memory that tensors have, some of it together."""
        return sum(self._known[key].size for key in {key_of(tensor) for tensor in tensors} & self._known.keys())

    def parts(self) -> dict[str, int]:
        """Live bytes by category, in the memory of the device."""
        return {name: size for name, size in self._by.items() if size and name not in IN_HOST}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard against it costs more than what is counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE:
            return device_of(args[0])
        with torch._C.DisableTorchFunction():  # of which this is no part: every look at a tensor would be one
            found = self.compute(func, types, args, kwargs or {})
            inputs = list(tensors_in(args))
            outputs = list(tensors_in(found if isinstance(found, list | tuple) else (found,)))
            category = self._exchanged(args, kwargs) if func.namespace in EXCHANGES else self._inherited(inputs)
            for one in outputs:
                self._add(one, category)
            if _computes(func):
                moved = sum(one.numel() * one.element_size() for one in (*inputs, *outputs))
                formula = self._formulas.get(func.overloadpacket)
                operations = 0.0 if formula is None else float(formula(*args, **(kwargs or {}), out_val=found))
                self._did({KERNELS: 1, MOVED: moved, OPERATIONS: operations, **received(func, args)})
        return found

    def __enter__(self) -> LiveBytes:
        # sharded networks free their gathered weights by resizing storages, which no operation tells of
        def resized(storage: Any, size: int) -> Any:
            found = self._resize(storage, size)
            if (known := self._known.get(storage._cdata)) is not None:
                self._change(known, size, known.category)
            return found

        self._patches.enter_context(patch.object(torch.UntypedStorage, "resize_", resized))
        self._patches.enter_context(patch.object(torch, "inference_mode", _no_grad))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._patches.close()

    def _did(self, work: Mapping[str, float]) -> None:
        for count in (self.done, *(self.peaks[name].work for name in self._phases[-1:])):
            for kind, amount in work.items():
                count[kind] += amount  # type: ignore[assignment]

    def _inherited(self, inputs: Iterable[Tensor]) -> str:
        """What is computed from the host's tensors alone stays there."""
        found = self.category
        for one in inputs if self._by[HOST] or self._by[STORED] else ():
            if (kind := self._category(one)) in IN_HOST:
                found = str(kind)
            elif one.numel() > SMALL:
                return self.category
        return found

    def _category(self, tensor: Tensor) -> str | None:
        known = self._known.get(key_of(tensor))
        return None if known is None else known.category

    def _exchanged(self, args: Any, kwargs: Any) -> str:
        """What takes part in an exchange is a buffer, unless it is known to be a weight or a gradient."""
        for tensor in tree_iter((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._add(tensor, BUFFERS, again=self._category(tensor) == ACTIVATIONS)
        return self.category  # also of what is gathered from the host's memory

    def _add(self, tensor: Tensor, category: str, *, again: bool = False) -> None:
        storage = storage_of(tensor)
        if storage is None:
            return
        key = storage._cdata
        known = self._known.get(key)
        if known is None:
            self._known[key] = known = _Storage(0, category, weakref.ref(storage, partial(self._freed, key)))
        stays = not again or (category == BATCH and known.category == STORED)
        self._change(known, storage.nbytes(), known.category if stays else category)

    def _change(self, known: _Storage, size: int, category: str) -> None:
        """Memory has this size now, and is for this."""
        rounded = -(-size // ROUNDED) * ROUNDED
        if rounded == known.size and category == known.category:
            return
        rises = rounded > known.size or (category in IN_HOST) != (known.category in IN_HOST)
        for name, change in ((known.category, -known.size), (category, rounded)):
            self._by[name] += int(change * self.times.get(name, 1))
        known.size, known.category = rounded, category
        if rises:
            self._risen()

    def _freed(self, key: int, _: Any) -> None:
        if (known := self._known.pop(key, None)) is not None:
            self._change(known, 0, known.category)

    def _risen(self, more: Peak | None = None) -> None:
        """Look whether this is the peak of what is looked at, with ``more`` beside what is alive."""
        peaks = [*self._spans, *(self.peaks[name] for name in self._phases[-1:])]
        if not peaks:
            return
        parts = self.parts()
        live, host = sum(parts.values()), self._by[HOST] + self._by[STORED]
        if more is not None:
            live, parts = live + more.total, dict(Counter(parts) + Counter(more.parts))
        for peak in peaks:
            peak.host = max(peak.host, host)
            if live >= peak.total:
                peak.total, peak.parts = live, {name: size for name, size in parts.items() if size > 0}


def _compute(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives by itself."""
    return func(*args, **kwargs)


def _no_grad(mode: bool = True) -> AbstractContextManager[Any]:
    """In the place of inference mode, which hides the operations that others consist of, as linear layers do."""
    return torch.no_grad() if mode else nullcontext()


@cache
def _computes(func: Any) -> bool:
    """Whether an operation runs a kernel."""
    views = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
    return not views and func.overloadpacket.__name__ not in NO_KERNELS


def received(func: Any, args: Any) -> dict[str, int]:
    """Bytes that an exchange brings, sent in a ring: of N ranks (N - 1) / N of a tensor that is gathered, exchanged or
    reduced to shares, twice that of one that is summed for all; from this rank's machine, or from others."""
    rounds = SENT.get(func.overloadpacket.__name__, 0)
    if not rounds or func.namespace != "c10d":
        return {}
    leaves = list(tree_iter(args))
    size = max(one.numel() * one.element_size() for one in leaves if isinstance(one, Tensor))
    group = dist.ProcessGroup.unbox(next(one for one in leaves if isinstance(one, torch.ScriptObject)))
    ranks = dist.get_process_group_ranks(group)
    where = INSIDE if max(ranks) // NODE == min(ranks) // NODE else BETWEEN
    return {where: rounds * size * (len(ranks) - 1) // len(ranks)}


def device_of(tensor: Any) -> torch.device:
    """What ``prim::device`` returns, without asking one mode after the other: half of all calls are this one."""
    if not isinstance(tensor, FakeTensor):
        return tensor.device  # type: ignore[no-any-return]
    return META if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


def tensors_in(args: Any) -> Iterator[Tensor]:
    """The tensors of an operation's arguments, and of lists among them."""
    for one in args:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from (value for value in one if isinstance(value, Tensor))


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors in batches, lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from tensors_of(getattr(value, one.name))
    elif isinstance(value, dict):
        yield from tensors_of(value.values())
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for one in value:
            yield from tensors_of(one)


def storage_of(tensor: Tensor) -> Any:
    """The memory of a tensor, or of this rank's part of it; None for sparse ones and the like."""
    local: Any = getattr(tensor, "_local_tensor", tensor)  # of a sharded one
    try:
        return local.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def key_of(tensor: Tensor) -> int:
    """Equal for tensors that share their memory; 0 where they have none."""
    storage = storage_of(tensor)
    return 0 if storage is None else int(storage._cdata)


def shown(size: float) -> str:
    """Bytes in GiB, or in MiB where there are few."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
