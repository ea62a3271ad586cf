"""A cache that drops what was used longest ago, bounded in its size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


ENCODED = 4 << 30  # bytes of host memory, in each process, for what prompts were encoded to


class LruCache(Generic[T]):
    """Entries by key; those that were used longest ago make room for new ones."""

    def __init__(self, most: int, size: Callable[[T], int] = lambda entry: 1) -> None:
        """Args: ``most`` that all entries may be together, by their ``size``, beside the one in use."""
        self._most, self._size = most, size
        self._entries: OrderedDict[Any, T] = OrderedDict()
        self._sizes: dict[Any, int] = {}
        self._total = 0  # of all entries; of the one that was used last as it was then

    def find(self, key: Any) -> T | None:
        """The entry of a key, or None."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """The entry of a key, made if there is none."""
        if key not in self._entries:
            made = make()  # may itself ask for entries
            self._weigh()
            while self._entries and self._total >= self._most:
                self._total -= self._sizes.pop(self._entries.popitem(last=False)[0])
            self._entries[key] = made
        else:
            self._weigh()
        self._entries.move_to_end(key)
        self._weigh()
        return self._entries[key]

    def values(self) -> list[T]:
        """All entries, those that were used last at the end."""
        return list(self._entries.values())

    def _weigh(self) -> None:
        """Take in the size of the entry that was used last, which may have grown since."""
        if self._entries:
            key = next(reversed(self._entries))
            size = self._size(self._entries[key])
            self._total += size - self._sizes.get(key, 0)
            self._sizes[key] = size
