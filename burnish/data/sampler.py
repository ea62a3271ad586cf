"""Code of the user that chooses the records of every batch, by what was rewarded so far."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch

from burnish.rl.advantages import group_statistics
from burnish.types.rollout import Rollouts
from burnish.utils import random
from burnish.utils.errors import UserError
from burnish.utils.user_code import load_object, reason

HASH = 8  # bytes of a prompt's uid


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
            "uid": torch.frombuffer(raw, dtype=torch.uint8).reshape(-1, HASH) if kept else torch.zeros(0, HASH),
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
