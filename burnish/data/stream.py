"""An endless, resumable stream of batches of records."""

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

HASH_BYTES = 8  # of the hash that a checkpoint keeps of each record
NAMED = 5  # records that a message names


class Item(Protocol):
    """A record of a stream."""

    @property
    def uid(self) -> str:
        """A hash of its content."""

    @property
    def where(self) -> str:
        """Its file and line, for messages."""


T = TypeVar("T", bound=Item)


class Stream(Generic[T]):
    """Batches of records, every epoch in a new order that depends on seed and epoch alone.

    Batches have their full size: one may continue into the next epoch, so no record is left out, and one may occur
    twice in a batch. The position is a single number, which a checkpoint restores exactly.
    """

    def __init__(self, items: Sequence[T], batch_size: int, *, seed: int, shuffle: bool, name: str = "data") -> None:
        """Args: ``name`` distinguishes the streams of a run; each has its own order."""
        self.items, self.batch_size, self.seed, self.shuffle, self.name = list(items), batch_size, seed, shuffle, name
        self.position = 0  # items returned so far
        self._epoch, self._order = -1, list(range(len(self.items)))

    def next_batch(self) -> list[T]:
        """The next ``batch_size`` items."""
        start, self.position = self.position, self.position + self.batch_size
        return [self._at(i) for i in range(start, self.position)]

    def batch(self, number: int) -> list[T]:
        """Batch ``number``, counted from 0, whatever the current position."""
        return [self._at(i) for i in range(number * self.batch_size, (number + 1) * self.batch_size)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "data": self._fingerprint,
            "records": self._records,
            "order": f"{self.shuffle}{self.seed}",
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a stream over the same records stopped; some may have been changed or removed since.

        Raises:
            UserError: most records differ, there are more of them, or shuffle or seed changed.
        """
        if state["data"] == self._fingerprint:
            self.position = state["position"]
            return
        position = self._position_after_changes(state)
        if position is None:
            raise UserError(
                "cannot resume: data.train_files, data.shuffle or seed differ from the checkpoint's; restore them, or "
                "start a new run in another output_dir"
            )
        self.position = position

    def _position_after_changes(self, state: dict[str, Any]) -> int | None:
        """The position in data of which some records changed, with a warning; None if it is other data."""
        if state.get("order") != f"{self.shuffle}{self.seed}":  # old checkpoints have neither key
            return None
        before, now = _hashes(state["records"]), _hashes(self._records)
        if len(now) == len(before):
            changed = [i for i, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
            if 2 * len(changed) > len(now):
                return None
            names = _listed([self.items[i].where or f"record {i + 1}" for i in changed])
            log.warning(
                "%d of %d training records have changed since the checkpoint: %s; the run continues at the same "
                "position in the data", len(changed), len(now), names,
            )  # fmt: skip
            return int(state["position"])
        present = set(now)
        gone = [i for i, old in enumerate(before) if old not in present]
        if len(now) > len(before) or 2 * len(gone) > len(before) or not gone:
            return None
        log.warning(
            "the training data had %d records at the checkpoint and have %d now; removed or changed: %s. The run "
            "continues at the same position of the epoch, in which some records may be used twice or not at all; later "
            "epochs use each once", len(before), len(now), _listed([f"record {i + 1}" for i in gone]),
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
        """Hashes of the records, by which a resumed run finds those that have changed."""
        digests = [hashlib.blake2b(item.uid.encode(), digest_size=HASH_BYTES).digest() for item in self.items]
        return base64.b64encode(b"".join(digests)).decode()


def _hashes(records: str) -> list[bytes]:
    joined = base64.b64decode(records)
    return [joined[start : start + HASH_BYTES] for start in range(0, len(joined), HASH_BYTES)]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


PromptStream = Stream[Prompt]
