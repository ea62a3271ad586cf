"""Weights of a version on their way from those who train to those who sample: the part of each side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor
from torch import distributed as dist

from burnish.runtime.channel import Channel
from burnish.runtime.weight_stream import Fingerprint, Layout, Mismatch, Reader, Writer, checksum
from burnish.training.rendezvous import open_store, reach_store
from burnish.training.sharding import CpuCopy, full_weight
from burnish.utils.timer import Stopwatch


@dataclass(frozen=True)
class WeightPayload:
    """What the sender knows when it has sent."""

    fingerprint: Fingerprint
    seconds: dict[str, float]  # gather, transfer, check
    buckets: list[ray.ObjectRef[Any]] = field(default_factory=list)  # uint8 arrays; none where they were broadcast
    broken: str = ""  # why not all was broadcast


@dataclass(frozen=True)
class WeightAck:
    """What a receiver holds in its second buffer."""

    fingerprint: Fingerprint
    seconds: dict[str, float]  # transfer, load, check


class Sender:
    """One of the ranks that train. All of them gather what is sharded; rank 0 sends."""

    def __init__(
        self, weights: Callable[[bool], Mapping[str, Tensor]], *, rank: int, bucket_mb: float, versions: int = 1
    ) -> None:
        """Take over the weights.

        Args:
            weights: gives what is to be sent now, by names that receivers know, in the same order on every rank; all
                of it if asked, else what training has changed. Sharded tensors are gathered one after another, by all
                ranks.
            rank: of this process among those that train.
            bucket_mb: MiB that travel at a time.
            versions: newest versions that can be sent again, to replace a receiver that is not at the newest one.
        """
        self._weights, self._rank, self._versions = weights, rank, versions
        self._kept: dict[int, dict[str, CpuCopy]] = {}
        self._bucket = max(8, int(bucket_mb * 2**20))
        self._store: dist.Store | None = None  # where the channel's members find each other
        self._channel: Channel | None = None

    def layout(self, full: bool) -> Layout:
        """Which weights are sent."""
        return Layout.of(self._weights(full))

    def rendezvous(self, address: str, seconds: float) -> int:
        """Open a store at this machine's address, where the members of a new channel find each other: its port."""
        store = open_store(address, 0, seconds)
        self._store = store
        return int(store.port)

    def join(self, size: int, device: str, seconds: float) -> None:
        """Join the channel with the receivers."""
        assert self._store is not None, "no rendezvous was opened"
        if self._channel is not None:
            self._channel.close()
        self._channel = Channel(self._store, 0, size, device=device, seconds=seconds)

    def to_store(self, version: int, full: bool) -> WeightPayload | None:
        """Put the weights into the object store; None on other ranks than 0."""
        buckets: list[ray.ObjectRef[Any]] = []
        payload = self._send(version, full, "cpu", lambda bucket: buckets.append(ray.put(bucket.numpy())))
        return payload and replace(payload, buckets=buckets)

    def broadcast(self, version: int, full: bool) -> WeightPayload | None:
        """Send the weights through the channel; None on other ranks than 0.

        A receiver that dies breaks the channel. The payload says so, and nothing is raised: the other ranks wait for
        this one while they gather, and training has to survive it.
        """
        broken = ""

        def send(bucket: Tensor) -> None:
            nonlocal broken
            if broken:
                return
            assert self._channel is not None, "no channel was joined"
            try:
                self._channel.broadcast(bucket)
            except RuntimeError as error:  # of torch.distributed, which has none of its own for this
                broken, self._channel = str(error) or repr(error), None

        payload = self._send(version, full, "cpu" if self._channel is None else self._channel.device, send)
        return payload and replace(payload, broken=broken)

    def _send(
        self, version: int, full: bool, device: torch.device | str, send: Callable[[Tensor], None]
    ) -> WeightPayload | None:
        """Gather the weights on all ranks; on rank 0, send them in buckets, and say what they were."""
        weights, watch, checksums = self._weights_of(version, full), Stopwatch(), []
        writer = Writer(self._bucket, device)

        def sent(buckets: Iterator[Tensor]) -> None:
            for bucket in buckets:
                with watch("transfer"):
                    send(bucket)

        for value in weights.values():
            with watch("gather"):
                tensor = full_weight(value.detach())
            if self._rank == 0:
                with watch("check"):
                    checksums.append(checksum(tensor))
                sent(writer.add(tensor))
        if self._rank:
            return None
        sent(writer.rest())
        return WeightPayload(Fingerprint(version, Layout.of(weights).entries, tuple(checksums)), watch.drain())

    def _weights_of(self, version: int, full: bool) -> Mapping[str, Tensor]:
        """The weights of a version: the present ones if it is new, else as they were when it was."""
        present = self._weights(full)
        if self._versions == 1:
            return present
        if version not in self._kept:
            assert not self._kept or version > max(self._kept), f"v{version} is no longer kept"
            self._kept[version] = {name: CpuCopy(value) for name, value in self._weights(False).items()}
            for old in sorted(self._kept)[: -self._versions]:
                del self._kept[old]
        return dict(present) | {name: kept.restored() for name, kept in self._kept[version].items()}


class Receiver:
    """One who samples. New weights fill a second buffer, next to sampling, until the switch is asked for."""

    def __init__(self, weights: Mapping[str, Tensor], *, bucket_mb: float) -> None:
        """Take over the weights.

        Args:
            weights: the network's own tensors; the first weight sync has to bring them all, later ones some.
            bucket_mb: MiB that travel at a time.
        """
        self._weights, self._own = dict(weights), Layout.of(weights)
        self._bucket = max(8, int(bucket_mb * 2**20))
        self._channel: Channel | None = None
        self._spare: dict[str, Tensor] = {}
        self._held: Fingerprint | None = None  # what the second buffer holds
        self.version: int | None = None  # what the network holds; None before the first switch
        self.digest = ""

    def join(self, address: str, port: int, rank: int, size: int, device: str, seconds: float) -> None:
        """Join the channel with the sender and the other receivers."""
        if self._channel is not None:
            self._channel.close()
        store = reach_store(address, port, seconds)
        self._channel = Channel(store, rank, size, device=device, seconds=seconds)

    def from_store(self, payload: WeightPayload, seconds: float) -> WeightAck:
        """Fill the second buffer from the object store.

        Raises:
            Mismatch: the weights do not fit.
            ray.exceptions.GetTimeoutError, ray.exceptions.ObjectLostError: a bucket does not come.
        """
        arrays = (ray.get(bucket, timeout=seconds) for bucket in payload.buckets)
        # copies: what lies in the store can't be written to, and torch knows no such tensors
        buckets = (torch.from_numpy(np.array(array)) for array in arrays)
        return self._fill(Layout(payload.fingerprint.entries), payload.fingerprint.version, buckets)

    def from_broadcast(self, version: int, layout: Layout) -> WeightAck:
        """Fill the second buffer from the channel.

        Raises:
            Mismatch: see ``from_store``.
            RuntimeError: the sender is gone, or too slow.
        """
        channel = self._channel
        assert channel is not None, "no channel was joined"

        def buckets() -> Iterator[Tensor]:
            for start in range(0, layout.size, self._bucket):
                size = min(self._bucket, layout.size - start)
                bucket = torch.empty(size, dtype=torch.uint8, device=channel.device)
                channel.broadcast(bucket)
                yield bucket

        return self._fill(layout, version, buckets())

    def switch(self, version: int) -> str:
        """Sample with the second buffer's weights from now on: the digest of what the network holds.

        The version that the network holds already is no switch: trainers that resume from a checkpoint publish it
        again, and it may have been asked for before they were lost, too.

        Raises:
            Mismatch: the second buffer holds another version, or the network did not take the weights over.
        """
        if self._held is None and self.version == version:
            return self.digest
        if self._held is None or self._held.version != version:
            there = "nothing" if self._held is None else f"v{self._held.version}"
            raise Mismatch(f"weight sync v{version}: asked to switch, but the second buffer holds {there}")
        expected, self._held = self._held, None
        taken = {entry.name: self._weights[entry.name] for entry in expected.entries}
        with torch.no_grad():
            for name, tensor in taken.items():
                tensor.copy_(self._spare[name])
        expected.check(Fingerprint.of(taken, version), "the network that samples")
        self.version, self.digest = version, expected.digest
        return self.digest

    def _fill(self, layout: Layout, version: int, buckets: Iterator[Tensor]) -> WeightAck:
        self._held, watch = None, Stopwatch()
        layout.check(self._own, version, full=self.version is None)
        with watch("load"):
            if Layout.of(self._spare) != layout:
                self._spare = layout.empty(self._weights)
        reader = Reader(self._spare)
        while True:
            with watch("transfer"):
                bucket = next(buckets, None)
            if bucket is None:
                break
            with watch("load"):
                reader.take(bucket)
        if reader.left:
            raise Mismatch(f"weight sync v{version}: stream truncated, {reader.left} bytes missing")
        with watch("check"):
            self._held = Fingerprint.of(self._spare, version)
        return WeightAck(self._held, watch.drain())
