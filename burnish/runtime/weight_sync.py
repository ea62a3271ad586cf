"""The driver's part of a weight sync: it starts it, waits for it, and compares what both sides hold."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from burnish.language.vllm.apart.burnish_vllm.channel import device_for
from burnish.language.vllm.apart.burnish_vllm.shared import Entry
from burnish.runtime.actor_group import ActorGroup
from burnish.runtime.calls import WorkerDied, WorkerTimeout, all_done
from burnish.runtime.weights import Mismatch, Transfer

ABORT = 30.0  # seconds that the sender may take to give up


class Broken(RuntimeError):
    """A broadcast failed; most often somebody who took part in it is dead, which may not be known yet."""


class WeightSync:
    """From workers that have a ``Sender`` as ``sender`` to workers that have a ``Receiver`` as ``receiver``.

    A version comes into the receivers' second buffers, beside what they do.
    """

    def __init__(self, trainers: ActorGroup, samplers: ActorGroup, seconds: float) -> None:
        """Args: ``seconds`` that joining, and each broadcast, may take."""
        self.trainers, self.samplers, self.seconds = trainers, samplers, seconds
        self._one_at_a_time = threading.Lock()
        self._joined: object = None  # restarts of both sides and the receivers, when the channel was opened
        self._types: object = None  # of the receivers' tensors by name: weights travel in these

    def send(self, version: int, *, full: bool, to: Sequence[int] | None = None) -> dict[str, float]:
        """Bring a version to receivers: seconds of gather, transfer, load and check.

        Args:
            version: what the trainers hold now, or one before that they have kept.
            full: send what is never trained, too: a fresh receiver needs all.
            to: the receivers; None is all.

        Raises:
            Mismatch: a receiver does not hold what was sent; the message names the first tensor that differs.
            WorkerDied, WorkerTimeout: a worker is lost or too slow. When a receiver died, replace it and send again.
            Broken: the same, where it is not known who died.
        """
        receivers = range(len(self.samplers)) if to is None else to
        with self._one_at_a_time:
            if self._types is None:
                self._types = self.samplers.submit_one(receivers[0], "receiver.types", beside=True).result()
            entries: list[Entry] = self.trainers.submit("sender.entries", full, self._types).results()[0]
            sent, received = self._broadcast(version, entries, receivers)
        for rank, transfer in zip(receivers, received, strict=True):
            for entry, one, other in zip(entries, sent.checksums, transfer.checksums, strict=True):
                if one != other:
                    raise Mismatch(
                        f"weight sync v{version}: tensor {entry} differs between the trainer and worker {rank} of pool "
                        f"{self.samplers.name}: checksums {one:#x} and {other:#x}"
                    )
        sides = [sent.seconds, *(transfer.seconds for transfer in received)]  # at once, so the slowest counts
        return {phase: max(side.get(phase, 0.0) for side in sides) for phase in ("gather", "transfer", "load", "check")}

    def _broadcast(
        self, version: int, entries: list[Entry], receivers: Sequence[int]
    ) -> tuple[Transfer, list[Transfer]]:
        members = self.trainers.restarts, self.samplers.restarts, receivers
        if self._joined != members:
            self._rendezvous(receivers)
            self._joined = members
        receiving = [
            self.samplers.submit_one(rank, "receiver.receive", version, entries, beside=True) for rank in receivers
        ]
        sending = self.trainers.submit("sender.broadcast", version, entries)
        try:
            all_done([*receiving, sending])
        except BaseException as error:
            self._joined = None
            self._abort()
            if type(error) is RuntimeError:  # of torch.distributed, which has none of its own for this
                raise Broken(f"weight sync v{version}: not received: {error}") from error
            raise
        sent: Transfer = sending.results()[0]
        if sent.broken:
            self._joined = None
            raise Broken(f"weight sync v{version}: not sent: {sent.broken}")
        return sent, [call.result() for call in receiving]

    def _abort(self) -> None:
        """Have the sender give up, or it would wait for a receiver that is dead until the deadline."""
        if self.trainers.ended is None:
            with suppress(WorkerDied, WorkerTimeout, RuntimeError):
                self.trainers.submit_one(0, "sender.abort", beside=True, seconds=ABORT).result()

    def _rendezvous(self, receivers: Sequence[int]) -> None:
        """Open a channel. Its members come from all sides at once, each waiting for the others."""
        for rank in self.samplers.dead():  # the trainer would wait for it
            raise WorkerDied(self.samplers.name, rank, "it died before a channel to it was opened")
        seconds, size = self.seconds, 1 + len(receivers)
        places = [self.trainers.submit_one(0, "sender.place")]
        places += [self.samplers.submit_one(rank, "receiver.place", beside=True) for rank in receivers]
        device = device_for([call.result() for call in places])
        address = self.trainers.address
        port = self.trainers.submit_one(0, "sender.rendezvous", address, seconds).result()
        joining = [self.trainers.submit_one(0, "sender.join", size, device, seconds)]
        joining += [
            self.samplers.submit_one(rank, "receiver.join", address, port, place, size, device, seconds, beside=True)
            for place, rank in enumerate(receivers, start=1)
        ]
        all_done(joining)
