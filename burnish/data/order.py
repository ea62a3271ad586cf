"""Which record stands at a position of an endless stream: a function of seed and position alone."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol, TypeVar

from burnish.utils import random
from burnish.utils.errors import UserError

T = TypeVar("T")


class Order(Protocol):
    """Records by position, counted from 0."""

    def at(self, position: int) -> int:
        """The number of the record."""
        ...


class Epochs:
    """Every record once an epoch, in an order that is new every epoch."""

    def __init__(self, count: int, *, seed: int, shuffle: bool, name: str) -> None:
        """Args: ``name`` distinguishes orders of one seed."""
        self.count, self.seed, self.shuffle, self.name = count, seed, shuffle, name
        self._epoch, self._order = -1, array("q")

    def at(self, position: int) -> int:
        epoch, index = divmod(position, self.count)
        if not self.shuffle:
            return index
        if epoch != self._epoch:
            self._epoch, self._order = epoch, array("q", random.permutation(self.count, self.seed, self.name, epoch))
        return self._order[index]


class Mixed:
    """Several lists in shares: next comes the one that is furthest behind its share, with the next of its own order.

    So every stretch of the stream has the shares, up to one record of each list.
    """

    def __init__(self, parts: Sequence[int], weights: Sequence[float], *, seed: int, shuffle: bool, name: str) -> None:
        """Take over what there is.

        Args:
            parts: the list that each record is of.
            weights: of the lists.
            seed: of the run.
            shuffle: whether every list is shuffled anew when it begins again.
            name: distinguishes orders of one seed.

        Raises:
            UserError: a list has no records.
        """
        self.members: list[list[int]] = [[] for _ in weights]
        for record, part in enumerate(parts):
            self.members[part].append(record)
        if empty := [str(part) for part, members in enumerate(self.members) if not members]:
            raise UserError(
                f"data.mix has a weight for train_files[{empty[0]}], of which no record is left to train on; leave "
                "both out, or raise data.max_prompt_length or data.train_max_samples"
            )
        self.shares = [weight / sum(weights) for weight in weights]
        self._orders = [
            Epochs(len(members), seed=seed, shuffle=shuffle, name=f"{name}/{part}")
            for part, members in enumerate(self.members)
        ]
        self._taken = [0] * len(weights)  # of each list, before position ``_next``
        self._next = 0

    def at(self, position: int) -> int:
        if position < self._next:  # a stream that goes back
            self._taken, self._next = [0] * len(self.shares), 0
        while True:
            self._next += 1
            behind = [share * self._next - taken for share, taken in zip(self.shares, self._taken, strict=True)]
            part = behind.index(max(behind))
            taken, self._taken[part] = self._taken[part], self._taken[part] + 1
            if self._next > position:
                return self.members[part][self._orders[part].at(taken)]


def limited(items: Sequence[T], most: int | None, *, seed: int, shuffle: bool) -> Sequence[T]:
    """At most N items, in order: drawn by the seed with ``shuffle``, else the first ones."""
    if most is None or most >= len(items):
        return items
    if not shuffle:
        return items[:most]
    chosen = sorted(random.permutation(len(items), seed, "train_max_samples")[:most])
    return [items[i] for i in chosen]
