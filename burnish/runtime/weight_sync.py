"""The driver's part of a weight sync: it starts it, waits for it, and compares what both sides hold."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ray.exceptions import GetTimeoutError, ObjectLostError

from burnish.options.ray import WeightSyncOptions
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.calls import Call, all_done
from burnish.runtime.faults import WorkerDied, WorkerTimeout
from burnish.runtime.weight_stream import Mismatch
from burnish.runtime.weight_transfer import WeightAck, WeightPayload

log = logging.getLogger(__name__)

OPTION = "ray.publication.timeout"
REMEMBERED = 1000  # versions whose hashes are kept
STORED = 2  # buckets up to which carrier=auto takes the object store


class Broken(RuntimeError):
    """A broadcast failed; most often somebody who took part in it is dead, which may not be known yet."""


@dataclass
class WeightTransfer:
    """A weight sync that is under way."""

    version: int
    sent: Call
    received: Call | None  # over the store it begins when all was sent


class WeightSyncs:
    """From workers that have a ``Sender`` as ``sender`` to workers that have a ``Receiver`` as ``receiver``.

    ``begin`` and ``finish`` bring a version into the receivers' second buffers, beside what they do; ``switch`` makes
    them sample with it, after what they do.
    """

    def __init__(self, trainers: ActorGroup, samplers: ActorGroup, options: WeightSyncOptions) -> None:
        self.trainers, self.samplers, self.options = trainers, samplers, options
        self._joined: tuple[int, int] | None = None  # restarts of both sides when the channel was opened
        self._digests: dict[int, str] = {}

    def begin(self, version: int, *, full: bool) -> WeightTransfer:
        """Start to publish what the trainers hold now; they must not train before it is sent.

        Args:
            version: of it.
            full: send what is never trained, too: a fresh receiver needs all.
        """
        if self._transport(full) == "store":
            return WeightTransfer(version, self._ask(self.trainers, "sender.to_store", version, full), None)
        if self._joined != (self.trainers.restarts, self.samplers.restarts):
            self._rendezvous()
        received = self._ask(self.samplers, "receiver.from_broadcast", version, beside=True)
        return WeightTransfer(version, self._ask(self.trainers, "sender.broadcast", version, full), received)

    def finish(self, transfer: WeightTransfer) -> dict[str, float]:
        """Wait until every receiver holds the version: seconds of gather, transfer, load and check.

        Raises:
            Mismatch: a receiver does not hold what was sent; the message names the first tensor that differs.
            WorkerDied, WorkerTimeout: a worker is lost or too slow. When a receiver died, replace it and begin again.
            Broken: the same, where it is not known who died.
        """
        if transfer.received is not None:
            try:
                all_done([transfer.received, transfer.sent])
            except BaseException as error:
                self._joined = None
                if type(error) is RuntimeError:  # of torch.distributed, which has none of its own for this
                    raise Broken(f"weight sync v{transfer.version}: not received: {error}") from error
                raise
        payload = self._sent(transfer)
        if payload.broken:
            self._joined = None
            raise Broken(f"weight sync v{transfer.version}: not sent: {payload.broken}")
        if transfer.received is None:
            left = transfer.sent.left
            transfer.received = self._ask(
                self.samplers, "receiver.from_store", payload, left, beside=True, seconds=max(left, 1.0)
            )
        acks: list[WeightAck] = self._results(transfer.received)
        for rank, ack in enumerate(acks):
            self._compare(rank, transfer.version, ack.version, payload.fingerprint.digest, ack.digest)
        self._digests[transfer.version] = payload.fingerprint.digest
        self._digests.pop(transfer.version - REMEMBERED, None)
        return combined(payload, acks)

    def send_to(self, rank: int, version: int) -> None:
        """Give one receiver all weights of a version that the trainers know, by the object store, and switch it."""
        payload = self._sent(WeightTransfer(version, self._ask(self.trainers, "sender.to_store", version, True), None))
        seconds = self.options.timeout
        self.samplers.submit_one(
            rank, "receiver.from_store", payload, seconds, beside=True, seconds=seconds, option=OPTION
        ).result()
        found = self.samplers.submit_one(rank, "receiver.switch", version, seconds=seconds, option=OPTION).result()
        self._compare(rank, version, version, payload.fingerprint.digest, found)

    def switch(self, rank: int, version: int) -> Call:
        """Make a receiver sample with a version that it holds, after what it is doing; see ``switched``."""
        return self.samplers.submit_one(rank, "receiver.switch", version)

    def switched(self, call: Call, version: int) -> None:
        """Wait for a switch.

        Raises:
            Mismatch: the receiver holds something else.
        """
        (rank,) = call.responses
        self._compare(rank, version, version, self._digests[version], call.result())

    def _transport(self, full: bool) -> str:
        if self.options.carrier != "auto":
            return self.options.carrier
        size = self._ask(self.trainers, "sender.size", full).results()[0]
        return "store" if size <= STORED * self.options.bucket_mb * 2**20 else "broadcast"

    def _rendezvous(self) -> None:
        """Open a channel. Its members come from all sides at once, each waiting for the others."""
        for rank in self.samplers.dead():  # the trainer would wait for it
            raise WorkerDied(self.samplers.name, rank, "it died before a channel to it was opened")
        seconds, size = self.options.timeout, 1 + len(self.samplers)
        devices = {group.pool.need.device for group in (self.trainers, self.samplers)}
        device = "cuda" if devices == {"cuda"} else "cpu"
        address = self.trainers.address
        port = self.trainers.submit_one(
            0, "sender.rendezvous", address, seconds, seconds=seconds, option=OPTION
        ).result()
        rows = [(address, port, 1 + rank, size, device, seconds) for rank in range(len(self.samplers))]
        came = [
            self.samplers.submit_each("receiver.join", rows, beside=True, seconds=seconds, option=OPTION),
            self.trainers.submit_one(0, "sender.join", size, device, seconds, seconds=seconds, option=OPTION),
        ]
        all_done(came)
        self._joined = (self.trainers.restarts, self.samplers.restarts)

    def _sent(self, transfer: WeightTransfer) -> WeightPayload:
        payload: WeightPayload = transfer.sent.results()[0]
        return payload

    def _results(self, call: Call) -> list[WeightAck]:
        try:
            return call.results()
        except GetTimeoutError as error:
            raise WorkerTimeout(f"timed out ({OPTION}) waiting for weights from the object store: {error}") from error
        except ObjectLostError as error:
            raise WorkerDied(self.trainers.name, 0, f"the weights that it sent are gone: {error}") from error

    def _ask(
        self, group: ActorGroup, method: str, *arguments: object, beside: bool = False, seconds: float | None = None
    ) -> Call:
        limit = self.options.timeout if seconds is None else seconds
        return group.submit(method, *arguments, beside=beside, seconds=limit, option=OPTION)

    def _compare(self, rank: int, version: int, found: int, digest: str, other: str) -> None:
        if (version, digest) != (found, other):
            raise Mismatch(
                f"weight sync v{version}: worker {rank} of pool {self.samplers.name} has v{found} with hash {other}, "
                f"but the trainer sent hash {digest}"
            )


def combined(payload: WeightPayload, acks: Sequence[WeightAck]) -> dict[str, float]:
    """Seconds by phase: of each the slowest, since all sides work at once."""
    sides = [payload.seconds, *(ack.seconds for ack in acks)]
    return {phase: max(side.get(phase, 0.0) for side in sides) for phase in ("gather", "transfer", "load", "check")}
