"""Weights of a version on their way from those who train to those who sample: the part of each side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor
from torch import distributed as dist

from burnish.runtime.channel import Channel, place_of
from burnish.runtime.hand_over import handed_over
from burnish.runtime.weight_sources import Source, buckets
from burnish.runtime.weight_stream import ALIGNMENT, Checksum, Entry, Fingerprint, Layout, Mismatch, Reader, unsigned
from burnish.training.rendezvous import open_store, reach_store
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
    """One of the ranks that train. All of them add their shards to every bucket; rank 0 sends it.

    While one bucket is sent, the next one is gathered: a rank holds a few buckets, and never the model.
    """

    def __init__(
        self, weights: Callable[[bool], Mapping[str, Tensor]], *, rank: int, bucket_mb: float, versions: int = 1
    ) -> None:
        """Take over the weights.

        Args:
            weights: gives what is to be sent now, by names that receivers know, in the same order on every rank; all
                of it if asked, else what training has changed. Sharded tensors are gathered by all ranks.
            rank: of this process among those that train.
            bucket_mb: MiB that travel at a time.
            versions: newest versions that can be sent again, to replace a receiver that is not at the newest one.
        """
        self._weights, self._rank, self._versions = weights, rank, versions
        self._kept: dict[int, dict[str, Source]] = {}
        self._bucket = bucket_bytes(bucket_mb)
        self._store: dist.Store | None = None  # where the channel's members find each other
        self._channel: Channel | None = None
        self._stream: torch.cuda.Stream | None = None  # of what is sent

    def layout(self, full: bool) -> Layout:
        """Which weights are there to send."""
        return Layout.of(self._weights(full))

    def place(self) -> str:
        """The GPU that the weights are on; empty for a CPU."""
        return place_of(next(iter(self._weights(True).values())).device)

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

    def abort(self) -> None:
        """End a broadcast that waits for a receiver in vain; it is called beside that broadcast."""
        channel = self._channel
        if channel is not None:
            channel.abort()

    def to_store(self, version: int, full: bool, types: Mapping[str, str]) -> WeightPayload | None:
        """Put the weights into the object store; None on other ranks than 0. Arguments as for ``broadcast``."""
        there: list[ray.ObjectRef[Any]] = []
        payload = self._send(version, full, types, lambda bucket: there.append(ray.put(bucket.cpu().numpy())))
        return payload and replace(payload, buckets=there)

    def broadcast(self, version: int, full: bool, types: Mapping[str, str]) -> WeightPayload | None:
        """Send the weights through the channel; None on other ranks than 0.

        A receiver that dies breaks the channel. The payload says so, and nothing is raised: the other ranks wait for
        this one while they gather, and training has to survive it.

        Args:
            version: of the weights.
            full: send what is never trained, too.
            types: of the receivers' tensors by name; what is sent has these.
        """
        broken = ""

        def send(bucket: Tensor) -> None:
            nonlocal broken
            if broken:
                return
            assert self._channel is not None, "no channel was joined"
            try:
                self._channel.broadcast(bucket.to(self._channel.device))
            except RuntimeError as error:  # of torch.distributed, which has none of its own for this
                broken, self._channel = str(error) or repr(error), None

        payload = self._send(version, full, types, send)
        return payload and replace(payload, broken=broken)

    def _send(
        self, version: int, full: bool, types: Mapping[str, str], send: Callable[[Tensor], None]
    ) -> WeightPayload | None:
        """Gather the weights on all ranks; on rank 0, send them in buckets, and say what they were."""
        weights = self._weights(full)
        layout, watch, sending = Layout.of(weights).cast(types), Stopwatch(), Stopwatch()
        sources = self._sources(version, weights, layout)
        checksums = {
            entry.name: Checksum(sources[entry.name].elements.device) for entry in layout.entries
        } if not self._rank else {}  # fmt: skip

        def gathered() -> Iterator[tuple[Tensor, Callable[[], AbstractContextManager[Any]]]]:
            stream = buckets(sources, layout, self._bucket, rank=self._rank)
            while True:
                with watch("gather"):
                    found = next(stream, None)
                if found is None:
                    return
                bucket, parts = found
                with watch("check"):
                    for entry, content in parts:
                        checksums[entry.name].add(content)
                yield bucket, self._ready(bucket)

        def timed(item: tuple[Tensor, Callable[[], AbstractContextManager[Any]]]) -> None:
            bucket, ready = item
            with sending("transfer"), ready():
                send(bucket)

        handed_over(gathered(), timed)
        if self._rank:
            return None
        with watch("check"):
            values = _numbers(checksums, layout.entries)
        return WeightPayload(Fingerprint(version, layout.entries, values), watch.drain() | sending.drain())

    def _ready(self, bucket: Tensor) -> Callable[[], AbstractContextManager[Any]]:
        """For the thread that sends: makes a context that begins when a bucket is filled, beside what fills others."""
        if bucket.device.type != "cuda":
            return nullcontext
        if self._stream is None:
            self._stream = torch.cuda.Stream(bucket.device)
        stream, filled = self._stream, torch.cuda.Event()
        filled.record(torch.cuda.current_stream(bucket.device))

        def beside() -> AbstractContextManager[Any]:
            stream.wait_event(filled)
            return torch.cuda.stream(stream)

        return beside

    def _sources(self, version: int, weights: Mapping[str, Tensor], layout: Layout) -> dict[str, Source]:
        """The weights of a version: the present ones if it is new, else as they were when it was."""
        present = {name: Source.of(value) for name, value in weights.items()}
        if self._versions == 1:
            return present
        if version in self._kept:
            return present | self._kept[version]
        assert not self._kept or version > max(self._kept), f"v{version} is no longer kept"
        types = {entry.name: entry.torch_dtype for entry in layout.entries}
        self._kept[version] = {name: present[name].copied(types[name]) for name in self._weights(False)}
        for old in sorted(self._kept)[: -self._versions]:
            del self._kept[old]
        return present


def bucket_bytes(mebibytes: float) -> int:
    """Bytes of a bucket, which cuts no number in two."""
    return max(ALIGNMENT, int(mebibytes * 2**20) // ALIGNMENT * ALIGNMENT)


def _numbers(checksums: Mapping[str, Checksum], entries: tuple[Entry, ...]) -> tuple[int, ...]:
    """Values of checksums; those on a GPU are copied together, so that it is waited for once."""
    values = [checksums[entry.name].value for entry in entries]
    by_device: dict[torch.device, list[int]] = {}
    for place, value in enumerate(values):
        by_device.setdefault(value.device, []).append(place)
    found = [0] * len(values)
    for places in by_device.values():
        for place, number in zip(places, torch.stack([values[one] for one in places]).tolist(), strict=True):
            found[place] = unsigned(number)
    return tuple(found)


class Receiver:
    """One who samples. New weights fill a second buffer, next to sampling, until the switch is asked for.

    Where another engine samples, the network itself is that buffer: what is switched is the engine.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], *, bucket_mb: float, engine: Callable[[int], None] | None = None
    ) -> None:
        """Take over the weights.

        Args:
            weights: the network's own tensors; the first weight sync has to bring them all, later ones some.
            bucket_mb: MiB that travel at a time.
            engine: has an engine that samples in place of the network take the network's weights over, as a version.
        """
        self._weights, self._own, self._engine = dict(weights), Layout.of(weights), engine
        self._bucket = bucket_bytes(bucket_mb)
        self._channel: Channel | None = None
        self._device = next((value.device for value in weights.values()), torch.device("cpu"))
        # of its own, or what arrives would wait for all that the sampler has asked of the GPU
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._spare: dict[str, Tensor] = {}
        self._held: Fingerprint | None = None  # what the second buffer holds
        self.version: int | None = None  # what the network holds; None before the first switch
        self.digest = ""

    def layout(self) -> Layout:
        """The network's weights, in the types that they arrive in."""
        return self._own

    def place(self) -> str:
        """The GPU that the weights are on; empty for a CPU."""
        return place_of(self._device)

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

        def received() -> Iterator[Tensor]:
            for start in range(0, layout.size, self._bucket):
                with self._beside():
                    size = min(self._bucket, layout.size - start)
                    bucket = torch.empty(size, dtype=torch.uint8, device=channel.device)
                    channel.broadcast(bucket)
                yield bucket

        return self._fill(layout, version, received())

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
        if self._engine is not None:
            self._engine(version)
        else:
            taken = {entry.name: self._weights[entry.name] for entry in expected.entries}
            with torch.no_grad():
                for name, tensor in taken.items():
                    tensor.copy_(self._spare[name])
            expected.check(Fingerprint.of(taken, version), "the network that samples")
        self.version, self.digest = version, expected.digest
        return self.digest

    def _beside(self) -> AbstractContextManager[Any]:
        """Work on the GPU in this context goes on beside what the sampler does there."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _fill(self, layout: Layout, version: int, arriving: Iterator[Tensor]) -> WeightAck:
        self._held, watch, receiving = None, Stopwatch(), Stopwatch()
        layout.check(self._own, version, full=self.version is None)
        with watch("load"), self._beside():  # or its memory might still be in use on the sampler's stream
            target = self._buffers(layout)
        reader = Reader(target)

        def timed() -> Iterator[Tensor]:
            while True:
                with receiving("transfer"):
                    bucket = next(arriving, None)
                if bucket is None:
                    return
                yield bucket

        def take(bucket: Tensor) -> None:
            with watch("load"), self._beside():
                reader.take(bucket)

        handed_over(timed(), take)
        if reader.left:
            raise Mismatch(f"weight sync v{version}: stream truncated, {reader.left} bytes missing")
        with watch("check"), self._beside():
            self._held = Fingerprint.of(target, version)
        return WeightAck(self._held, watch.drain() | receiving.drain())

    def _buffers(self, layout: Layout) -> dict[str, Tensor]:
        """What arriving weights are put into."""
        if self._engine is not None:
            return {entry.name: self._weights[entry.name].detach() for entry in layout.entries}
        if Layout.of(self._spare) != layout:
            self._spare = {}
            self._spare = layout.empty(self._weights)
        return self._spare
