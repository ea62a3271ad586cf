"""An endless, resumable stream of batches of prompts or pictures."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from burnish.types.prompt import Prompt
from burnish.utils import random
from burnish.utils.errors import UserError

log = logging.getLogger(__name__)

SHORT = 8  # bytes by which a checkpoint remembers a record
NAMED = 5  # records that a message names


class Item(Protocol):
    """What a stream hands out."""

    @property
    def uid(self) -> str:
        """A hash of its content."""

    @property
    def where(self) -> str:
        """Where it stands, for messages."""


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
        return {
            "position": self.position,
            "data": self._fingerprint,
            "records": self._records,
            "order": f"{self.shuffle}{self.seed}",
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a stream over the same items stopped, or over items some of which were mended or taken out.

        Raises:
            UserError: most of these are other items, or in another order, or there are more of them.
        """
        if state["data"] == self._fingerprint:
            self.position = state["position"]
            return
        position = self._mended(state)
        if position is None:
            raise UserError(
                "data.train_files, data.shuffle or seed differ from those of the checkpoint, so its position "
                "in the data means nothing here; give the same, or start anew in another output_dir"
            )
        self.position = position

    def _mended(self, state: dict[str, Any]) -> int | None:
        """The position in data some of which changed, and says so; None where they are other data."""
        if state.get("order") != f"{self.shuffle}{self.seed}":  # also of a checkpoint that remembers no records
            return None
        before, now = _apart(state["records"]), _apart(self._records)
        if len(now) == len(before):
            changed = [i for i, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
            if 2 * len(changed) > len(now):
                return None
            names = _listed([self.items[i].where or f"record {i + 1}" for i in changed])
            log.warning(
                "%d of %d training records have changed since the checkpoint: %s; the run goes on at the same place in "
                "the data", len(changed), len(now), names,
            )  # fmt: skip
            return int(state["position"])
        here = set(now)
        gone = [i for i, old in enumerate(before) if old not in here]
        if len(now) > len(before) or 2 * len(gone) > len(before) or not gone:
            return None
        log.warning(
            "the training data had %d records at the checkpoint and have %d; taken out or changed: %s. The run goes on "
            "as far into the epoch as it was; in this epoch some records may come twice or not at all, in later ones "
            "each comes once", len(before), len(now), _listed([f"record {i + 1}" for i in gone]),
        )  # fmt: skip
        epoch, index = divmod(int(state["position"]), len(before))
        return epoch * len(now) + min(index, len(now))

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

    @cached_property
    def _records(self) -> str:
        """What a checkpoint remembers the items by, to say later which of them have changed."""
        digests = [hashlib.blake2b(item.uid.encode(), digest_size=SHORT).digest() for item in self.items]
        return base64.b64encode(b"".join(digests)).decode()


def _apart(records: str) -> list[bytes]:
    joined = base64.b64decode(records)
    return [joined[start : start + SHORT] for start in range(0, len(joined), SHORT)]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


PromptStream = Stream[Prompt]
