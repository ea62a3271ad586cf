"""Weights on their way from those who train to those who sample: the part of each side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from burnish.language.vllm.apart.burnish_vllm.channel import Channel
from burnish.language.vllm.apart.burnish_vllm.shared import (
    Entry,
    buckets,
    checksum,
    entries_of,
    place_of,
    placed,
    tensors,
)
from burnish.metrics import Stopwatch
from burnish.training.ranks import open_store, reach_store
from burnish.training.sharding import local_shard
from burnish.types.batch import is_sharded

BUCKET = 64 << 20  # bytes that travel at a time


class Mismatch(RuntimeError):
    """Weights are not what they should be; the message names the first tensor that differs."""


def check_entries(entries: Sequence[Entry], own: Sequence[Entry], version: int, *, full: bool) -> None:
    """See that weights fit those of a receiver, all of which have to come if ``full``.

    Raises:
        Mismatch: a tensor is unknown, missing, or of another shape or type.
    """
    known = {entry.name: entry for entry in own}
    for entry in entries:
        there = known.pop(entry.name, None)
        if there != entry:
            what = f"has {there}" if there else "has no such tensor"
            raise Mismatch(f"weight sync v{version}: brings {entry}, but the receiver {what}")
    if full and known:
        first, *others = known.values()
        more = f" and {len(others)} more" if others else ""
        raise Mismatch(
            f"weight sync v{version}: a receiver's first sync must bring all weights, but it lacks {first}{more}"
        )


def room(bucket: Sequence[Entry], device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """Memory for a bucket, uint8 [n], and the tensors in it."""
    places, size = placed(bucket)
    content = torch.zeros(size, dtype=torch.uint8, device=device)
    return content, [view for _, view in tensors(content, places)]


def _read(checksums: Sequence[Tensor]) -> list[int]:
    """Values of checksums, for which a GPU is waited for once."""
    return [int(one) for one in torch.stack([one.cpu() for one in checksums]).tolist()] if checksums else []


@dataclass(frozen=True)
class Transfer:
    """What one side knows when weights were sent or received."""

    checksums: list[int]  # of each tensor
    seconds: dict[str, float]  # gather, transfer, load, check
    broken: str = ""  # why not all was sent


class Sender:
    """One of the ranks that train. All of them gather each bucket; rank 0 sends it while the next one is gathered."""

    def __init__(
        self, weights: Callable[[bool], Mapping[str, Tensor]], *, rank: int, versions: int = 1, bucket: int = BUCKET
    ) -> None:
        """Take over the weights.

        Args:
            weights: gives what is to be sent now, by names that receivers know, in the same order on every rank; all
                of it if asked, else what training has changed.
            rank: of this process among those that train.
            versions: newest versions that can be sent again, to replace a receiver that is not at the newest one.
            bucket: bytes that travel at a time.
        """
        self._weights, self._rank, self._versions = weights, rank, versions
        self._kept: dict[int, dict[str, Tensor]] = {}  # by version: this rank's shards of what training changes
        self._bucket = bucket
        self._store: dist.Store | None = None  # where the channel's members find each other
        self._channel: Channel | None = None

    def entries(self, full: bool, types: Mapping[str, torch.dtype]) -> list[Entry]:
        """What there is to send, in the receivers' ``types``; ``full`` adds what is never trained."""
        return entries_of(self._weights(full), types)

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

    def broadcast(self, version: int, entries: Sequence[Entry]) -> Transfer | None:
        """Send the weights of a version through the channel; None on other ranks than 0.

        A receiver that dies breaks the channel. The result says so, and nothing is raised: the other ranks wait for
        this one while they gather, and training has to survive it.
        """
        weights, watch, broken = self._weights(True), Stopwatch(), ""
        checksums: list[Tensor] = []
        kept = self._keep(version, entries) if self._versions > 1 else {}
        for bucket in buckets(entries, self._bucket):
            with watch("gather"):
                whole = [_gathered(weights[entry.name], kept.get(entry.name), entry.dtype) for entry in bucket]
            if self._rank:
                continue
            content, views = room(bucket, whole[0].device)
            with watch("gather"):
                for view, tensor in zip(views, whole, strict=True):
                    view.copy_(tensor)
            with watch("check"):
                checksums += map(checksum, views)
            with watch("transfer"):
                broken = broken or self._send(content)
        if self._rank:
            return None
        with watch("transfer"):
            broken = broken or self._send(None)
        with watch("check"):
            return Transfer(_read(checksums), watch.drain(), broken)

    def _send(self, content: Tensor | None) -> str:
        """Begin to send, after what was begun before; without any content only wait for that: what went wrong."""
        assert self._channel is not None, "no channel was joined"
        try:
            if content is None:
                self._channel.finish()
            else:
                self._channel.broadcast(content.to(self._channel.device))
        except RuntimeError as error:  # of torch.distributed, which has none of its own for this
            self._channel = None
            return str(error) or repr(error)
        return ""

    def _keep(self, version: int, entries: Sequence[Entry]) -> dict[str, Tensor]:
        """This rank's shards of a version in CPU memory: the present ones if it is new."""
        if version not in self._kept:
            assert not self._kept or version > max(self._kept), f"v{version} is no longer kept"
            types = {entry.name: entry.dtype for entry in entries}
            self._kept[version] = {
                name: local_shard(weight.detach()).to(types[name]).to("cpu", copy=True)
                for name, weight in self._weights(False).items()
            }
            for old in sorted(self._kept)[: -self._versions]:
                del self._kept[old]
        return self._kept[version]


def _gathered(weight: Tensor, kept: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A weight of all ranks, or as it was when this rank kept its shard, in a precision."""
    present: Any = weight.detach().to(dtype)
    if kept is not None:
        present = torch.empty_like(present)
        local_shard(present).copy_(kept)
    return present.full_tensor() if is_sharded(present) else present  # type: ignore[no-any-return]


class Receiver:
    """One who samples. New weights fill a second buffer, next to sampling, until the switch is asked for.

    Where another engine samples, the network itself is that buffer: what is switched is the engine.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], *, engine: Callable[[int], None] | None = None, bucket: int = BUCKET
    ) -> None:
        """Take over the weights.

        Args:
            weights: the network's own tensors; the first weight sync has to bring them all, later ones some.
            engine: has an engine that samples in place of the network take the network's weights over, as a version.
            bucket: bytes that travel at a time.
        """
        self._weights, self._engine = {name: weight.detach() for name, weight in weights.items()}, engine
        self._bucket = bucket
        self._channel: Channel | None = None
        self._device = next((value.device for value in weights.values()), torch.device("cpu"))
        # of its own, or what arrives would wait for all that the sampler has asked of the GPU
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._spare: dict[str, Tensor] = {}
        self._held: int | None = None  # the version in the second buffer
        self._switched = threading.Condition()
        self.version: int | None = None  # what the network holds; None before the first switch

    def types(self) -> dict[str, torch.dtype]:
        """The precision that each weight arrives in."""
        return {name: weight.dtype for name, weight in self._weights.items()}

    def place(self) -> str:
        """The GPU that the weights are on; empty for a CPU."""
        return place_of(self._device)

    def join(self, address: str, port: int, rank: int, size: int, device: str, seconds: float) -> None:
        """Join the channel with the sender and the other receivers."""
        if self._channel is not None:
            self._channel.close()
        self._channel = Channel(reach_store(address, port, seconds), rank, size, device=device, seconds=seconds)

    def receive(self, version: int, entries: Sequence[Entry]) -> Transfer:
        """Fill the second buffer from the channel, when what it holds is in use.

        Raises:
            Mismatch: the weights do not fit.
            RuntimeError: the sender is gone, or too slow.
        """
        channel, watch = self._channel, Stopwatch()
        assert channel is not None, "no channel was joined"
        with self._switched:
            # the same version or an earlier one comes after a sync that failed, or from a checkpoint
            if not self._switched.wait_for(lambda: self._held is None or self._held >= version, channel.seconds):
                raise RuntimeError(f"v{self._held} was not sampled with in {channel.seconds:g} s")
            check_entries(entries, entries_of(self._weights), version, full=self.version is None)
            self._held = None
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            target = self._buffers(entries)
            for bucket in buckets(entries, self._bucket):
                content, views = room(bucket, channel.device)
                with watch("transfer"):
                    channel.broadcast(content)
                    channel.finish()
                with watch("load"):
                    for entry, view in zip(bucket, views, strict=True):
                        target[entry.name].copy_(view)
            with watch("check"):
                checksums = _read([checksum(target[entry.name]) for entry in entries])
        with self._switched:
            self._held = version
        return Transfer(checksums, watch.drain())

    def switch(self, version: int) -> None:
        """Sample with a version from now on: the second buffer's, or the one that the network holds already.

        Raises:
            Mismatch: there is none of that version.
        """
        with self._switched:
            if self._held != version:
                if self.version != version:
                    raise Mismatch(
                        f"weight sync v{version}: asked to switch, but there are v{self.version} and v{self._held}"
                    )
                return
            if self._engine is not None:
                self._engine(version)
            else:
                for name, tensor in self._spare.items():
                    self._weights[name].copy_(tensor)
            self.version, self._held = version, None
            self._switched.notify_all()

    def _buffers(self, entries: Sequence[Entry]) -> dict[str, Tensor]:
        """What arriving weights are put into."""
        if self._engine is not None:
            return self._weights
        if self._spare.keys() != {entry.name for entry in entries}:
            self._spare = {}
            self._spare = {entry.name: torch.empty_like(self._weights[entry.name]) for entry in entries}
        return self._spare
