"""Counts the live bytes of tensors, by phase and by what they are for; on fake tensors as on real ones."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _get_group_size_by_name
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter

from burnish.training.flop_counter import FlopCounter

DEVICE, META = torch.ops.prim.device.default, torch.device("meta")
SMALL = 1 << 14  # elements of a tensor that may be on either side
ROUNDED = 512  # bytes: CUDA's caching allocator gives multiples of it

WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS = "weights", "gradients", "optimizer", "activations"
CACHES, BATCH, BUFFERS, REWARDS = "caches", "batch", "buffers", "rewards"
OPERATIONS, KERNELS, MOVED = "operations", "kernels", "bytes"  # of work
NO_KERNELS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_unsafe_view")
HOST = "host"  # in CPU memory where the networks are on a GPU: counted apart
EXCHANGES = ("c10d", "_c10d_functional", "fsdp")  # namespaces of what ranks do together
CATEGORIES = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, CACHES, BATCH, BUFFERS, REWARDS)


@dataclass
class Peak:
    """The most bytes that were alive at once in a phase."""

    total: int = 0
    parts: dict[str, int] = field(default_factory=dict)  # by category, at that moment
    host: int = 0  # the most bytes of ``HOST`` at once
    wire: int = 0  # bytes that this rank received from others in the phase
    work: Counter[str] = field(default_factory=Counter)  # of a span: what ``LiveBytes.work`` has grown by

    def less(self, category: str, size: int) -> None:
        """Take out what was alive through all of the phase."""
        if category == HOST:
            self.host -= size
        elif category in self.parts:
            self.total -= size
            self.parts[category] -= size


@dataclass
class _Storage:
    size: int
    category: str
    alive: weakref.ref[Any]


class LiveBytes(TorchDispatchMode):
    """A mode that sees every tensor which an operation returns, and when its memory is freed.

    Memory that a kernel takes and frees inside, and what libraries keep for themselves, stays unseen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.wire = 0  # bytes; the latter were received from other ranks
        self.work: Counter[tuple[str, str]] = Counter()  # by phase: operations, kernels, and bytes that these move
        self._done: Counter[str] = Counter()
        self.peaks: dict[str, Peak] = {}  # of every phase, in the order that they were first entered in
        self.saved = 0  # bytes that a checkpoint of this process holds
        self.category = ACTIVATIONS  # of what is made from now on
        self.collects = False  # whether tensors that refer to each other are freed before a phase
        self._by: Counter[str] = Counter()
        self._known: dict[int, _Storage] = {}
        self._phases: list[str] = []
        self._spans: list[Peak] = []
        self._resize: Callable[..., Any] = torch.UntypedStorage.resize_
        self._formulas = FlopCounter().formulas

    @contextmanager
    def phase(self, name: str, category: str | None = None) -> Iterator[None]:
        """Count to a phase; within another one, that one goes on afterwards. One that is entered again goes on too.

        Args:
            name: of the phase.
            category: of what is made in it; None keeps that of the phase around it.
        """
        if self.collects and not self._phases:
            gc.collect()
        before = self.category
        self._phases.append(name)
        self.category = category or before
        self._risen()
        try:
            yield
        finally:
            self._phases.pop()
            self.category = before
            self._risen()

    @contextmanager
    def made_as(self, category: str) -> Iterator[None]:
        """What is made in this context is of a category."""
        before, self.category = self.category, category
        try:
            yield
        finally:
            self.category = before

    @contextmanager
    def span(self) -> Iterator[Peak]:
        """The peak of what happens in this context, as what it adds to what was alive before."""
        before, parts, done = self.live, self.parts(), Counter(self._done)
        found = Peak(self.live, parts)
        self._spans.append(found)
        try:
            yield found
        finally:
            self._spans.pop()
            found.total -= before
            found.work = self._done - done
            found.parts = {name: size - parts.get(name, 0) for name, size in found.parts.items()}

    def repeated(self, span: Peak) -> None:
        """The same happens again."""
        for kind, amount in span.work.items():
            self._did(kind, amount)
        for peak in self._open():
            if self.live + span.total >= peak.total:
                now = self.parts()
                peak.total = self.live + span.total
                peak.parts = {name: now.get(name, 0) + span.parts.get(name, 0) for name in {**now, **span.parts}}

    def label(self, category: str, tensors: Iterable[Any], *, but: str | None = None) -> None:
        """Say what tensors are for: those of a phase so far, and those that were made before counting began.

        Args:
            category: theirs from now on.
            tensors: others than tensors are left out.
            but: a category that tensors keep.
        """
        for tensor in tensors:
            if isinstance(tensor, Tensor) and (but is None or self._category(tensor) != but):
                self._add(tensor, category, again=True)
        self._risen()

    def parts(self) -> dict[str, int]:
        """Live bytes by category, in the memory of the device."""
        return {name: size for name, size in self._by.items() if size and name != HOST}

    def size_of(self, tensor: Tensor) -> int:
        """Bytes of this process's part of a tensor."""
        local: Any = getattr(tensor, "_local_tensor", tensor)
        return int(local.numel() * local.element_size())

    def held_by(self, tensor: Tensor) -> int:
        """Bytes that the allocator gives for it."""
        return -(-self.size_of(tensor) // ROUNDED) * ROUNDED

    def received(self, size: int) -> None:
        """Bytes have come from other ranks."""
        self.wire += size
        if self._phases:
            self.peaks[self._phases[-1]].wire += size

    def wires(self) -> Counter[str]:
        """Bytes that have come from other ranks so far, by phase."""
        return Counter({name: peak.wire for name, peak in self.peaks.items()})

    def received_again(self, sizes: Mapping[str, int], times: int) -> None:
        """As much comes again, so many times: bytes by phase."""
        for name, size in sizes.items():
            self.wire += times * size
            self.peaks[name].wire += times * size

    def work_again(self, work: Mapping[tuple[str, str], float], times: float) -> None:
        """As much is done again, so many times."""
        for key, amount in work.items():
            self.work[key] += times * amount  # type: ignore[assignment]

    def _did(self, kind: str, amount: float) -> None:
        self._done[kind] += amount  # type: ignore[assignment]
        if self._phases:
            self.work[self._phases[-1], kind] += amount  # type: ignore[assignment]

    def _compute(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        """Note what an operation does: views and what is only allocated do nothing."""
        kind = func.overloadpacket
        views = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        if views or kind.__name__ in NO_KERNELS:
            return
        self._did(KERNELS, 1)
        outputs = found if isinstance(found, list | tuple) else (found,)
        self._did(MOVED, sum(one.numel() * one.element_size() for one in (*tensors_in(args), *tensors_in(outputs))))
        if kind in self._formulas:
            self._did(OPERATIONS, float(self._formulas[kind](*args, **(kwargs or {}), out_val=found)))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard against it costs more than what is counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE:
            return device_of(args[0])
        with torch._C.DisableTorchFunction():  # of which this is no part: every look at a tensor would be one
            found = func(*args, **(kwargs or {}))
            self._count(func, args, kwargs, found)
            self._compute(func, args, kwargs, found)
        return found

    def _count(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        if func.namespace in EXCHANGES:
            self._exchanged(func, args, kwargs or {}, found)
            category = self.category  # also of what is gathered from the host's memory
        else:
            category = self._inherited(args)
        for value in found if isinstance(found, list | tuple) else (found,):
            if isinstance(value, Tensor):
                self._add(value, category)
            elif isinstance(value, list | tuple):
                for one in tree_iter(value):
                    if isinstance(one, Tensor):
                        self._add(one, category)

    def __enter__(self) -> LiveBytes:
        # sharded networks free their gathered weights by resizing storages, which no operation tells of
        counter, resize = self, self._resize

        def resized(storage: Any, size: int) -> Any:
            found = resize(storage, size)
            known = counter._known.get(storage._cdata)
            if known is not None:
                counter._sized(known, size)
            return found

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def _inherited(self, args: Any) -> str:
        """What is computed from the host's tensors alone stays there."""
        if not self._by[HOST]:
            return self.category
        found = False
        for one in tensors_in(args):
            if self._category(one) == HOST:
                found = True
            elif one.numel() > SMALL:
                return self.category
        return HOST if found else self.category

    def _category(self, tensor: Tensor) -> str | None:
        try:
            known = self._known.get(_storage(tensor)._cdata)
        except (NotImplementedError, RuntimeError):
            return None
        return None if known is None else known.category

    def _exchanged(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        """What takes part in an exchange is a buffer, unless it is known to be a weight or a gradient."""
        given = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)]
        for tensor in given:
            self._add(tensor, BUFFERS)
            known = self._known.get(_storage(tensor)._cdata)
            if known is not None and known.category == ACTIVATIONS:
                self._move(known, BUFFERS)
        taken = {id(one): one for one in (*given, *tree_iter(found)) if isinstance(one, Tensor)}
        sizes = [one.numel() * one.element_size() for one in taken.values()]
        if "all_to_all" in func.name():
            self.received(max(sizes) - max(sizes) // _get_group_size_by_name(args[-1]))  # its own part stays
        elif "alltoall_base" in func.name():  # output, input, group, rows that come from each rank, and that go there
            group = ProcessGroup.unbox(args[2])
            rows = args[3] or [1] * group.size()
            self.received(sizes[0] - sizes[0] * rows[group.rank()] // max(sum(rows), 1))
        else:
            self.received(received_in(func.name(), sizes))

    def _add(self, tensor: Tensor, category: str, *, again: bool = False) -> None:
        if (inner := _inside(tensor)) is not None:
            for one in inner:
                self._add(one, category, again=again)
            return
        try:
            storage = _storage(tensor)
        except (NotImplementedError, RuntimeError):  # sparse ones and the like have none
            return
        key, size = storage._cdata, storage.nbytes()
        known = self._known.get(key)
        if known is None:
            alive = weakref.ref(storage, partial(self._freed, key))
            self._known[key] = known = _Storage(0, category, alive)
        elif again and known.category != category:
            self._move(known, category)
        self._sized(known, size)

    def _sized(self, known: _Storage, size: int) -> None:
        rounded = -(-size // ROUNDED) * ROUNDED
        if more := rounded - known.size:
            known.size = rounded
            self._by[known.category] += more
            self.live += more * (known.category != HOST)
            if more > 0:
                self._risen()

    def _move(self, known: _Storage, category: str) -> None:
        self.live += known.size * ((category != HOST) - (known.category != HOST))
        self._by[known.category] -= known.size
        self._by[category] += known.size
        known.category = category

    def _freed(self, key: int, _: Any) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self.live -= known.size * (known.category != HOST)
            self._by[known.category] -= known.size

    def _open(self) -> list[Peak]:
        """The peaks that are being looked for."""
        if not self._phases:
            return self._spans
        return [self.peaks.setdefault(self._phases[-1], Peak()), *self._spans]

    def _risen(self) -> None:
        for peak in self._open():
            peak.host = max(peak.host, self._by[HOST])
            if self.live >= peak.total:
                peak.total, peak.parts = self.live, self.parts()


def device_of(tensor: Any) -> torch.device:
    """What ``prim::device`` returns, without asking one mode after the other: half of all calls are this one."""
    if not isinstance(tensor, FakeTensor):
        return tensor.device  # type: ignore[no-any-return]
    return META if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


def received_in(name: str, sizes: Sequence[int]) -> int:
    """Bytes that come from other ranks when all are summed, gathered or scattered.

    Args:
        name: of the operation; others than these, which send next to nothing here, are 0.
        sizes: bytes of the tensors that it takes and returns.
    """
    kind = name.replace("_", "")
    if "allreduce" in kind:
        return 2 * max(sizes)
    if "allgather" in kind or "reducescatter" in kind:
        return max(sizes) - min(sizes)
    return 0


def tensors_in(args: Any) -> Iterator[Tensor]:
    """The tensors of an operation's arguments, and of lists among them."""
    for one in args:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from (value for value in one if isinstance(value, Tensor))


def _inside(tensor: Any) -> list[Tensor] | None:
    """The tensors that a quantised one is made of, whose own storage is only a claim; None of any other."""
    if hasattr(tensor, "_local_tensor") or not is_traceable_wrapper_subclass(tensor):
        return None
    return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]


def _storage(tensor: Tensor) -> Any:
    local: Any = getattr(tensor, "_local_tensor", tensor)  # of a sharded one
    return local.untyped_storage()
