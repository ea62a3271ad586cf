"""An endless, resumable stream of batches of records: in an order that depends on seed and epoch alone, or as code of
the user chooses them by what was rewarded so far."""

from __future__ import annotations

import logging
from array import array
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from numbers import Integral
from typing import Any, Generic, TypeVar

import torch

from burnish.rl.advantages import group_statistics
from burnish.types.prompt import Prompts
from burnish.types.rollout import Rollouts
from burnish.utils import random
from burnish.utils.errors import UserError, listed
from burnish.utils.user_code import load_object, reason

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Any)


class Epochs:
    """Every record once an epoch, in an order that is new every epoch."""

    def __init__(self, count: int, *, seed: int, shuffle: bool, name: str) -> None:
        """Args: ``name`` distinguishes orders of one seed."""
        self.count, self.seed, self.shuffle, self.name = count, seed, shuffle, name
        self._orders: dict[int, array[int]] = {}  # of this epoch and of one beside it

    def at(self, position: int) -> int:
        """The number of the record at a position, both counted from 0."""
        epoch, index = divmod(position, self.count)
        if not self.shuffle:
            return index
        if epoch not in self._orders:
            self._orders = dict(list(self._orders.items())[-1:])
            self._orders[epoch] = array("q", random.permutation(self.count, self.seed, self.name, epoch))
        return self._orders[epoch][index]


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
        self._taken = [0] * len(weights)  # of each list
        self._drawn = array("q")  # records at the positions so far

    def at(self, position: int) -> int:
        """As of ``Epochs``."""
        while len(self._drawn) <= position:
            count = len(self._drawn) + 1
            behind = [share * count - taken for share, taken in zip(self.shares, self._taken, strict=True)]
            part = behind.index(max(behind))
            self._drawn.append(self.members[part][self._orders[part].at(self._taken[part])])
            self._taken[part] += 1
        return self._drawn[position]


def limited(items: Sequence[T], most: int | None, *, seed: int, shuffle: bool) -> Sequence[T]:
    """At most N items, in order: drawn by the seed with ``shuffle``, else the first ones."""
    if most is None or most >= len(items):
        return items
    if not shuffle:
        return items[:most]
    chosen = sorted(random.permutation(len(items), seed, "train_max_samples")[:most])
    return [items[i] for i in chosen]


UID = 8  # bytes of a record's uid


class Sampler:
    """A function of the user as the order of a stream, which sees the mean rewards that each prompt had so far."""

    def __init__(self, path: str, *, seed: int, name: str) -> None:
        self.path, self.seed, self.name = path, seed, name
        self._rewards: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)  # by uid, with their updates

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
        seen = (self._rewards.get(item.uid, ()) for item in items)
        history = [[reward for told, reward in own if told <= version] for own in seen]
        seed = random.key(self.seed, self.name, "sampler", position)
        where = f"data.sampler is {self.path}, which"
        try:
            found = list(function(records=items, history=history, update=update, count=count, seed=seed))
        except (Exception, SystemExit) as error:  # the code is the user's: anything may go wrong in it
            raise UserError(f"{where} fails at update {update}: {reason(error)}; fix it") from error
        numbers = [one for one in found if isinstance(one, Integral) and not isinstance(one, bool)]
        odd = [one for one in found if one not in numbers or not 0 <= int(one) < len(items)]
        if odd or len(found) != count:
            got = f"{odd[0]!r} among them" if odd else f"{len(found)} of them"
            raise UserError(
                f"{where} must return {count} numbers of records from 0 to {len(items) - 1}, but returned {got} at "
                f"update {update}; fix it"
            )
        return [int(one) for one in found]

    def add(self, update: int, rollouts: Rollouts) -> None:
        """What an update sampled; groups without any reward are left out."""
        scores = rollouts.scores
        groups = group_statistics(scores.reward.cpu(), rollouts.group.cpu(), scores.missing.cpu())
        uids = {label: prompt.uid for label, prompt in zip(groups.label.tolist(), rollouts.prompts, strict=True)}
        for label, uid in sorted(uids.items()):
            if groups.count[label]:
                self._rewards[uid].append((update, float(groups.mean[label])))

    def state(self, last: int | None = None) -> dict[str, Any]:
        """What a checkpoint keeps, of updates up to ``last``."""
        kept = [(uid, told, reward) for uid, own in self._rewards.items() for told, reward in own
                if last is None or told <= last]  # fmt: skip
        return {
            "update": torch.tensor([told for _, told, _ in kept], dtype=torch.int64),
            "uid": torch.tensor([list(bytes.fromhex(uid)) for uid, _, _ in kept], dtype=torch.uint8).view(
                len(kept), UID
            ),
            "reward": torch.tensor([reward for *_, reward in kept], dtype=torch.float64),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint has."""
        rows = zip(state["uid"].tolist(), state["update"].tolist(), state["reward"].tolist(), strict=True)
        for uid, told, reward in rows:
            self._rewards[bytes(uid).hex()].append((told, reward))


NAMED = 5  # records that a message names


class Stream(Generic[T]):
    """Batches of records, every epoch in a new order that depends on seed and epoch alone.

    A record has a uid, a hash of its content, and where: its file and line.

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
        self.mix, self.order = mix, self._ordered(mix)
        self.sampler = None if sampler is None else Sampler(sampler, seed=seed, name=name)

    def _ordered(self, mix: tuple[Sequence[int], Sequence[float]] | None) -> Epochs | Mixed:
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
        if self.sampler is None:
            return self._at(start, self.batch_size)
        rows = self.sampler.choose(self.items, self.batch_size, position=start, update=update, version=version)
        return [self.items[row] for row in rows]

    def peek(self, batches: int = 1) -> list[T]:
        """The items of the next batches, if they are known: none where a sampler chooses."""
        return [] if self.sampler is not None else self._at(self.position, batches * self.batch_size)

    def batch(self, number: int) -> list[T]:
        """Batch ``number``, counted from 0, whatever the current position."""
        return self._at(number * self.batch_size, self.batch_size)

    def _at(self, start: int, count: int) -> list[T]:
        return [self.items[self.order.at(position)] for position in range(start, start + count)]

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Where a resumed run goes on, with hashes of the records.

        Args:
            position: as ``position`` was then; None takes what it is.
        """
        place = self.position if position is None else position
        return {"position": place, "records": self._uids.hex(), "order": self._rule}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a stream over the same records stopped; some may have been changed or removed since.

        Raises:
            UserError: most records differ, there are more of them, or shuffle or seed changed.
        """
        self.order = self._ordered(self.mix)  # batches of before that are under way go on with theirs
        if self.sampler is not None:
            self.sampler = Sampler(self.sampler.path, seed=self.seed, name=self.name)
            if "history" in state:
                self.sampler.load(state["history"])
        if state["order"] != self._rule:
            raise _other_data("data.shuffle, seed, data.mix or data.sampler differ from the checkpoint's")
        position, records = state["position"], bytes.fromhex(state["records"])
        self.position = position if records == self._uids else self._position_after_changes(position, records)

    def _position_after_changes(self, position: int, records: bytes) -> int:
        """The position in data of which some records changed, with a warning.

        Raises:
            UserError: it is other data.
        """
        before, now = ([uids[i : i + UID] for i in range(0, len(uids), UID)] for uids in (records, self._uids))
        alike, present = len(before) == len(now), set(now)
        changed = [i for i, uid in enumerate(before) if (uid != now[i] if alike else uid not in present)]
        if len(now) > len(before) or 2 * len(changed) > len(before) or not (alike or (changed and self.mix is None)):
            raise _other_data(
                f"the training data had {len(before)} records at the checkpoint and has {len(now)} now, and "
                f"{len(changed)} of the former have changed or are gone (data.train_files, data.train_max_samples)"
            )
        names = [(self.items[i].where if alike else "") or f"record {i + 1}" for i in changed]
        log.warning(
            "%d of %d training records have changed since the checkpoint: %s; the run continues at the same position%s",
            len(changed), len(before), listed(names, NAMED),
            "" if alike else " of the epoch, in which some records may be used twice or not at all",
        )  # fmt: skip
        epoch, index = divmod(position, len(before))
        return epoch * len(now) + min(index, len(now))

    @cached_property
    def _rule(self) -> str:
        """What decides the order, beside the records."""
        runs = [len(list(same)) for _, same in groupby(self.mix[0] if self.mix else ())]
        lists = "" if self.mix is None else f" {list(self.mix[1])} {runs}"
        return f"{self.shuffle}{self.seed}{lists}{'' if self.sampler is None else f' {self.sampler.path}'}"

    @cached_property
    def _uids(self) -> bytes:
        """Hashes of all records, by which a resumed run finds those that have changed."""
        uids = bytearray()  # a list of a million texts would take more than they do
        for uid in self.items.uids() if isinstance(self.items, Prompts) else (item.uid for item in self.items):
            uids += bytes.fromhex(uid)
        return bytes(uids)


def _other_data(why: str) -> UserError:
    return UserError(f"cannot resume: {why}; restore what was, or start a new run in another output_dir")
