"""A source that runs ahead of the loop: the next batches are sampled while one is learned.

Batch k is always sampled by version max(0, k - 1 - lag), however fast anybody is. So a run is reproducible, and no
sample is older than the bound: what would become too old is not started before newer weights are there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, replace
from threading import Condition
from typing import Any, Protocol

from burnish.options.cluster import AsyncRolloutOptions
from burnish.rewards.normalising import Normaliser, restore, saved
from burnish.rollout.sources import PromptSchedule, RolloutRequest
from burnish.types.rollout import Rollouts
from burnish.utils.errors import UserError

log = logging.getLogger(__name__)


class Handle(Protocol):
    """A request under way."""

    @property
    def seconds(self) -> float:
        """How long it took; known when it is finished."""

    def result(self, timeout: float) -> Any:
        """The rollouts, or the error that ended the request; the same at every call.

        Raises:
            TimeoutError: it is not finished after ``timeout`` seconds; the message says what is missing.
        """


class AsyncRolloutWorker(Protocol):
    """Samples with the weights of named versions, in other processes.

    What is submitted is of versions that were published, and never of an older one than what was submitted before.
    """

    def submit(self, request: RolloutRequest) -> Handle:
        """Start on a request as soon as there is capacity for it."""


# a batch: where the stream stands, what was put aside, and what may be replayed
Behind = tuple[int, list[RolloutRequest], tuple[Any, ...]]


class Filling:
    """A batch that needs the one before it, in a thread of its own.

    It goes on with what that has put aside, or is requested in rounds until enough groups have different rewards: both
    take their prompts from one stream.
    """

    def __init__(
        self,
        rollout_worker: AsyncRolloutWorker,
        schedule: PromptSchedule,
        update: int,
        version: int,
        timeout: float,
        before: Filling | None,
        after: Behind,
    ) -> None:
        self.rollout_worker, self.schedule, self.update, self.version = rollout_worker, schedule, update, version
        self.seconds = 0.0
        self.after = after  # of those before the first one, until it is finished
        self._round = timeout
        self._future: Future[Any] = Future()
        self.abandoned = False  # nobody will learn from it, so that nothing more is requested
        self.thread = threading.Thread(target=self._run, args=(before,), name=f"batch-{update}", daemon=True)
        self.thread.start()

    def result(self, timeout: float) -> Any:
        """Its rollouts; ``timeout`` is the limit of each of its rounds, in seconds."""
        return self._future.result(timeout * self.schedule.rounds)

    def _run(self, before: Filling | None) -> None:
        try:
            if before is not None:
                before._future.result()  # whose rounds have limits of their own
                self.after = before.after
            rollouts = self.schedule.filled(self._generate, self.update, self.version, self.after[1])
            self.after = self.schedule.stream.position, rollouts.put_aside, self.schedule.replayable
        except BaseException as error:
            self._future.set_exception(error)  # raised where the batch is waited for
        else:
            self._future.set_result(replace(rollouts, put_aside=[]))

    def _generate(self, request: RolloutRequest) -> Any:
        if self.abandoned:
            raise RuntimeError(f"the samples for update {self.update} are no longer needed")
        handle = self.rollout_worker.submit(request)
        rollouts = handle.result(self._round)
        self.seconds += handle.seconds
        return rollouts


@dataclass
class _Batch:
    """A batch that was requested."""

    update: int
    version: int
    handle: Handle
    after: Callable[[], Behind]  # once it is finished
    held: float = 0.0  # seconds that it was started later because of the bound on staleness

    def result(self, timeout: float) -> Rollouts:
        """The finished rollouts.

        Raises:
            UserError: they are not finished in time.
        """
        try:
            rollouts: Rollouts = self.handle.result(timeout)
        except TimeoutError as error:
            missing = f": {error}" if str(error) else ""
            raise UserError(
                f"timed out after {timeout:g} s (ray.call_timeout) waiting for the samples of update "
                f"{self.update}, by weights v{self.version}{missing}; check the rollout workers' logs, or "
                "raise ray.call_timeout"
            ) from error
        return rollouts


@dataclass
class _Finished:
    """A batch from a checkpoint."""

    rollouts: Any
    seconds: float = 0.0

    def result(self, timeout: float) -> Any:
        return self.rollouts


class PipelinedSource:
    """Keeps as many batches in flight as depth and staleness allow, and hands them out in order."""

    def __init__(
        self,
        schedule: PromptSchedule,
        rollout_worker: AsyncRolloutWorker,
        options: AsyncRolloutOptions,
        *,
        steps: int,
        timeout: float,
        normaliser: Normaliser | None = None,
    ) -> None:
        """Take over the parts of an assembly.

        Args:
            schedule: which samples to request.
            rollout_worker: who generates them.
            options: how far to run ahead.
            steps: policy updates of the run; nothing is sampled for later ones.
            timeout: seconds to wait for samples or for a weight sync.
            normaliser: of rewards, whose statistics take in batches when these are handed out.
        """
        self.normaliser, self.timeout = normaliser, timeout
        self.schedule, self.rollout_worker, self.options, self.steps = schedule, rollout_worker, options, steps
        # whether a batch is only requested when the one before it is finished
        self._in_turn = schedule.filtering is not None or options.partial is not None
        self._changed = Condition()
        self._threads: list[threading.Thread] = []  # of batches that are filled
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._ahead: deque[_Batch] = deque()  # in the order of submission
        self._next = 1  # the update that is requested next
        self._turn = 0  # the update that the loop is at
        self._collected: int | None = None  # the last update whose batch was handed out in this process
        self._floor: int | None = None  # the version that the loop began with in this process; no older one comes
        self._published = -1
        self._since: dict[int, float] = {}  # when versions were published
        self._filling: Filling | None = None  # the last batch that takes its prompts by and by
        self._after: Behind = self.schedule.stream.position, [], self.schedule.replayable  # the last batch handed out
        self._handed_out = time.perf_counter()

    def needs(self, version: int) -> bool:
        """Whether a batch will be requested of a version that is published next; those of a checkpoint are not."""
        floor, first = self._floor, self._next
        if floor is None:  # the loop begins with this version
            floor, first = version, version + 1 + len(self._ahead)
        last = min(self.steps, version + 1 + self.options.lag)
        return any(self._version(update, floor) == version for update in range(first, last + 1))

    def _version(self, update: int, floor: int) -> int:
        """The weights that an update's batch is sampled by, none older than ``floor``."""
        return max(floor, update - 1 - self.options.lag)

    def published(self, version: int) -> None:
        """Whoever samples has the weights of ``version`` now; those that a process begins with count, too."""
        with self._changed:
            self._published = version
            self._since[version] = time.perf_counter()
            if self._floor is not None:
                self._turn = max(self._turn, version + 1)
                self._start()
            self._changed.notify_all()

    def rollout(self, update: int) -> Rollouts:
        """The batch of policy update ``update``; the next ones are started, too.

        Raises:
            UserError: samples, or weights at the rollout workers, did not come in time.
        """
        called_at = time.perf_counter()
        with self._changed:
            if self._floor is None:  # what a checkpoint brought is for this update and for the ones after it
                assert all(batch.update == update + i for i, batch in enumerate(self._ahead)), "batches of another run"
                self._floor, self._next = update - 1, update + len(self._ahead)
                self._handed_out = called_at
            self._turn = max(self._turn, update)
            self._start()
            self._await_start(update)
            batch = self._ahead.popleft()
        assert batch.update == update, f"update {update} is collected, but {batch.update} is next"
        found_at = time.perf_counter()
        rollouts = batch.result(self.timeout)
        self._after, self._collected = batch.after(), update
        if not self._in_turn:  # which tells of all that it draws
            self.schedule.learn(update, rollouts)
        now = time.perf_counter()
        step, admission = max(now - self._handed_out, 1e-9), min(batch.held, now - found_at)
        self._handed_out = now
        staleness = float(batch.update - 1 - rollouts.version)
        metrics = {
            "pipeline/staleness/mean": staleness,
            "pipeline/staleness/max": staleness,
            "pipeline/idle_share/trainer": (now - called_at) / step,
            "pipeline/idle_share/rollout": 1 - min(batch.handle.seconds / step, 1.0),
            "timing_s/wait/publication": found_at - called_at,
            "timing_s/wait/admission": admission,
            "timing_s/wait/rollout": now - found_at - admission,
        }
        if self.normaliser is not None:
            rollouts = self.normaliser.learned(rollouts)
        return replace(rollouts, metrics=metrics | rollouts.metrics)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream goes on, and the finished batches whose weights no resumed run has any more.

        They are as the rollout workers gave them; ``burnish.runtime.transfer`` makes of them what can be written
        to a file, where their tensors are at hand. Unfinished ones are waited for. Batches by the newest weights are
        left out: a resumed run publishes these weights again and samples the very same.
        """
        kept = self._not_again()
        return self._state(kept, [batch.result(self.timeout) for batch in kept])

    def finished_state(self) -> dict[str, Any]:
        """The same without what is not finished: where nobody samples any more, a resumed run does so anew."""
        kept, rollouts = self._not_again(), []
        for batch in kept:
            try:
                rollouts.append(batch.handle.result(0.0))
            except Exception as error:
                log.warning("the samples of update %d are unfinished and not saved: %s", batch.update, error)
                break
        return self._state(kept[: len(rollouts)], rollouts)

    def _not_again(self) -> list[_Batch]:
        """Batches ahead whose weights a resumed run does not have."""
        with self._changed:
            newest = self._collected  # as many updates are behind the weights that are saved with this
            return [batch for batch in self._ahead if newest is None or batch.version < newest]

    def _state(self, kept: list[_Batch], rollouts: list[Any]) -> dict[str, Any]:
        position, put_aside, replayable = kept[-1].after() if kept else self._after
        state = self.schedule.stream.state_dict(position)
        state |= self.schedule.history(kept[-1].update if kept else self._collected) | saved(self.normaliser)
        more = {"ahead": rollouts, "put_aside": put_aside, "replay": list(replayable)}
        return state | {name: value for name, value in more.items() if value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # a batch in flight may still take prompts, from the stream that it knows
        self.schedule = replace(self.schedule, stream=copy(self.schedule.stream), replay=copy(self.schedule.replay))
        self.schedule.load_state_dict(state)
        restore(state, self.normaliser)
        with self._changed:
            for batch in self._ahead:
                if isinstance(batch.handle, Filling):
                    batch.handle.abandoned = True
            self._begin_anew()
            self._after = after = self.schedule.stream.position, state.get("put_aside", []), self.schedule.replayable
            self._in_turn = self._in_turn or bool(after[1])
            for rollouts in state.get("ahead", []):
                self._ahead.append(_Batch(rollouts.update, rollouts.version, _Finished(rollouts), lambda: after))

    def join(self, seconds: float) -> None:
        """Wait until nobody asks for samples any more, once whoever samples has been ended."""
        for thread in self._threads:
            thread.join(seconds)

    def _start(self) -> None:
        """Request every batch that may be started by now, in order."""
        assert self._floor is not None, "the loop has not begun"
        while self._next <= min(self.steps, self._turn + self.options.depth):
            version = self._version(self._next, self._floor)
            if version > self._published:
                return
            batch = self._requested(self._next, version)
            eager = max(self._floor, self._next - 1 - self.options.depth)
            batch.held = time.perf_counter() - self._since[eager] if eager < version else 0.0
            self._ahead.append(batch)
            self._next += 1

    def _requested(self, update: int, version: int) -> _Batch:
        if not self._in_turn:
            handle = self.rollout_worker.submit(self.schedule.request(update, version, Counter()))
            behind: Behind = self.schedule.stream.position, [], ()
            return _Batch(update, version, handle, lambda: behind)
        filling = Filling(self.rollout_worker, self.schedule, update, version, self.timeout, self._filling, self._after)
        self._filling = filling
        self._threads = [*(one for one in self._threads if one.is_alive()), filling.thread]
        return _Batch(update, version, filling, lambda: filling.after)

    def _await_start(self, update: int) -> None:
        """Wait until the weights of the next batch are published."""
        if self._changed.wait_for(lambda: len(self._ahead) > 0, self.timeout):
            return
        assert self._floor is not None, "the loop has not begun"
        version = self._version(update, self._floor)
        raise UserError(
            f"timed out after {self.timeout:g} s (ray.call_timeout) waiting for weights v{version} to "
            f"reach the rollout workers (update {update}); check the rollout workers' logs, or "
            "raise ray.call_timeout"
        )
