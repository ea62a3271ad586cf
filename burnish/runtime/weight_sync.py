"""The driver's part of a publication: it starts it, waits for it, and compares what both sides hold."""

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
REMEMBERED = 1000  # versions whose hashes are known
STORED = 2  # buckets that the object store takes without being asked


class Broken(RuntimeError):
    """A broadcast failed; most often somebody who took part in it is dead, which may not be known yet."""


@dataclass
class WeightTransfer:
    """A publication that is under way."""

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
        self._met: tuple[int, int] | None = None  # restarts of both sides when the channel was opened
        self._digests: dict[int, str] = {}

    def begin(self, version: int, *, whole: bool) -> WeightTransfer:
        """Start to publish what the trainers hold now; they must not train before it is sent.

        Args:
            version: of it.
            whole: send what is never trained, too: a fresh receiver needs all.
        """
        if self._carrier(whole) == "store":
            return WeightTransfer(version, self._ask(self.trainers, "sender.to_store", version, whole), None)
        if self._met != (self.trainers.restarts, self.samplers.restarts):
            self._meet()
        received = self._ask(self.samplers, "receiver.from_broadcast", version, beside=True)
        return WeightTransfer(version, self._ask(self.trainers, "sender.broadcast", version, whole), received)

    def finish(self, flight: WeightTransfer) -> dict[str, float]:
        """Wait until every receiver holds the version: seconds of gather, transfer, load and check.

        Raises:
            Mismatch: a receiver does not hold what was sent; the message names the first tensor that differs.
            WorkerDied, Late: a worker did not stand by. When a receiver died, replace it and begin again.
            Broken: the same, where it is not known who died.
        """
        if flight.received is not None:
            try:
                all_done([flight.received, flight.sent])
            except BaseException as error:
                self._met = None
                if type(error) is RuntimeError:  # of torch.distributed, which has none of its own for this
                    raise Broken(f"version {flight.version} of the weights was not received: {error}") from error
                raise
        payload = self._sent(flight)
        if payload.broken:
            self._met = None
            raise Broken(f"version {flight.version} of the weights was not sent: {payload.broken}")
        if flight.received is None:
            left = flight.sent.left
            flight.received = self._ask(
                self.samplers, "receiver.from_store", payload, left, beside=True, seconds=max(left, 1.0)
            )
        receipts: list[WeightAck] = self._results(flight.received)
        for rank, receipt in enumerate(receipts):
            self._compare(rank, flight.version, receipt.version, payload.fingerprint.digest, receipt.digest)
        self._digests[flight.version] = payload.fingerprint.digest
        self._digests.pop(flight.version - REMEMBERED, None)
        return combined(payload, receipts)

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
        (rank,) = call.answers
        self._compare(rank, version, version, self._digests[version], call.result())

    def _carrier(self, whole: bool) -> str:
        if self.options.carrier != "auto":
            return self.options.carrier
        size = self._ask(self.trainers, "sender.size", whole).results()[0]
        return "store" if size <= STORED * self.options.bucket_mb * 2**20 else "broadcast"

    def _meet(self) -> None:
        """Open a channel. Its members come from all sides at once, each waiting for the others."""
        for rank in self.samplers.dead():  # the trainer would wait for it
            raise WorkerDied(self.samplers.name, rank, "it was gone before a channel to it could be opened")
        seconds, size = self.options.timeout, 1 + len(self.samplers)
        devices = {group.pool.need.device for group in (self.trainers, self.samplers)}
        device = "cuda" if devices == {"cuda"} else "cpu"
        address = self.trainers.address
        port = self.trainers.submit_one(0, "sender.meet", address, seconds, seconds=seconds, option=OPTION).result()
        rows = [(address, port, 1 + rank, size, device, seconds) for rank in range(len(self.samplers))]
        came = [
            self.samplers.submit_each("receiver.join", rows, beside=True, seconds=seconds, option=OPTION),
            self.trainers.submit_one(0, "sender.join", size, device, seconds, seconds=seconds, option=OPTION),
        ]
        all_done(came)
        self._met = (self.trainers.restarts, self.samplers.restarts)

    def _sent(self, flight: WeightTransfer) -> WeightPayload:
        payload: WeightPayload = flight.sent.results()[0]
        return payload

    def _results(self, call: Call) -> list[WeightAck]:
        try:
            return call.results()
        except GetTimeoutError as error:
            raise WorkerTimeout(f"weights did not come through the object store in {OPTION}: {error}") from error
        except ObjectLostError as error:
            raise WorkerDied(self.trainers.name, 0, f"what it had published is gone: {error}") from error

    def _ask(
        self, group: ActorGroup, method: str, *arguments: object, beside: bool = False, seconds: float | None = None
    ) -> Call:
        limit = self.options.timeout if seconds is None else seconds
        return group.submit(method, *arguments, beside=beside, seconds=limit, option=OPTION)

    def _compare(self, rank: int, version: int, found: int, digest: str, other: str) -> None:
        if (version, digest) != (found, other):
            raise Mismatch(
                f"worker {rank} of pool {self.samplers.name} holds version {found} of the weights with hash {other}, "
                f"and the trainer published version {version} with hash {digest}"
            )


def combined(payload: WeightPayload, receipts: Sequence[WeightAck]) -> dict[str, float]:
    """Seconds by phase: of each the slowest, since all sides work at once."""
    sides = [payload.seconds, *(receipt.seconds for receipt in receipts)]
    return {phase: max(side.get(phase, 0.0) for side in sides) for phase in ("gather", "transfer", "load", "check")}
