"""Counts the live bytes of tensors, by phase and by what they are for; on fake tensors as on real ones."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

ROUNDED = 512  # bytes: CUDA's caching allocator gives multiples of it

WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS = "weights", "gradients", "optimizer", "activations"
CACHES, BATCH, BUFFERS = "caches", "batch", "buffers"
CATEGORIES = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, CACHES, BATCH, BUFFERS)


@dataclass
class Peak:
    """The most bytes that were alive at once in a phase."""

    total: int = 0
    parts: dict[str, int] = field(default_factory=dict)  # by category, at that moment
    wire: int = 0  # bytes that this rank received from others in the phase


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
        self.live = 0
        self.peaks: dict[str, Peak] = {}  # of every phase, in the order that they were first entered in
        self.category = ACTIVATIONS  # of what is made from now on
        self._by: Counter[str] = Counter()
        self._known: dict[int, _Storage] = {}
        self._phases: list[str] = []
        self._resize: Callable[..., Any] = torch.UntypedStorage.resize_

    @contextmanager
    def phase(self, name: str, category: str | None = None) -> Iterator[None]:
        """Count to a phase; within another one, that one goes on afterwards. One that is entered again goes on too.

        Args:
            name: of the phase.
            category: of what is made in it; None keeps that of the phase around it.
        """
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

    def label(self, category: str, tensors: Iterable[Any]) -> None:
        """Say what tensors are for: those of a phase so far, and those that were made before counting began."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self._add(tensor, category, again=True)
        self._risen()

    def parts(self) -> dict[str, int]:
        """Live bytes by category."""
        return {name: size for name, size in self._by.items() if size}

    def received(self, size: int) -> None:
        """Bytes have come from other ranks."""
        if self._phases:
            self.peaks[self._phases[-1]].wire += size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        category = self.category
        for value in found if isinstance(found, list | tuple) else (found,):
            if isinstance(value, Tensor):
                self._add(value, category)
            elif isinstance(value, list | tuple):
                for one in tree_iter(value):
                    if isinstance(one, Tensor):
                        self._add(one, category)
        return found

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

    def _add(self, tensor: Tensor, category: str, *, again: bool = False) -> None:
        local: Any = getattr(tensor, "_local_tensor", tensor)  # of a sharded one
        try:
            storage = local.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse ones and the like have none
            return
        key, size = storage._cdata, storage.nbytes()
        known = self._known.get(key)
        if known is None:
            alive = weakref.ref(storage, partial(self._freed, key))
            self._known[key] = known = _Storage(0, category, alive)
        elif again and known.category != category:
            self._by[known.category] -= known.size
            self._by[category] += known.size
            known.category = category
        self._sized(known, size)

    def _sized(self, known: _Storage, size: int) -> None:
        rounded = -(-size // ROUNDED) * ROUNDED
        if more := rounded - known.size:
            known.size = rounded
            self._by[known.category] += more
            self.live += more
            if more > 0:
                self._risen()

    def _freed(self, key: int, _: Any) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self.live -= known.size
            self._by[known.category] -= known.size

    def _risen(self) -> None:
        if not self._phases:
            return
        peak = self.peaks.setdefault(self._phases[-1], Peak())
        if self.live >= peak.total:
            peak.total, peak.parts = self.live, self.parts()
