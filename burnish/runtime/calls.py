"""What was asked of workers and is waited for: never without end, and never past a death."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import NodeDiedError, RayActorError, RayError, RayTaskError, WorkerCrashedError

from burnish.runtime.faults import WorkerDied, WorkerTimeout

LOOK = 1.0  # seconds between looks, so that Ctrl-C is heard
GRACE = 1.0  # seconds in which it may turn out that an error of one worker came from another's death
GONE = (RayActorError, WorkerCrashedError, NodeDiedError)


class Watched(Protocol):
    """A group of workers as its calls see it."""

    @property
    def name(self) -> str:
        """Of its pool."""
        ...

    def watched(self) -> dict[ray.ObjectRef[Any], int]:
        """References that are ready when a worker is dead that others wait for, with its rank."""
        ...

    def failed(self, rank: int, error: BaseException) -> None:
        """A worker died, raised or is late: do what the others need."""
        ...


@dataclass(eq=False)
class Call:
    """One method asked of some workers. The driver holds what they answer, so that it outlives them."""

    group: Watched
    method: str
    answers: dict[int, ray.ObjectRef[Any]]  # by rank
    seconds: float  # that it may take
    option: str  # where they come from
    kept: dict[int, ray.ObjectRef[Any]] = field(default_factory=dict)  # by rank: second halves, never fetched
    start: float = field(default_factory=time.monotonic)
    _fine: set[ray.ObjectRef[Any]] = field(default_factory=set)  # answers that are there and are no errors

    @property
    def left(self) -> float:
        """Seconds until it is late."""
        return max(0.0, self.start + self.seconds - time.monotonic())

    def done(self) -> bool:
        """Whether ``results`` returns, or raises, at once: all have answered, or one has failed."""
        every = list(self.answers.values())
        ready, pending = ray.wait(every, num_returns=len(every), timeout=0)
        if not pending or any(self._failed(reference) for reference in ready):
            return True
        watched = list(self.group.watched())
        return bool(watched and ray.wait(watched, timeout=0)[0])

    def _failed(self, reference: ray.ObjectRef[Any]) -> bool:
        if reference not in self._fine:
            try:
                ray.get(reference, timeout=LOOK)
            except RayError:
                return True
            self._fine.add(reference)
        return False

    def result(self) -> Any:
        """The answer of the one worker that was asked; see ``results``."""
        (answer,) = self.results()
        return answer

    def results(self) -> list[Any]:
        """Wait for all answers, in the order of ranks.

        Raises:
            WorkerDied: the first worker that died.
            Late: they are not there in time.
            Exception: what a worker raised, as it is; a note says which worker.
        """
        pending = {reference: rank for rank, reference in self.answers.items()}
        watched = self.group.watched()
        found: dict[int, Any] = {}
        errors: list[tuple[int, BaseException]] = []
        until = self.start + self.seconds
        while pending:
            left = until - time.monotonic()
            ready, _ = ray.wait([*pending, *watched], timeout=max(0.0, min(LOOK, left)))
            if not ready and left <= 0:
                break
            for reference in ready:
                rank = pending.pop(reference) if reference in pending else watched.pop(reference)
                try:
                    found[rank] = ray.get(reference, timeout=max(self.left, LOOK))
                except RayError as error:
                    errors.append((rank, self._told(rank, error)))
                    died = isinstance(errors[-1][1], WorkerDied)
                    until = min(until, time.monotonic() + (0.0 if died else GRACE))
        if not errors and pending:
            errors = [(rank, self._late(sorted(pending.values()))) for rank in sorted(pending.values())]
        if errors:
            rank, first = next((one for one in errors if isinstance(one[1], WorkerDied)), errors[0])
            self.group.failed(rank, first)
            raise first
        return [found[rank] for rank in self.answers]

    def _told(self, rank: int, error: RayError) -> BaseException:
        """What went wrong, as the driver's own error."""
        if isinstance(error, GONE):
            return WorkerDied(self.group.name, rank, reason(error))
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, GONE) or not isinstance(cause, Exception):
            return WorkerDied(self.group.name, rank, reason(cause))
        told = f"raised by {self.method} of worker {rank} of pool {self.group.name}"
        cause.add_note(f"{told}:\n{error}" if isinstance(error, RayTaskError) else told)
        return cause

    def _late(self, ranks: Sequence[int]) -> WorkerTimeout:
        who = f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {', '.join(map(str, ranks))}"
        return WorkerTimeout(
            f"waited for {self.method} of {who} of pool {self.group.name} longer than "
            f"{self.option}={self.seconds:g} seconds"
        )


def first_done(calls: Sequence[Call], between: Callable[[], None] = lambda: None) -> list[Call]:
    """Wait until ``results`` of at least one call returns, or raises, at once; those calls, in the order given.

    A call that is late counts as done. ``between`` is called once a second meanwhile.
    """
    assert calls, "nothing to wait for"
    while True:
        between()
        done = [call for call in calls if call.done() or not call.left]
        if done:
            return done
        pending = [reference for call in calls for reference in call.answers.values()]
        pending += [life for group in {call.group for call in calls} for life in group.watched()]
        _, rest = ray.wait(pending, num_returns=len(pending), timeout=0)
        if rest:
            ray.wait(rest, timeout=min([LOOK, *(call.left for call in calls)]))


def all_done(calls: Sequence[Call], between: Callable[[], None] = lambda: None) -> None:
    """Wait for several calls at once, each of which may be stuck until another one's error is heard.

    Args:
        calls: what is waited for.
        between: see ``first_done``.

    Raises:
        Exception: see ``Call.results``; of the first call that is done with an error.
    """
    left = list(calls)
    while left:
        for call in first_done(left, between):
            call.results()
            left.remove(call)


def reason(error: BaseException) -> str:
    """Why a worker died, from Ray's long message."""
    text = " ".join(str(error).split())
    for start in ("The actor is dead because ", "The actor died because ", "Worker exit detail: "):
        text = text.split(start, 1)[-1]
    for end in (" There are some potential root causes", " Some common causes include", " Node Id: "):
        text = text.split(end, 1)[0]
    return text[:300].rstrip(". ")
