"""A cache that drops what was used longest ago, bounded in its size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


ENCODED = 4 << 30  # bytes of host memory, in each process, for what prompts were encoded to


class LruCache(Generic[T]):
    """Entries by key; those that were used longest ago make room for new ones."""

    def __init__(self, most: int, size: Callable[[T], int] = lambda entry: 1) -> None:
        """Args: ``most`` that all entries may be together, by their ``size``; one alone may be larger."""
        self._most, self._size, self._total = most, size, 0
        self._entries: dict[Any, tuple[T, int]] = {}  # with their sizes, those that were used last at the end

    def clear(self) -> None:
        """Forget all entries."""
        self._entries, self._total = {}, 0

    def find(self, key: Any) -> T | None:
        """The entry of a key, or None."""
        return self.get(key, lambda: cast(T, None)) if key in self._entries else None

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """The entry of a key, made if there is none."""
        entry = self._entries[key][0] if key in self._entries else make()  # which may itself ask for entries
        size = self._size(entry)  # it may have grown since
        self._total += size - self._entries.pop(key, (entry, 0))[1]
        self._entries[key] = entry, size
        while self._total > self._most and len(self._entries) > 1:
            self._total -= self._entries.pop(next(iter(self._entries)))[1]
        return entry
