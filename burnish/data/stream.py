"""An endless, resumable stream of batches of prompts or pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from burnish import random
from burnish.errors import UserError
from burnish.prompt import Prompt


class Item(Protocol):
    """What a stream hands out."""

    @property
    def uid(self) -> str:
        """A hash of its content."""


T = TypeVar("T", bound=Item)


class Stream(Generic[T]):
    """Every epoch in a new order that depends on seed and epoch alone; batches are always full.

    A batch may reach across the end of an epoch, so none is left out and one may occur twice in a batch.
    The position is one number, which is why this is not a data loader with worker processes to restore.
    """

    def __init__(self, items: Sequence[T], batch_size: int, *, seed: int, shuffle: bool, name: str = "data") -> None:
        """Args: ``name`` tells streams of one run apart: each has orders of its own."""
        self.items, self.batch_size, self.seed, self.shuffle, self.name = list(items), batch_size, seed, shuffle, name
        self.position = 0  # items handed out since the beginning
        self._epoch, self._order = -1, list(range(len(self.items)))

    def next_batch(self) -> list[T]:
        """The next ``batch_size`` items."""
        start, self.position = self.position, self.position + self.batch_size
        return [self._at(i) for i in range(start, self.position)]

    def batch(self, number: int) -> list[T]:
        """Batch ``number``, counted from 0, wherever the stream stands."""
        return [self._at(i) for i in range(number * self.batch_size, (number + 1) * self.batch_size)]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "data": self._fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a stream over the same items stopped.

        Raises:
            UserError: these are other items, or another order of them.
        """
        if state["data"] != self._fingerprint:
            raise UserError(
                "data.train_files, data.shuffle or seed differ from those of the checkpoint, so its position "
                "in the data means nothing here; give the same, or start anew in another output_dir"
            )
        self.position = state["position"]

    def _at(self, position: int) -> T:
        epoch, index = divmod(position, len(self.items))
        if not self.shuffle:
            return self.items[index]
        if epoch != self._epoch:
            self._epoch, self._order = epoch, random.permutation(len(self.items), self.seed, self.name, epoch)
        return self.items[self._order[index]]

    @cached_property
    def _fingerprint(self) -> str:
        content = "".join(item.uid for item in self.items) + f"{self.shuffle}{self.seed}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]


PromptStream = Stream[Prompt]
