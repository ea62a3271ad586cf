"""Calls of workers that are waited for, and what can go wrong: workers die, their devices fail, or they are late.

Every wait has a deadline and fails fast when a worker dies. Errors of a worker's own code come back as they are."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import NodeDiedError, RayActorError, RayError, RayTaskError, WorkerCrashedError

from burnish.utils.errors import UserError

POLL = 1.0  # seconds between checks, so that Ctrl-C is heard
GRACE = 1.0  # seconds in which it may turn out that an error of one worker came from another's death
GONE = (RayActorError, WorkerCrashedError, NodeDiedError)
TYPES = ("AcceleratorError", "DistBackendError")  # of PyTorch: what CUDA or NCCL say
DEVICE = re.compile(
    r"(?:CUDA|HIP|NCCL|RCCL) (?:driver )?error|uncorrectable ECC|unspecified launch failure"
    r"|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError"
    r"|(?:CUBLAS|CUDNN|CUSOLVER)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)"
)
MEMORY = ("OutOfMemoryError", "out of memory")  # the same again after a restart


class WorkerDied(RuntimeError):
    """A worker's process is gone, and with it what it held; it can be started again."""

    def __init__(self, pool: str, rank: int, reason: str) -> None:
        super().__init__(f"worker {rank} of pool {pool} died: {reason}")
        self.pool, self.rank, self.reason = pool, rank, reason

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.pool, self.rank, self.reason)


class WorkerTimeout(UserError):
    """A worker did not answer in time."""

    def __init__(self, message: str, pool: str = "") -> None:
        """Args: ``pool`` of the worker, if another process might do better: not where it was too slow to start."""
        super().__init__(message)
        self.pool = pool


class Unschedulable(UserError):
    """The cluster can't hold the pools."""


class RestartLimit(UserError):
    """Workers died too often."""


def device_failure(error: BaseException) -> str:
    """What a device or the connection between devices said, after which a process can't use it; "" for other errors.

    Running out of memory is none: it would happen again.
    """
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, UserError) or any(word in text for word in MEMORY):
        return ""
    if type(error).__name__ not in TYPES and not DEVICE.search(str(error)):
        return ""
    return " ".join(text.split())[:300].rstrip(". ")


class Watched(Protocol):
    """A group of workers as its calls see it; see ``ActorGroup``."""

    @property
    def name(self) -> str: ...

    def watched(self) -> dict[ray.ObjectRef[Any], int]: ...

    def failed(self, rank: int, error: BaseException) -> None: ...


@dataclass(eq=False)
class Call:
    """One method called of some workers. The caller holds what they return, so that it outlives them."""

    group: Watched
    method: str
    responses: dict[int, ray.ObjectRef[Any]]  # by rank
    seconds: float  # that it may take
    option: str  # where the user sets that
    kept: dict[int, ray.ObjectRef[Any]] = field(default_factory=dict)  # by rank: second halves, which are never fetched
    start: float = field(default_factory=time.monotonic)
    _fine: set[ray.ObjectRef[Any]] = field(default_factory=set)  # responses that are there and are no errors

    @property
    def left(self) -> float:
        """Seconds until its deadline."""
        return max(0.0, self.start + self.seconds - time.monotonic())

    def done(self) -> bool:
        """Whether ``results`` returns, or raises, at once: all have responded, one has failed, or it is too late."""
        every = list(self.responses.values())
        ready, pending = ray.wait(every, num_returns=len(every), timeout=0)
        if not pending or any(self._failed(reference) for reference in ready):
            return True
        watched = list(self.group.watched())
        return not self.left or bool(watched and ray.wait(watched, timeout=0)[0])

    def wait(self, seconds: float) -> bool:
        """The same, after a worker has been waited for for N seconds."""
        ray.wait(list(self.responses.values()), timeout=max(0.0, min(seconds, self.left)))
        return self.done()

    def _failed(self, reference: ray.ObjectRef[Any]) -> bool:
        if reference not in self._fine:
            try:
                ray.get(reference, timeout=POLL)
            except RayError:
                return True
            self._fine.add(reference)
        return False

    def result(self) -> Any:
        """What the one worker that was called returns; see ``results``."""
        (response,) = self.results()
        return response

    def results(self) -> list[Any]:
        """What all workers return, in the order of ranks.

        Raises:
            WorkerDied: the first worker that died, or whose device failed.
            WorkerTimeout: they are not there in time.
            Exception: what a worker raised, as it is; a note says which worker.
        """
        pending = {reference: rank for rank, reference in self.responses.items()}
        watched = self.group.watched()
        found: dict[int, Any] = {}
        errors: list[tuple[int, BaseException]] = []
        until = self.start + self.seconds
        while pending:
            left = until - time.monotonic()
            ready, _ = ray.wait([*pending, *watched], timeout=max(0.0, min(POLL, left)))
            if not ready and left <= 0:
                break
            for reference in ready:
                rank = pending.pop(reference) if reference in pending else watched.pop(reference)
                try:
                    found[rank] = ray.get(reference, timeout=max(self.left, POLL))
                except RayError as error:
                    errors.append((rank, self._local(rank, error)))
                    died = isinstance(errors[-1][1], WorkerDied)
                    until = min(until, time.monotonic() + (0.0 if died else GRACE))
        if not errors and pending:
            late = sorted(pending.values())
            errors = [(late[0], self._timeout(late))]
        if errors:
            rank, first = next((one for one in errors if isinstance(one[1], WorkerDied)), errors[0])
            self.group.failed(rank, first)
            raise first
        return [found[rank] for rank in self.responses]

    def _local(self, rank: int, error: RayError) -> BaseException:
        """What went wrong, as an error of this process."""
        if isinstance(error, GONE):
            return WorkerDied(self.group.name, rank, reason(error))
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, GONE) or not isinstance(cause, Exception):
            return WorkerDied(self.group.name, rank, reason(cause))
        if failure := device_failure(cause):  # its process can't use the device any more
            return WorkerDied(self.group.name, rank, f"its device failed: {failure}")
        note = f"raised by {self.method} of worker {rank} of pool {self.group.name}"
        cause.add_note(f"{note}:\n{error}" if isinstance(error, RayTaskError) else note)
        return cause

    def _timeout(self, ranks: Sequence[int]) -> WorkerTimeout:
        who = f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {', '.join(map(str, ranks))}"
        return WorkerTimeout(
            f"timed out after {self.seconds:g} s ({self.option}) waiting for {self.method} of {who} of pool "
            f"{self.group.name}; check the workers' logs",
            pool="" if self.option == "ray.start_timeout" else self.group.name,
        )


def first_done(calls: Sequence[Call], check_cancelled: Callable[[], None] = lambda: None) -> list[Call]:
    """Wait until at least one call is done; those calls, in the order given.

    ``check_cancelled`` is called once a second meanwhile, and what it raises ends the wait.
    """
    assert calls, "nothing to wait for"
    while True:
        check_cancelled()
        done = [call for call in calls if call.done()]
        if done:
            return done
        pending = [reference for call in calls for reference in call.responses.values()]
        pending += [life for group in {call.group for call in calls} for life in group.watched()]
        _, rest = ray.wait(pending, num_returns=len(pending), timeout=0)
        if rest:
            ray.wait(rest, timeout=min([POLL, *(call.left for call in calls)]))


def all_done(calls: Sequence[Call], check_cancelled: Callable[[], None] = lambda: None) -> None:
    """Wait for several calls at once, each of which may be stuck until another one's error is seen.

    Raises:
        Exception: see ``Call.results``; of the first call that is done with an error.
    """
    left = list(calls)
    while left:
        for call in first_done(left, check_cancelled):
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
