"""The rollout pool as one rollout worker: work is shared out, and what a worker that died left undone is done again.

Every worker gets its orders in a row, and switches to the version of each. So an order needs no response to the one
before it, and a worker that is replaced gets all orders that were not carried out once more.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray

from burnish.metrics import Span
from burnish.options.cluster import RayOptions
from burnish.rollout.sources import RolloutRequest, split
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.calls import POLL, Call, RestartLimit, Unschedulable, WorkerDied, WorkerTimeout
from burnish.runtime.transfer import PromptNumbers, RolloutResult, joined
from burnish.runtime.weight_sync import Broken, WeightSync
from burnish.types.rollout import Rollouts
from burnish.utils.errors import Cancelled

log = logging.getLogger(__name__)

LOST = 60.0  # seconds after which Ray knows of a machine that does not answer


@dataclass(eq=False)
class Order:
    """Samples that one worker makes."""

    request: RolloutRequest
    rank: int
    call: Call = field(init=False)  # the last time that it was sent


@dataclass(eq=False)
class WorkerState:
    """What the driver knows of a worker."""

    version: int | None = None  # of the weights that it has after all of its orders
    spare: int | None = None  # of those in its second buffer
    orders: list[Order] = field(default_factory=list)  # not finished yet, in a row
    replaced: int = 0  # how often


class PendingRollouts:
    """A batch that is being sampled: the orders of its parts."""

    def __init__(self, pool: RolloutPool, orders: list[Order]) -> None:
        self.pool, self.orders = pool, orders
        self.seconds = 0.0  # of the slowest part
        self._rollouts: Rollouts | None = None

    def result(self, timeout: float) -> Rollouts:
        """The complete batch, with pointers as its traces; see ``burnish.rollout.pipelined.Handle``."""
        if self._rollouts is None:
            deadline = time.monotonic() + timeout
            parts = [self.pool.finished(order, deadline) for order in self.orders]
            self.seconds = max(result.seconds for result, _ in parts)
            self._rollouts, phases = joined(parts, self.pool.numbers)
            ranks = [f"rollout {order.rank}" for order in self.orders]
            self.pool.add_phases(phases, {name: result.spans for name, (result, _) in zip(ranks, parts, strict=True)})
        return self._rollouts


class RolloutPool:
    """Samples with published versions of the weights; see ``burnish.rollout.pipelined.AsyncRolloutWorker``."""

    def __init__(
        self,
        workers: ActorGroup,
        weight_sync: WeightSync,
        options: RayOptions,
        *,
        needed: Callable[[int], bool],
        add_phases: Callable[[dict[str, float], dict[str, list[Span]]], None],
        stop: Callable[[], bool],
        numbers: PromptNumbers,
    ) -> None:
        """Take over the workers of a pool.

        Args:
            workers: each a ``RolloutActor``.
            weight_sync: to them.
            options: of the cluster.
            needed: whether anything will be sampled by the weights of a version.
            add_phases: gets the seconds by phase of every batch, as the slowest worker had them, and spans of each.
            stop: whether to cancel a batch that the run does nothing but wait for.
            numbers: of the prompts.
        """
        self.workers, self.weight_sync, self.options = workers, weight_sync, options
        self._needed, self.add_phases, self._stop, self.numbers = needed, add_phases, stop, numbers
        self._states = [WorkerState() for _ in range(len(workers))]
        self._lock = threading.RLock()
        self._synced = False  # whether workers have got all weights once
        self._versions = range(0)  # that may be asked for
        self._failed: Exception | None = None  # why workers are not replaced any more

    def generate(self, request: RolloutRequest) -> Rollouts:
        """Samples of the weights that were published last.

        Raises:
            Cancelled: the run is to stop.
        """
        pending, deadline = self.submit(request), time.monotonic() + self.options.call_timeout
        for order in pending.orders:
            while not order.call.wait(POLL):
                if self._stop():
                    raise Cancelled
        try:
            return pending.result(deadline - time.monotonic())
        except TimeoutError as error:
            limit = self.options.call_timeout
            raise WorkerTimeout(f"timed out after {limit:g} s (ray.call_timeout): {error}") from error

    def submit(self, request: RolloutRequest) -> PendingRollouts:
        """Start with it, after what was submitted before.

        Raises:
            WorkerTimeout, RestartLimit, Unschedulable: a worker is not there any more.
        """
        with self._lock:
            if self._failed is not None:
                raise self._failed
            if request.version not in self._versions:  # by a thread that does not know yet of ``reset``
                raise RuntimeError(f"weights v{request.version} are no longer published")
            parts = split(self.numbers.numbered(request), len(self._states))
            orders = [Order(part, rank) for rank, part in enumerate(parts)]
            for order in orders:
                self._states[order.rank].orders.append(order)
                try:
                    self._send(order)
                except WorkerDied as error:
                    self._replace(order.rank, error)
            for rank in range(len(orders), len(self._states)):  # nothing for them: their second buffer is needed again
                if self._states[rank].spare == request.version:
                    self._ready(rank, request.version)
                    self.workers.submit_one(rank, "receiver.switch", request.version)
        return PendingRollouts(self, orders)

    def sync_weights(self, version: int) -> dict[str, float]:
        """Bring the weights that the trainers hold to all workers, beside what they do: seconds by phase.

        Weights that nobody will sample with are not sent. A worker has one second buffer: those before have to be in
        use, by samples that are asked for already, or about to be.

        Raises:
            Mismatch: a worker does not hold what was sent.
            WorkerTimeout, RestartLimit, Unschedulable: a worker is not there in time, or not any more.
        """
        seconds: dict[str, float] = {}
        if self._needed(version):
            seconds = self._fill_spares(version)
        with self._lock:
            self._versions = range(self._versions.start if self._versions else version, version + 1)
        return seconds

    def _fill_spares(self, version: int) -> dict[str, float]:
        """Fill every worker's second buffer, those of fresh ones included: seconds by phase."""
        full = not self._synced
        while True:
            before = self._replaced()
            try:
                seconds = self.weight_sync.send(version, full=full)
            except Exception as error:
                self._recover(error, before)
            else:
                with self._lock:
                    if before == self._replaced():
                        self._synced = True
                        for state in self._states:
                            state.spare = version
                        return seconds
            full = True

    def _replaced(self) -> list[int]:
        with self._lock:
            return [state.replaced for state in self._states]

    def _recover(self, error: Exception, before: list[int]) -> None:
        """Replace the worker that a weight sync failed for, unless a thread that waits for it has done so meanwhile.

        Raises:
            Exception: the same, where no worker was lost.
        """
        deadline = time.monotonic() + LOST
        while isinstance(error, Broken) and before == self._replaced() and time.monotonic() < deadline:
            for rank in self.workers.dead():
                error = WorkerDied(self.workers.name, rank, str(error))
                break
            else:
                time.sleep(POLL)
        with self._lock:
            if before != self._replaced():
                return
            if not isinstance(error, WorkerDied):
                raise error
            self._replace(error.rank, error)

    def close(self) -> None:
        """Replace no worker any more: they are ended next."""
        with self._lock:
            self._failed = RuntimeError("the run has ended")

    def reset(self) -> None:
        """Forget what was asked for: the trainers go on from an earlier point. What is under way leads nowhere."""
        with self._lock:
            self._states = [WorkerState() for _ in self._states]
            self._versions = range(0)

    def finished(self, order: Order, deadline: float) -> tuple[RolloutResult, ray.ObjectRef[Any]]:
        """Wait for an order: its result, and a reference to its trace.

        Raises:
            TimeoutError: it is not finished by then.
            Mismatch, WorkerTimeout, RestartLimit, Unschedulable: see ``sync_weights``.
        """
        while True:
            call = order.call
            try:
                while not call.wait(max(0.0, min(POLL, deadline - time.monotonic()))):
                    if time.monotonic() >= deadline:
                        raise TimeoutError(
                            f"worker {order.rank} of pool {self.workers.name} has not finished "
                            f"{len(order.request)} samples; check its log"
                        )
                result: RolloutResult = call.result()
            except (WorkerDied, WorkerTimeout) as error:
                if isinstance(error, WorkerTimeout):
                    if error.pool != self.workers.name:
                        raise
                    # it hangs: another one begins anew
                    deadline = max(deadline, time.monotonic() + self.options.call_timeout)
                    error = WorkerDied(self.workers.name, order.rank, str(error))
                with self._lock:
                    if order not in self._states[order.rank].orders:
                        raise error  # it was forgotten meanwhile
                    if order.call is call:  # else somebody has replaced the worker meanwhile
                        self._replace(order.rank, error)
                continue
            with self._lock:
                with contextlib.suppress(ValueError):  # it was forgotten meanwhile
                    self._states[order.rank].orders.remove(order)
            return result, call.kept[order.rank]

    def _send(self, order: Order) -> None:
        self._ready(order.rank, order.request.version)
        order.call = self.workers.submit_one(order.rank, "generate", order.request, keep=True)

    def _ready(self, rank: int, version: int) -> None:
        """See that a worker has the weights of a version for its next order, which switches to them."""
        state = self._states[rank]
        if state.version == version:
            return
        if state.spare != version:
            self.weight_sync.send(version, full=True, to=[rank])
        state.version, state.spare = version, None

    def _replace(self, rank: int, error: WorkerDied) -> None:
        """Replace a worker, and give the new one its orders again.

        Raises:
            WorkerDied: the same, where it is about another pool.
        """
        with self._lock:
            state = self._states[rank]
            while True:
                if error.pool != self.workers.name:
                    raise error
                if self._failed is not None:
                    raise self._failed
                log.warning("%s; it is replaced, and samples again what was not finished", error)
                state.version = state.spare = None
                state.replaced += 1
                try:
                    self.workers.restart(rank)
                except (WorkerTimeout, RestartLimit, Unschedulable) as end:
                    self._failed = end
                    raise
                try:
                    for order in state.orders:
                        self._send(order)
                    return
                except WorkerDied as again:
                    error = again
