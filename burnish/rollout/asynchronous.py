"""Samples that are asked for now and waited for later."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Protocol

from burnish.rollout.prompt_schedule import PromptSchedule
from burnish.rollout.requests import RolloutRequest


class Handle(Protocol):
    """Samples that somebody is making."""

    @property
    def seconds(self) -> float:
        """How long they were worked on; known when they are finished."""

    def result(self, timeout: float) -> Any:
        """The finished rollouts, or the error that came in between; the same at every call.

        Raises:
            TimeoutError: they are not finished after so many seconds; the message says what is missing.
        """
        ...


class AsyncRolloutWorker(Protocol):
    """Samples with the weights of named versions, elsewhere and meanwhile.

    What is submitted is of versions that were published, and never of an older one than what was submitted before.
    """

    def submit(self, asked: RolloutRequest) -> Handle:
        """Start with it, as soon as what was submitted before leaves room."""
        ...


class Filling:
    """A batch that is asked for in rounds until it is full, in a thread of its own.

    It begins when the batch before it is full, since both take their prompts from one stream.
    """

    def __init__(
        self,
        rollout_worker: AsyncRolloutWorker,
        questions: PromptSchedule,
        update: int,
        version: int,
        timeout: float,
        before: Filling | None,
    ) -> None:
        self.rollout_worker, self.questions, self.update, self.version = rollout_worker, questions, update, version
        self.seconds = 0.0
        self.after: dict[str, Any] = {}  # where the stream stands behind it
        assert questions.filtering is not None, "one round makes a batch full"
        self._round, self._rounds = timeout, questions.filtering.max_num_gen_batches
        self._patience = timeout * self._rounds  # until it is full
        if before is not None and not before._future.done():
            self._patience += before._patience
        self._future: Future[Any] = Future()
        self._abandoned = False
        threading.Thread(target=self._run, args=(before,), name=f"batch-{update}", daemon=True).start()

    def result(self, timeout: float) -> Any:
        """Its rollouts; ``timeout`` seconds may go by for each round that it can take."""
        return self._future.result(timeout * self._rounds)

    def abandon(self) -> None:
        """Ask for nothing more: nobody will learn from it."""
        self._abandoned = True

    def _run(self, before: Filling | None) -> None:
        try:
            if before is not None:
                before._future.result(before._patience)
            rollouts = self.questions.batch(self._make, self.update, self.version)
            self.after = self.questions.state_dict()
        except BaseException as error:
            self._future.set_exception(error)  # whoever waits for the batch learns of it
        else:
            self._future.set_result(rollouts)

    def _make(self, asked: RolloutRequest) -> Any:
        if self._abandoned:
            raise RuntimeError(f"the samples for update {self.update} are not needed any more")
        handle = self.rollout_worker.submit(asked)
        rollouts = handle.result(self._round)
        self.seconds += handle.seconds
        return rollouts
