"""The rollout pool as one rollout_worker: work is shared out, and what a worker that died left undone is done again.

Every worker gets its orders in a row: switch to a version, sample with it, switch to the next one. So an order needs
no answer to the one before it, and a worker that is replaced gets all orders that were not carried out once more.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import ray

from burnish.options.ray import RayOptions
from burnish.rollout.requests import RolloutRequest, join, split
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.calls import LOOK, Call
from burnish.runtime.faults import RestartLimit, Unschedulable, WorkerDied, WorkerTimeout
from burnish.runtime.rollout_result import RolloutResult, slowest
from burnish.runtime.weight_sync import Broken, WeightSyncs
from burnish.types.rollout import Rollouts
from burnish.utils.errors import Cancelled

log = logging.getLogger(__name__)

LOST = 60.0  # seconds after which Ray knows of a machine that does not answer


@dataclass(eq=False)
class Order:
    """Samples that one worker makes."""

    asked: RolloutRequest
    rank: int
    call: Call | None = None  # the last time that it was asked for
    switch: Call | None = None  # to the version that it needs, if the worker had another one


@dataclass(eq=False)
class WorkerState:
    """What the driver knows of a worker."""

    version: int | None = None  # of the weights that it has after all of its orders
    spare: int | None = None  # of those in its second buffer
    switch: Call | None = None  # the last one, and to which version
    switched_to: int = -1
    orders: list[Order] = field(default_factory=list)  # not finished yet, in a row
    replaced: int = 0  # how often


class Making:
    """A batch that is in the making: the orders of its parts."""

    def __init__(self, samplers: RolloutPool, orders: list[Order]) -> None:
        self.samplers, self.orders = samplers, orders
        self.seconds = 0.0  # of the slowest part
        self._rollouts: Rollouts | None = None

    def result(self, timeout: float) -> Rollouts:
        """The whole batch, with pointers as its traces; see ``burnish.rollout.asynchronous.Handle``."""
        if self._rollouts is None:
            deadline = time.monotonic() + timeout
            found = [self.samplers.finished(order, deadline) for order in self.orders]
            self.seconds = max(made.seconds for made, _ in found)
            self._rollouts = join([rollouts for _, rollouts in found])
            self.samplers.told([made for made, _ in found])
        return self._rollouts


class RolloutPool:
    """Makes samples with published versions of the weights; see ``burnish.rollout.asynchronous.AsyncRolloutWorker``."""

    def __init__(
        self,
        workers: ActorGroup,
        publications: WeightSyncs,
        options: RayOptions,
        *,
        needed: Callable[[int], bool],
        phases: Callable[[dict[str, float]], None],
        stop: Callable[[], bool],
    ) -> None:
        """Take over the workers of a pool.

        Args:
            workers: each a ``RolloutActor``.
            publications: to them.
            options: of the cluster.
            needed: whether anything will be sampled by the weights of a version.
            phases: is told the seconds by phase of every batch, as the slowest worker had them.
            stop: whether to give up a batch that the run does nothing but wait for.
        """
        self.workers, self.publications, self.options = workers, publications, options
        self._needed, self._phases, self._stop = needed, phases, stop
        self._seats = [WorkerState() for _ in range(len(workers))]
        self._changed = threading.Condition(threading.RLock())
        self._begun = False  # whether the first publication was made
        self._versions = range(0)  # that may be asked for
        self._beyond_help: Exception | None = None  # why a worker could not be replaced

    def make(self, asked: RolloutRequest) -> Rollouts:
        """Samples of the weights that were published last.

        Raises:
            Cancelled: the run is to stop.
        """
        making, deadline = self.submit(asked), time.monotonic() + self.options.call_timeout
        for order in making.orders:
            while not self._there(order, LOOK):
                if self._stop():
                    raise Cancelled
        try:
            return making.result(deadline - time.monotonic())
        except TimeoutError as error:
            raise WorkerTimeout(f"{error} in ray.call_timeout={self.options.call_timeout:g} seconds") from error

    def submit(self, asked: RolloutRequest) -> Making:
        """Start with it, after what was submitted before.

        Raises:
            Late, RestartLimit, Unschedulable: a worker is not there any more.
        """
        with self._changed:
            if self._beyond_help is not None:
                raise self._beyond_help
            if asked.version not in self._versions:  # by a thread that does not know yet of ``reset``
                raise RuntimeError(f"version {asked.version} of the weights is published no more")
            orders = [Order(part, rank) for rank, part in enumerate(split(asked, len(self._seats)))]
            for order in orders:
                self._seats[order.rank].orders.append(order)
                self._send(order)
            for rank in range(len(orders), len(self._seats)):  # nothing for them: their spare place is needed again
                if self._seats[rank].spare == asked.version:
                    self._ready(rank, asked.version)
            self._changed.notify_all()
        return Making(self, orders)

    def publish(self, version: int) -> dict[str, float]:
        """Bring the weights that the trainers hold to all workers, beside what they do: seconds by phase.

        Weights that nobody will sample with are not sent. Those before have to be in use, since there is one spare
        place for weights: what is asked of the workers after that is in the making already, or just about to be.

        Raises:
            Mismatch: a worker does not hold what was sent.
            Late, RestartLimit, Unschedulable: a worker is not there in time, or not any more.
        """
        seconds: dict[str, float] = {}
        if self._needed(version):
            self._await_spares(version)
            seconds = self._brought(version)
        with self._changed:
            self._versions = range(self._versions.start if self._versions else version, version + 1)
        return seconds

    def _brought(self, version: int) -> dict[str, float]:
        """Fill every worker's spare place, those of fresh ones included: seconds by phase."""
        whole = not self._begun
        while True:
            before = self._replaced()
            try:
                seconds = self.publications.finish(self.publications.begin(version, whole=whole))
            except Exception as error:
                self._mend(error, before)
            else:
                with self._changed:
                    if before == self._replaced():
                        self._begun = True
                        for seat in self._seats:
                            seat.spare = version
                        return seconds
            whole = True

    def _replaced(self) -> list[int]:
        with self._changed:
            return [seat.replaced for seat in self._seats]

    def _mend(self, error: Exception, before: list[int]) -> None:
        """Replace the worker that a publication failed for, unless a thread that waits for it has done so meanwhile.

        Raises:
            Exception: the same, where no worker was lost.
        """
        deadline = time.monotonic() + LOST
        while isinstance(error, Broken) and before == self._replaced() and time.monotonic() < deadline:
            for rank in self.workers.dead():
                error = WorkerDied(self.workers.name, rank, str(error))
                break
            else:
                time.sleep(LOOK)
        with self._changed:
            if before != self._replaced():
                return
            if not isinstance(error, WorkerDied) or error.pool != self.workers.name:
                raise error
            self._replace(error.rank, error)

    def reset(self) -> None:
        """Forget what was asked for: the trainers go on from an earlier point. What is under way leads nowhere."""
        with self._changed:
            self._seats = [WorkerState() for _ in self._seats]
            self._versions = range(0)

    def finished(self, order: Order, deadline: float) -> tuple[RolloutResult, Rollouts]:
        """Wait for an order.

        Raises:
            TimeoutError: it is not finished by then.
            Mismatch, Late, RestartLimit, Unschedulable: see ``publish``.
        """
        while True:
            call = order.call
            try:
                assert call is not None, "it was not sent"
                self._await(order, deadline)
                if order.switch is not None:
                    self.publications.switched(order.switch, order.asked.version)
                made: RolloutResult = call.result()
            except WorkerDied as error:
                with self._changed:
                    if order not in self._seats[order.rank].orders:
                        raise  # it was forgotten meanwhile
                    if order.call is call:  # else somebody has replaced the worker meanwhile
                        self._replace(order.rank, error)
                continue
            with self._changed:
                seat = self._seats[order.rank]
                if order in seat.orders:
                    seat.orders.remove(order)
            return made, made.with_trace(call.kept[order.rank])

    def told(self, parts: list[RolloutResult]) -> None:
        """Pass on how long the parts of a batch took."""
        self._phases(slowest(parts))

    def _await(self, order: Order, deadline: float) -> None:
        while not self._there(order, max(0.0, min(LOOK, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"worker {order.rank} of pool {self.workers.name} has not finished {len(order.asked)} samples"
                )

    @staticmethod
    def _there(order: Order, seconds: float) -> bool:
        """Whether an order is finished, has failed or is late; waits so long for it."""
        assert order.call is not None, "it was not sent"
        (reference,) = order.call.answers.values()
        return bool(ray.wait([reference], timeout=seconds)[0]) or not order.call.left

    def _await_spares(self, version: int) -> None:
        limit = self.options.call_timeout

        def free() -> bool:
            return all(seat.spare is None or not self._needed(seat.spare) for seat in self._seats)

        with self._changed:
            if not self._changed.wait_for(free, limit):
                raise WorkerTimeout(
                    f"version {version} of the weights waited longer than ray.call_timeout={limit:g} seconds for the "
                    "one before it to be used"
                )
            last = [(seat.switch, seat.switched_to) for seat in self._seats]
        for switch, to in last:
            if switch is not None:
                with contextlib.suppress(WorkerDied):  # which the publication finds out, too
                    self.publications.switched(switch, to)

    def _send(self, order: Order) -> None:
        try:
            order.switch = self._ready(order.rank, order.asked.version)
            order.call = self.workers.submit_one(order.rank, "make", order.asked, keep=True)
        except WorkerDied as error:
            if error.pool != self.workers.name:
                raise
            self._replace(order.rank, error)

    def _ready(self, rank: int, version: int) -> Call | None:
        """Have a worker sample with a version from its next order on: the call that makes it, if one is needed."""
        seat = self._seats[rank]
        if seat.version == version:
            return None
        switch = None
        if seat.spare == version:
            switch = seat.switch = self.publications.switch(rank, version)
            seat.switched_to = version
        else:
            self.publications.send_to(rank, version)
        seat.version, seat.spare = version, None
        return switch

    def _replace(self, rank: int, error: WorkerDied) -> None:
        """Start a worker anew, and give it its orders again."""
        with self._changed:
            seat = self._seats[rank]
            while True:
                if self._beyond_help is not None:
                    raise self._beyond_help
                log.warning("%s; it is replaced, and samples again what was not finished", error)
                seat.version = seat.spare = seat.switch = None
                seat.replaced += 1
                try:
                    self.workers.restart(rank)
                except (WorkerTimeout, RestartLimit, Unschedulable) as end:
                    self._beyond_help = end
                    raise
                try:
                    for order in seat.orders:
                        order.switch = self._ready(rank, order.asked.version)
                        order.call = self.workers.submit_one(rank, "make", order.asked, keep=True)
                    return
                except WorkerDied as again:
                    if again.pool != self.workers.name:
                        raise
                    error = again
