"""Samples that are requested now and waited for later."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Protocol

from burnish.rollout.requests import RolloutRequest
from burnish.rollout.sources import PromptSchedule


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
        ...


class AsyncRolloutWorker(Protocol):
    """Samples with the weights of named versions, in other processes.

    What is submitted is of versions that were published, and never of an older one than what was submitted before.
    """

    def submit(self, request: RolloutRequest) -> Handle:
        """Start on a request as soon as there is capacity for it."""
        ...


class Filling:
    """A batch that is requested in rounds until enough groups have different rewards, in a thread of its own.

    It begins when the batch before it is full, since both take their prompts from one stream.
    """

    def __init__(
        self,
        rollout_worker: AsyncRolloutWorker,
        schedule: PromptSchedule,
        update: int,
        version: int,
        timeout: float,
        before: Filling | None,
    ) -> None:
        self.rollout_worker, self.schedule, self.update, self.version = rollout_worker, schedule, update, version
        self.seconds = 0.0
        self.after = 0  # where the stream stands behind it
        assert schedule.filtering is not None, "one round makes a batch full"
        self._round, self._rounds = timeout, schedule.filtering.max_num_gen_batches
        self._patience = timeout * self._rounds  # seconds until it is full
        if before is not None and not before._future.done():
            self._patience += before._patience
        self._future: Future[Any] = Future()
        self._abandoned = False
        threading.Thread(target=self._run, args=(before,), name=f"batch-{update}", daemon=True).start()

    def result(self, timeout: float) -> Any:
        """Its rollouts; ``timeout`` is the limit of each of its rounds, in seconds."""
        return self._future.result(timeout * self._rounds)

    def abandon(self) -> None:
        """Request nothing more: nobody will learn from it."""
        self._abandoned = True

    def _run(self, before: Filling | None) -> None:
        try:
            if before is not None:
                before._future.result(before._patience)
            rollouts = self.schedule.batch(self._generate, self.update, self.version)
            self.after = self.schedule.stream.position
        except BaseException as error:
            self._future.set_exception(error)  # raised where the batch is waited for
        else:
            self._future.set_result(rollouts)

    def _generate(self, request: RolloutRequest) -> Any:
        if self._abandoned:
            raise RuntimeError(f"the samples for update {self.update} are no longer needed")
        handle = self.rollout_worker.submit(request)
        rollouts = handle.result(self._round)
        self.seconds += handle.seconds
        return rollouts
