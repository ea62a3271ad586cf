"""An endless, resumable stream of batches of records: in an order that depends on seed and epoch alone, or as code of
the user chooses them by what was rewarded so far."""

from __future__ import annotations

import base64
import hashlib
import inspect
import logging
from array import array
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from numbers import Integral
from typing import Any, Generic, Protocol, TypeVar

import torch

from burnish.rl.advantages import group_statistics
from burnish.types.prompt import Prompt, Prompts
from burnish.types.rollout import Rollouts
from burnish.utils import random
from burnish.utils.errors import UserError, listed
from burnish.utils.user_code import load_object, reason

log = logging.getLogger(__name__)


V = TypeVar("V")


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


def limited(items: Sequence[V], most: int | None, *, seed: int, shuffle: bool) -> Sequence[V]:
    """At most N items, in order: drawn by the seed with ``shuffle``, else the first ones."""
    if most is None or most >= len(items):
        return items
    if not shuffle:
        return items[:most]
    chosen = sorted(random.permutation(len(items), seed, "train_max_samples")[:most])
    return [items[i] for i in chosen]


UID_BYTES = 8  # bytes of a prompt's uid


class History:
    """The mean reward of every prompt in every update that sampled it."""

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._by_update: dict[int, list[tuple[str, float]]] = {}
        self._counted = 0  # updates up to this one are in ``_rewards``
        self._rewards: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, update: int, rollouts: Rollouts) -> None:
        """What an update sampled; groups without any reward are left out."""
        scores = rollouts.scores
        groups = group_statistics(scores.reward.cpu(), rollouts.group.cpu(), scores.missing.cpu())
        first: dict[int, str] = {}
        for label, prompt in zip(groups.label.tolist(), rollouts.prompts, strict=True):
            first.setdefault(label, prompt.uid)
        count = groups.count.tolist()
        found = [(uid, float(groups.mean[label])) for label, uid in sorted(first.items()) if count[label]]
        self._by_update.setdefault(update, []).extend(found)

    def of(self, uids: Sequence[str], version: int) -> list[list[float]]:
        """The mean rewards of each prompt in the updates up to ``version``, in order."""
        if version < self._counted:
            self._counted, self._rewards = 0, defaultdict(list)
        for update in sorted(update for update in list(self._by_update) if self._counted < update <= version):
            for uid, reward in self._by_update[update]:
                self._rewards[uid].append(reward)
        self._counted = version
        return [list(self._rewards[uid]) if uid in self._rewards else [] for uid in uids]

    def state(self, last: int | None = None) -> dict[str, Any]:
        """What a checkpoint keeps, of updates up to ``last``."""
        kept = [(update, uid, reward) for update, found in sorted(self._by_update.items())
                for uid, reward in found if last is None or update <= last]  # fmt: skip
        raw = bytearray(b"".join(bytes.fromhex(uid) for _, uid, _ in kept))
        return {
            "update": torch.tensor([update for update, _, _ in kept], dtype=torch.int64),
            "uid": torch.frombuffer(raw, dtype=torch.uint8).reshape(-1, UID_BYTES)
            if kept
            else torch.zeros(0, UID_BYTES),
            "reward": torch.tensor([reward for _, _, reward in kept], dtype=torch.float64),
        }

    def load(self, state: dict[str, Any] | None) -> None:
        """Take over what a checkpoint has; None if it has nothing."""
        self._begin_anew()
        if state is None:
            return
        rows = zip(state["update"].tolist(), state["uid"].tolist(), state["reward"].tolist(), strict=True)
        for update, uid, reward in rows:
            self._by_update.setdefault(update, []).append((bytes(uid).hex(), reward))


class Sampler:
    """A function of the user as the order of a stream."""

    def __init__(self, path: str, *, seed: int, name: str) -> None:
        self.path, self.seed, self.name, self.history = path, seed, name, History()

    def choose(self, items: Sequence[Any], count: int, *, position: int, update: int, version: int) -> list[int]:
        """The numbers of the next ``count`` items.

        Args:
            items: all that there are.
            count: how many to choose.
            position: items drawn before.
            update: the policy update that they are for.
            version: the update whose rewards are the last ones to be seen.

        Raises:
            UserError: the function fails, or returns something else.
        """
        function = load_object(self.path, "sampler")
        history = self.history.of([item.uid for item in items], version)
        where = f"data.sampler is {self.path}, which"
        arguments = {
            "records": items, "history": history, "update": update, "count": count,
            "seed": random.key(self.seed, self.name, "sampler", position),
        }  # fmt: skip
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise UserError(
                f"{where} is called as function({', '.join(f'{name}=...' for name in arguments)}), which it doesn't "
                f"accept: {error}; change its parameters"
            ) from None
        try:
            found = list(function(**arguments))
        except (Exception, SystemExit) as error:  # the code is the user's: anything may go wrong in it
            raise UserError(f"{where} fails at update {update}: {reason(error)}; mend it") from error
        wrong = next((one for one in found if not isinstance(one, Integral) or isinstance(one, bool)), None)
        out = next((one for one in found if wrong is None and not 0 <= one < len(items)), None)
        if wrong is not None or out is not None or len(found) != count:
            odd = wrong if wrong is not None else out
            got = f"{odd!r} among them" if len(found) == count else f"{len(found)} of them"
            raise UserError(
                f"{where} must return {count} numbers of records from 0 to {len(items) - 1}, but returned {got} at "
                f"update {update}; mend it"
            )
        return [int(one) for one in found]


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
    twice in a batch. The position is a single number, which a checkpoint restores exactly. Several lists may be mixed,
    and code of the user may choose instead.
    """

    def __init__(
        self,
        items: Sequence[T],
        batch_size: int,
        *,
        seed: int,
        shuffle: bool,
        name: str = "data",
        mix: tuple[Sequence[int], Sequence[float]] | None = None,
        sampler: str | None = None,
    ) -> None:
        """Take over the records.

        Args:
            items: all of them.
            batch_size: how many make a batch.
            seed: of the run.
            shuffle: whether every epoch has an order of its own.
            name: distinguishes the streams of a run; each has its own order.
            mix: the list that each item is of, and weights of the lists; None takes all as one list.
            sampler: path of the user's function that chooses; None takes the order of the epochs.
        """
        self.items, self.batch_size, self.seed, self.shuffle, self.name = items, batch_size, seed, shuffle, name
        self.position = 0  # items returned so far
        self._peeked: dict[int, int] = {}  # rows at positions from there on: orders that go back begin anew
        self.mix, self.order = mix, self._ordered(mix)
        self.sampler = None if sampler is None else Sampler(sampler, seed=seed, name=name)

    def _ordered(self, mix: tuple[Sequence[int], Sequence[float]] | None) -> Order:
        if mix is None:
            return Epochs(len(self.items), seed=self.seed, shuffle=self.shuffle, name=self.name)
        return Mixed(*mix, seed=self.seed, shuffle=self.shuffle, name=self.name)

    def next_batch(self, update: int = 1, version: int = 0) -> list[T]:
        """The next ``batch_size`` items.

        Args:
            update: the policy update that they are for.
            version: the update whose rewards are the last ones that a sampler sees.
        """
        start, self.position = self.position, self.position + self.batch_size
        if self.sampler is not None:
            rows = self.sampler.choose(
                self.items, self.batch_size, position=start, update=update, version=version
            )  # fmt: skip
            return [self.items[row] for row in rows]
        drawn = [self._at(i) for i in range(start, self.position)]
        self._peeked = {place: row for place, row in self._peeked.items() if place >= self.position}
        return drawn

    def peek(self, batches: int = 1) -> list[T]:
        """The items of the next batches, if they are known: none where a sampler chooses."""
        if self.sampler is not None:
            return []
        places = range(self.position, self.position + batches * self.batch_size)
        self._peeked |= {place: self.order.at(place) for place in places if place not in self._peeked}
        return [self._at(place) for place in places]

    def batch(self, number: int) -> list[T]:
        """Batch ``number``, counted from 0, whatever the current position."""
        return [self._at(i) for i in range(number * self.batch_size, (number + 1) * self.batch_size)]

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Where a resumed run goes on, with hashes of the records.

        Args:
            position: as ``position`` was then; None takes what it is.
        """
        return {
            "position": self.position if position is None else position,
            "data": self._fingerprint,
            "records": self._records,
            "order": self._rule,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a stream over the same records stopped; some may have been changed or removed since.

        Raises:
            UserError: most records differ, there are more of them, or shuffle or seed changed.
        """
        self._peeked = {}
        if self.sampler is not None:
            # a new one, since batches of before that are under way tell theirs what they draw
            self.sampler = Sampler(self.sampler.path, seed=self.seed, name=self.name)
            self.sampler.history.load(state.get("history"))
        if state["data"] == self._fingerprint:
            self.position = state["position"]
            return
        self.position = self._position_after_changes(state)

    def _position_after_changes(self, state: dict[str, Any]) -> int:
        """The position in data of which some records changed, with a warning.

        Raises:
            UserError: it is other data, or in another order.
        """
        if state.get("order") != self._rule:  # old checkpoints have neither key
            raise _other_data("data.shuffle, seed, data.mix or data.sampler differ from the checkpoint's")
        before, now = _hashes(state["records"]), _hashes(self._records)
        if len(now) == len(before):
            changed = [i for i, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
            names = listed([self.items[i].where or f"record {i + 1}" for i in changed], NAMED)
            if 2 * len(changed) > len(now):
                raise _other_data(f"{len(changed)} of {len(now)} training records have changed: {names}")
            log.warning(
                "%d of %d training records have changed since the checkpoint: %s; the run continues at the same "
                "position in the data", len(changed), len(now), names,
            )  # fmt: skip
            return int(state["position"])
        present = set(now)
        gone = [i for i, old in enumerate(before) if old not in present]
        if self.mix is not None or len(now) > len(before) or 2 * len(gone) > len(before) or not gone:
            raise _other_data(
                f"the training data had {len(before)} records at the checkpoint and has {len(now)} now, and "
                f"{len(gone)} of the former are gone (data.train_files, data.train_max_samples)"
            )
        log.warning(
            "the training data had %d records at the checkpoint and have %d now; removed or changed: %s. The run "
            "continues at the same position of the epoch, in which some records may be used twice or not at all; later "
            "epochs use each once", len(before), len(now), listed([f"record {i + 1}" for i in gone], NAMED),
        )  # fmt: skip
        epoch, index = divmod(int(state["position"]), len(before))
        return epoch * len(now) + min(index, len(now))

    def _at(self, position: int) -> T:
        row = self._peeked.get(position)
        return self.items[self.order.at(position) if row is None else row]

    @cached_property
    def _rule(self) -> str:
        """What decides the order, beside the records."""
        lists = "" if self.mix is None else f" {list(self.mix[1])} {_run_lengths(self.mix[0])}"
        return f"{self.shuffle}{self.seed}{lists}{'' if self.sampler is None else f' {self.sampler.path}'}"

    @property
    def _fingerprint(self) -> str:
        return self._digests[0]

    @property
    def _records(self) -> str:
        """Hashes of the records, by which a resumed run finds those that have changed."""
        return self._digests[1]

    @cached_property
    def _digests(self) -> tuple[str, str]:
        """The hash of all records and their order, and those of each."""
        content, digests = hashlib.sha256(), bytearray()
        uids = self.items.uids() if isinstance(self.items, Prompts) else (item.uid for item in self.items)
        for uid in map(str.encode, uids):
            content.update(uid)
            digests += hashlib.blake2b(uid, digest_size=HASH_BYTES).digest()
        content.update(self._rule.encode())
        return content.hexdigest()[:16], base64.b64encode(digests).decode()


def _other_data(why: str) -> UserError:
    return UserError(f"cannot resume: {why}; restore what was, or start a new run in another output_dir")


def _run_lengths(parts: Sequence[int]) -> list[int]:
    """How many records each list has: they follow each other."""
    return [len(list(same)) for _, same in groupby(parts)]


def _hashes(records: str) -> list[bytes]:
    joined = base64.b64decode(records)
    return [joined[start : start + HASH_BYTES] for start in range(0, len(joined), HASH_BYTES)]


PromptStream = Stream[Prompt]
