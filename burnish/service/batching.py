"""Requests of several clients are scored together, and no more wait than there is room for."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.options.service import ServiceOptions
from burnish.rewards.base import Given, Verdict
from burnish.rewards.scoring import Scorer
from burnish.types.execution import Execution, execution_of
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores

AT_ONCE = 2  # batches under way: one is scored while the next one is sent


class Full(Exception):
    """There is no room for a request now."""


class Memory:
    """Bytes that requests may take together."""

    def __init__(self, most: float) -> None:
        self.most, self.taken, self._lock = int(most), 0, threading.Lock()

    def take(self, count: int) -> None:
        """Take some; they have to be given back.

        Raises:
            Full: that is more than there is.
        """
        with self._lock:
            if self.taken + count > self.most:
                raise Full(f"all requests together may take {self.most >> 20} MiB (service.memory_mb)")
            self.taken += count

    def give_back(self, count: int) -> None:
        """Free some that were taken."""
        with self._lock:
            self.taken -= count


@dataclass(eq=False)
class _Asked:
    samples: Sequence[Any]
    prompts: Sequence[Prompt]
    verdicts: asyncio.Future[list[Verdict]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Collects requests for a moment and has them scored as one."""

    def __init__(
        self, scorer: Scorer, options: ServiceOptions, count: Callable[[Mapping[str, Execution]], None]
    ) -> None:
        """Args: ``count`` gets how each batch was scored."""
        self.scorer, self.options, self._count = scorer, options, count
        self.waiting = 0  # samples that are not answered yet
        self._asked: asyncio.Queue[_Asked] = asyncio.Queue()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def verdicts(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> list[Verdict]:
        """The verdicts on a request's samples.

        Raises:
            Full: too many wait already.
        """
        if not samples:
            return []
        if self.waiting + len(samples) > self.options.queue:
            raise Full(f"{self.waiting} samples are waiting, and the queue holds {self.options.queue} (service.queue)")
        asked = _Asked(samples, prompts)
        self.waiting += len(samples)
        try:
            self._asked.put_nowait(asked)
            return await asked.verdicts
        finally:
            self.waiting -= len(samples)

    async def run(self) -> None:
        """Score what is asked, until cancelled."""
        try:
            while True:
                await self._slots.acquire()
                batch = await self._next()
                task = asyncio.create_task(self._score(batch))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            for task in self._tasks:
                task.cancel()

    async def _next(self) -> list[_Asked]:
        batch = [await self._asked.get()]
        count, until = len(batch[0].samples), asyncio.get_running_loop().time() + self.options.window
        with contextlib.suppress(TimeoutError, asyncio.QueueEmpty):
            while count < self.options.batch_size:
                left = until - asyncio.get_running_loop().time()
                one = self._asked.get_nowait() if left <= 0 else await asyncio.wait_for(self._asked.get(), left)
                batch.append(one)
                count += len(one.samples)
        return batch

    async def _score(self, batch: Sequence[_Asked]) -> None:
        samples = [sample for asked in batch for sample in asked.samples]
        prompts = [prompt for asked in batch for prompt in asked.prompts]
        # samples are compared with those of the same prompt in the same request
        group: dict[tuple[int, str], int] = {}
        numbers = [group.setdefault((i, p.uid), len(group)) for i, asked in enumerate(batch) for p in asked.prompts]
        try:
            scores = await asyncio.wrap_future(self.scorer.submit(samples, prompts, Given(group=numbers)))
            self._count(execution_of(scores.ran, [False] * len(samples)))
            found = _verdicts(scores)
            start = 0
            for asked in batch:
                own = found[start : start + len(asked.samples)]
                start += len(asked.samples)
                if not asked.verdicts.done():
                    asked.verdicts.set_result(own)
        except BaseException as error:
            for asked in batch:
                if not asked.verdicts.done():
                    asked.verdicts.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
        finally:
            self._slots.release()


def _verdicts(scores: Scores) -> list[Verdict]:
    """Scores as what a service answers: the sum as the value, and each component by name."""
    found = []
    components = scores.components.tolist()
    for row, (reward, missing) in enumerate(zip(scores.reward.tolist(), scores.missing.tolist(), strict=True)):
        named = {name: v for name, v in zip(scores.names, components[row], strict=True) if not math.isnan(v)}
        named |= scores.further[row]
        value = None if missing else reward
        answer = next(iter(scores.answers[row].values()), None)
        found.append(Verdict(value, (), scores.notes[row], fault=scores.faults[row], named=named, answer=answer))
    return found
