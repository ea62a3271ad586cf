"""A broadcast from one process to several, beside whatever process group they train in."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

ABORTED = "aborted"  # in the store, by whoever gives up
GIVEN_UP = "a member of the channel has given up"
ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"  # what a group's watchdog does with errors, read as the group is made
LOOK = 0.5  # seconds between looks at the store
PAUSE = 0.0005  # seconds between looks at a broadcast
GRACE = 120.0  # seconds after the deadline until NCCL's own watchdog would end the process
_abandoned: list[Any] = []  # groups of gloo whose broadcast goes on: to free one waits for its end


class Channel:
    """Rank 0 sends, all others receive. It is no part of torch's default group, and registers nowhere.

    A member that dies breaks it; the others find out by an error, by a member that gives up, or by the deadline, and
    open another.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, *, device: str, seconds: float) -> None:
        """Join; returns when all members have.

        Args:
            store: where they find each other; rank 0 keeps it.
            rank: 0 for the sender.
            size: all members.
            device: cpu talks over gloo, cuda over NCCL, each member on a GPU of its own.
            seconds: that joining, and each broadcast, may take.

        Raises:
            RuntimeError: not all joined in time.
        """
        self.device = torch.device(device)
        self.seconds, self._gone = seconds, threading.Event()
        self._begun: tuple[Any, Tensor] | None = None  # a broadcast, and the bucket that it needs
        store.set_timeout(timedelta(seconds=seconds))
        self._store = dist.PrefixStore("members", store)
        if self.device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=seconds + GRACE)
            with _errors_end_no_process():
                self._group: Any = dist.ProcessGroupNCCL(self._store, rank, size, options)
        else:
            self._group = dist.ProcessGroupGloo(self._store, rank, size, timedelta(seconds=seconds))

    def broadcast(self, bucket: Tensor) -> None:
        """Begin to send rank 0's bytes into everybody's ``bucket``, when the one before is there.

        Args:
            bucket: uint8, as long everywhere, on the channel's device; left alone until ``finish``.

        Raises:
            RuntimeError: a member is gone, has given up, or is too slow.
        """
        self.finish()
        if self._gone.is_set():
            raise RuntimeError(GIVEN_UP)
        self._begun = self._group.broadcast([bucket], dist.BroadcastOptions()), bucket

    def finish(self) -> None:
        """Wait for the broadcast that was begun last; raises as ``broadcast`` does. This thread waits for it alone."""
        if self._begun is None:
            return
        (work, _), self._begun = self._begun, None
        self._await(work.is_completed)
        if self._gone.is_set():  # which ended what was on its way, too
            raise RuntimeError(GIVEN_UP)
        work.wait()  # raises what went wrong, and has the present stream of a GPU wait

    def abort(self) -> None:
        """Give up, for all members: a broadcast that waits for one that is dead ends by an error."""
        if not self._gone.is_set():
            self._gone.set()
            with suppress(RuntimeError):  # whoever keeps the store is gone
                self._store.set(ABORTED, "1")
            with suppress(RuntimeError):
                self._group.abort()
            if self.device.type == "cpu":
                _abandoned.append(self._group)

    def close(self) -> None:
        """Leave."""
        if not self._gone.is_set():
            self._gone.set()
            self._group.shutdown()

    def _await(self, done: Any) -> None:
        begun = looked = time.monotonic()
        while not done():
            now = time.monotonic()
            if now > looked + LOOK:
                looked = now
                if self._others_gave_up():
                    self.abort()
            if self._gone.is_set():
                raise RuntimeError(GIVEN_UP)
            if now > begun + self.seconds:
                self.abort()
                raise RuntimeError(f"timed out after {self.seconds:g} s waiting for a member of the channel")
            time.sleep(PAUSE)

    def _others_gave_up(self) -> bool:
        try:
            return bool(self._store.check([ABORTED]))
        except RuntimeError:  # whoever keeps the store is gone: rank 0, who sends
            return True


@contextmanager
def _errors_end_no_process() -> Iterator[None]:
    """A group of NCCL that is made in this context leaves errors to its callers.

    Else its watchdog ends the process as soon as it sees that another member is gone, and a trainer would die of a
    sampler's death.
    """
    before = os.environ.get(ERRORS)
    os.environ[ERRORS] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ERRORS]
        else:
            os.environ[ERRORS] = before


def device_for(places: Sequence[str]) -> str:
    """What members talk over: GPUs if each has its own, for NCCL refuses two processes on one; else their CPUs."""
    return "cuda" if all(places) and len(set(places)) == len(places) else "cpu"
