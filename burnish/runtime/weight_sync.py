"""The driver's part of a weight sync: it starts it, waits for it, and compares what both sides hold."""

from __future__ import annotations

from contextlib import suppress

from ray.exceptions import GetTimeoutError, ObjectLostError

from burnish.options.cluster import WeightSyncOptions
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.calls import Call, all_done
from burnish.runtime.channel import device_for
from burnish.runtime.faults import WorkerDied, WorkerTimeout
from burnish.runtime.weight_stream import Layout, Mismatch
from burnish.runtime.weight_transfer import WeightAck, WeightPayload

OPTION = "weight_sync.timeout"
REMEMBERED = 1000  # versions whose hashes are kept
ABORT = 30.0  # seconds that the sender may take to give up
STORED = 2  # buckets up to which backend=auto takes the object store


class Broken(RuntimeError):
    """A broadcast failed; most often somebody who took part in it is dead, which may not be known yet."""


class WeightSync:
    """From workers that have a ``Sender`` as ``sender`` to workers that have a ``Receiver`` as ``receiver``.

    ``send`` brings a version into the receivers' second buffers, beside what they do; ``switch`` makes them sample
    with it, after what they do.
    """

    def __init__(self, trainers: ActorGroup, samplers: ActorGroup, options: WeightSyncOptions) -> None:
        self.trainers, self.samplers, self.options = trainers, samplers, options
        self._joined: tuple[int, int] | None = None  # restarts of both sides when the channel was opened
        self._digests: dict[int, str] = {}
        self._received: dict[str, str] | None = None  # types of the receivers' tensors

    def send(self, version: int, *, full: bool) -> dict[str, float]:
        """Bring what the trainers hold now to every receiver: seconds of gather, transfer, load and check.

        Args:
            version: of it.
            full: send what is never trained, too: a fresh receiver needs all.

        Raises:
            Mismatch: a receiver does not hold what was sent; the message names the first tensor that differs.
            WorkerDied, WorkerTimeout: a worker is lost or too slow. When a receiver died, replace it and send again.
            Broken: the same, where it is not known who died.
        """
        layout: Layout = self._all(self.trainers, "sender.layout", full).results()[0]
        layout = layout.cast(self._types())
        if self._transport(layout) == "store":
            payload, acks = self._store(version, full)
        else:
            payload, acks = self._broadcast(version, full, layout)
        for rank, ack in enumerate(acks):
            payload.fingerprint.check(ack.fingerprint, self._name(rank))
        self._digests[version] = payload.fingerprint.digest
        self._digests.pop(version - REMEMBERED, None)
        sides = [payload.seconds, *(ack.seconds for ack in acks)]  # all work at once, so the slowest counts
        return {phase: max(side.get(phase, 0.0) for side in sides) for phase in ("gather", "transfer", "load", "check")}

    def _store(self, version: int, full: bool) -> tuple[WeightPayload, list[WeightAck]]:
        sent = self._all(self.trainers, "sender.to_store", version, full, self._types())
        payload = sent.results()[0]
        received = self._all(
            self.samplers, "receiver.from_store", payload, sent.left, beside=True, seconds=max(sent.left, 1.0)
        )
        try:
            return payload, received.results()
        except GetTimeoutError as error:
            raise WorkerTimeout(f"timed out ({OPTION}) waiting for weights from the object store: {error}") from error
        except ObjectLostError as error:
            raise WorkerDied(self.trainers.name, 0, f"the weights that it sent are gone: {error}") from error

    def _broadcast(self, version: int, full: bool, layout: Layout) -> tuple[WeightPayload, list[WeightAck]]:
        if self._joined != (self.trainers.restarts, self.samplers.restarts):
            self._rendezvous()
        received = self._all(self.samplers, "receiver.from_broadcast", version, layout, beside=True)
        sent = self._all(self.trainers, "sender.broadcast", version, full, self._types())
        try:
            all_done([received, sent])
        except BaseException as error:
            self._joined = None
            self._abort()
            if type(error) is RuntimeError:  # of torch.distributed, which has none of its own for this
                raise Broken(f"weight sync v{version}: not received: {error}") from error
            raise
        payload: WeightPayload = sent.results()[0]
        if payload.broken:
            self._joined = None
            raise Broken(f"weight sync v{version}: not sent: {payload.broken}")
        return payload, received.results()

    def send_to(self, rank: int, version: int) -> None:
        """Give one receiver all weights of a version that the trainers know, by the object store, and switch it."""
        payload = self._all(self.trainers, "sender.to_store", version, True, self._types()).results()[0]
        ack = self._one(self.samplers, rank, "receiver.from_store", payload, self.options.timeout, beside=True).result()
        payload.fingerprint.check(ack.fingerprint, self._name(rank))
        self._compare(self.switch(rank, version), version, payload.fingerprint.digest)

    def switch(self, rank: int, version: int) -> Call:
        """Make a receiver sample with a version that it holds, after what it is doing; see ``switched``."""
        return self.samplers.submit_one(rank, "receiver.switch", version)

    def switched(self, call: Call, version: int) -> None:
        """Wait for a switch.

        Raises:
            Mismatch: the receiver holds something else.
        """
        self._compare(call, version, self._digests[version])

    def _types(self) -> dict[str, str]:
        """Types of the receivers' tensors by name: weights travel in these."""
        if self._received is None:
            own: Layout = self._one(self.samplers, 0, "receiver.layout", beside=True).result()
            self._received = {entry.name: entry.dtype for entry in own.entries}
        return self._received

    def _abort(self) -> None:
        """Have the sender give up, or it would wait for a receiver that is dead until the deadline."""
        if self.trainers.ended is None:
            with suppress(WorkerDied, WorkerTimeout, RuntimeError):
                self.trainers.submit_one(0, "sender.abort", beside=True, seconds=ABORT, option=OPTION).result()

    def _transport(self, layout: Layout) -> str:
        if self.options.backend != "auto":
            return self.options.backend
        return "store" if layout.size <= STORED * self.options.bucket_mb * 2**20 else "broadcast"

    def _rendezvous(self) -> None:
        """Open a channel. Its members come from all sides at once, each waiting for the others."""
        for rank in self.samplers.dead():  # the trainer would wait for it
            raise WorkerDied(self.samplers.name, rank, "it died before a channel to it was opened")
        seconds, size = self.options.timeout, 1 + len(self.samplers)
        own = self._one(self.trainers, 0, "sender.place").result()
        device = device_for([own, *self._all(self.samplers, "receiver.place", beside=True).results()])
        address = self.trainers.address
        port = self._one(self.trainers, 0, "sender.rendezvous", address, seconds).result()
        rows = [(address, port, 1 + rank, size, device, seconds) for rank in range(len(self.samplers))]
        joining = self.samplers.submit_each("receiver.join", rows, beside=True, seconds=seconds, option=OPTION)
        all_done([joining, self._one(self.trainers, 0, "sender.join", size, device, seconds)])
        self._joined = (self.trainers.restarts, self.samplers.restarts)

    def _all(
        self, group: ActorGroup, method: str, *arguments: object, beside: bool = False, seconds: float | None = None
    ) -> Call:
        limit = self.options.timeout if seconds is None else seconds
        return group.submit(method, *arguments, beside=beside, seconds=limit, option=OPTION)

    def _one(self, group: ActorGroup, rank: int, method: str, *arguments: object, beside: bool = False) -> Call:
        return group.submit_one(rank, method, *arguments, beside=beside, seconds=self.options.timeout, option=OPTION)

    def _name(self, rank: int) -> str:
        return f"worker {rank} of pool {self.samplers.name}"

    def _compare(self, switch: Call, version: int, digest: str) -> None:
        found = switch.result()
        if found != digest:
            (rank,) = switch.responses
            raise Mismatch(
                f"weight sync v{version}: {self._name(rank)} samples with weights of hash {found}, but the trainer "
                f"sent hash {digest}"
            )
