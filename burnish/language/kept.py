"""What a model has computed of conversations, kept from one of their turns to the next."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.types.completion import Features


class Kept:
    """What was computed of conversations, by their names, at most N bytes; what has no room is computed again."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0
        self._held: dict[Hashable, tuple[Tensor, Any, int]] = {}  # ids [L], what the decoder has of them, its bytes

    def has_room(self, size: int) -> bool:
        """Whether as many bytes would be kept."""
        return self.used + size <= self.most

    def put(self, name: Hashable, ids: Tensor, cached: Any, size: int) -> None:
        """Keep of a conversation what there is room for; its name holds nothing."""
        assert name not in self._held, "a conversation goes on once a turn"
        self._held[name] = ids, cached, size
        self.used += size

    def take(self, name: Hashable, ids: Tensor) -> Any:
        """What is kept of a conversation, if ids [N] go on with it, else None; it is kept no longer."""
        known, cached, size = self._held.pop(name, (ids, None, 0))
        self.used -= size
        if cached is None:
            return None
        goes_on = len(known) < len(ids) and torch.equal(ids[: len(known)], known)
        return cached if goes_on else None

    def drop_others(self, names: Collection[Hashable]) -> None:
        """Forget the conversations that are over."""
        for name in self._held.keys() - set(names):
            self.used -= self._held.pop(name)[2]


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
