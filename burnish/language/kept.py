"""What a model has computed of conversations, kept from one of their turns to the next."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.types.completion import Features


class Kept:
    """Keys and values of conversations by their names, at most so many bytes; what has no room is computed again."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0
        self._held: dict[Hashable, tuple[Tensor, Tensor]] = {}  # ids [L], and keys and values [layers, 2, K, L, W]

    def has_room(self, size: int) -> bool:
        """Whether as many bytes would be kept."""
        return self.used + size <= self.most

    def put(self, name: Hashable, ids: Tensor, cached: Tensor) -> None:
        """Keep a conversation that there is room for; its name holds nothing."""
        assert name not in self._held, "a conversation goes on once a turn"
        self._held[name] = ids, cached
        self.used += cached.nbytes

    def take(self, name: Hashable, ids: Tensor) -> Tensor | None:
        """What is kept of a conversation, if ids [N] go on with it; it is kept no longer."""
        known, cached = self._held.pop(name, (ids, None))
        if cached is None:
            return None
        self.used -= cached.nbytes
        goes_on = len(known) < len(ids) and torch.equal(ids[: len(known)], known)
        return cached if goes_on else None

    def drop_others(self, names: Collection[Hashable]) -> None:
        """Forget the conversations that are over."""
        for name in self._held.keys() - set(names):
            self.used -= self._held.pop(name)[1].nbytes


@dataclass(frozen=True)
class Going:
    """A conversation that has been answered before, or will be again."""

    name: Hashable
    added: Features  # media of what was said since it was answered last


@dataclass(frozen=True)
class Turn:
    """One turn of conversations, one a row."""

    kept: Kept
    rows: list[Going]
    last: bool  # nothing is said after it
