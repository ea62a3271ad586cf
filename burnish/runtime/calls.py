"""Calls of workers that are waited for, and what can go wrong: workers die, their devices fail, or they are late.

Every wait has a deadline and fails fast when a worker dies. Errors of a worker's own code come back as they are."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import NodeDiedError, RayActorError, RayError, RayTaskError, WorkerCrashedError

from burnish.runtime import heartbeat
from burnish.runtime.heartbeat import Heartbeat
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.runtime.actor_group import ActorGroup
    from burnish.runtime.workers import PooledScorer

POLL = 1.0  # seconds between checks, so that Ctrl-C is heard
GRACE = 1.0  # seconds in which it may turn out that an error of one worker came from another's death
GONE = (RayActorError, WorkerCrashedError, NodeDiedError)
# of PyTorch: what CUDA or NCCL say; and vLLM, which is as lost, with the weights that it had
TYPES = ("AcceleratorError", "DistBackendError", "VllmDiedError")
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
    """What was said by a device, the connection between devices, or a vLLM that died, after which a process can't go
    on; "" for other errors.

    Running out of memory is none: it would happen again.
    """
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, UserError) or any(word in text for word in MEMORY):
        return ""
    if type(error).__name__ not in TYPES and not DEVICE.search(str(error)):
        return ""
    return " ".join(text.split())[:300].rstrip(". ")


@dataclass(eq=False)
class Call:
    """One method called of some workers. The caller holds what they return, so that it outlives them."""

    group: ActorGroup | PooledScorer
    method: str
    responses: dict[int, ray.ObjectRef[Any]]  # by rank
    seconds: float  # that it may take
    option: str  # where the user sets that
    kept: dict[int, ray.ObjectRef[Any]] = field(default_factory=dict)  # by rank: second halves, which are never fetched
    start: float = field(default_factory=time.monotonic)
    heartbeat: Heartbeat | None = None  # of workers that wait for each other, and
    handles: Sequence[Any] = ()  # of which each is asked, by rank
    _asked: float = 0.0  # when they were, last
    _beats: dict[ray.ObjectRef[Any], int] = field(default_factory=dict)  # what they have not answered, by rank
    _found: dict[int, Any] = field(default_factory=dict)  # by rank
    _errors: dict[int, BaseException] = field(default_factory=dict)  # by rank, in their order

    @property
    def left(self) -> float:
        """Seconds until its deadline."""
        return max(0.0, self.start + self.seconds - time.monotonic())

    def pending(self) -> dict[ray.ObjectRef[Any], int]:
        """What is waited for, by rank: responses, and deaths that would prevent them."""
        settled = self._found.keys() | self._errors.keys()
        return {ref: rank for rank, ref in self.responses.items() if rank not in settled} | self.group.watched()

    def wait(self, seconds: float) -> bool:
        """Whether ``results`` returns, or raises, at once, after a worker has been waited for for N seconds."""
        while not self._errors and len(self._found) < len(self.responses):
            if not self._settle(min(seconds, self.left)):
                self._listen()
                return bool(self._errors) or not self.left
        return True

    def _listen(self) -> None:
        """Hear where workers are that wait for each other; if none has moved for long, they time out."""
        if self.heartbeat is None:
            return
        now = time.monotonic()
        answered, _ = ray.wait(list(self._beats), num_returns=len(self._beats), timeout=0) if self._beats else ([], [])
        for reference in answered:
            rank = self._beats.pop(reference)
            with suppress(RayError):  # its call says that it died
                self.heartbeat.hear(rank, ray.get(reference), now)
        if now - self._asked > heartbeat.LONGEST / heartbeat.EVERY:
            self._asked = now
            silent = self._beats.values()
            asked = [rank for rank in self.heartbeat.ranks if rank not in silent and self.handles[rank] is not None]
            self._beats |= {self.handles[rank].place.remote(): rank for rank in asked}
        if places := self.heartbeat.hanging(now):
            told = "; ".join(f"{_workers(ranks)} {where}" for where, ranks in places.items())
            self._errors[next(iter(places.values()))[0]] = WorkerTimeout(
                f"pool {self.group.name} hangs in {self.method}, where no worker has moved for "
                f"{heartbeat.LONGEST:g} s: {told}",
                pool=self.group.name,
            )

    def _settle(self, seconds: float) -> bool:
        """Take in the next response or death; False if there is none within N seconds."""
        pending = self.pending()
        ready, _ = ray.wait(list(pending), timeout=max(0.0, seconds))
        for reference in ready:
            rank = pending[reference]
            try:
                self._found[rank] = ray.get(reference, timeout=max(self.left, POLL))
            except RayError as error:
                self._errors[rank] = self._local(rank, error)
        return bool(ready)

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
        while not self.wait(POLL):
            pass
        if self._errors or len(self._found) < len(self.responses):
            rank, first = self._error()
            self.group.failed(rank, first)
            raise first
        return [self._found[rank] for rank in self.responses]

    def _error(self) -> tuple[int, BaseException]:
        """The first error with its rank; a death before others, which shows a moment later than what comes of it."""
        until = time.monotonic() + GRACE
        while self._errors:
            death = next((one for one in self._errors.items() if isinstance(one[1], WorkerDied)), None)
            over = len(self._found) + len(self._errors) >= len(self.responses)
            if death or over or not self._settle(until - time.monotonic()):
                return death or next(iter(self._errors.items()))
        late = sorted(rank for rank in self.responses if rank not in self._found)
        return late[0], self._timeout(late)

    def _local(self, rank: int, error: RayError) -> BaseException:
        """What went wrong, as an error of this process."""
        if isinstance(error, GONE):
            return WorkerDied(self.group.name, rank, reason(error))
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, GONE) or not isinstance(cause, Exception):
            return WorkerDied(self.group.name, rank, reason(cause))
        if failure := device_failure(cause):  # its process can't use the device any more
            return WorkerDied(self.group.name, rank, f"it can't go on: {failure}")
        note = f"raised by {self.method} of worker {rank} of pool {self.group.name}"
        cause.add_note(f"{note}:\n{error}" if isinstance(error, RayTaskError) else note)
        return cause

    def _timeout(self, ranks: Sequence[int]) -> WorkerTimeout:
        return WorkerTimeout(
            f"timed out after {self.seconds:g} s ({self.option}) waiting for {self.method} of {_workers(ranks)} of "
            f"pool {self.group.name}; check the workers' logs",
            pool="" if self.option == "ray.start_timeout" else self.group.name,
        )


def _workers(ranks: Sequence[int]) -> str:
    return f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {', '.join(map(str, ranks))}"


def first_done(calls: Sequence[Call], check_cancelled: Callable[[], None] = lambda: None) -> list[Call]:
    """Wait until at least one call is done; those calls, in the order given.

    ``check_cancelled`` is called once a second meanwhile, and what it raises ends the wait.
    """
    assert calls, "nothing to wait for"
    while True:
        check_cancelled()
        done = [call for call in calls if call.wait(0.0)]
        if done:
            return done
        pending = dict.fromkeys(reference for call in calls for reference in call.pending())
        ray.wait(list(pending), timeout=min([POLL, *(call.left for call in calls)]))


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
