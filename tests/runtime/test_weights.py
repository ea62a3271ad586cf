"""Weights on their way from trainers to samplers: buckets, checksums that notice any byte, and both sides of a sync."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.checkpoints import Meter
from burnish.runtime import weight_stream, weight_transfer
from burnish.runtime.weight_sources import Source, buckets
from burnish.runtime.weight_stream import Checksum, Fingerprint, Layout, Mismatch, Reader, checksum, unsigned
from burnish.runtime.weight_transfer import Receiver, Sender
from burnish.training.sharding import mesh_of
from tests.support.rank_runs import together

BUCKET = 100 / 2**20  # MiB: 96 bytes, so that tensors and buckets cut each other
LIMIT = 30.0  # seconds
LARGE = 96  # MiB
Weights = dict[str, torch.Tensor]


def some(**changed: torch.Tensor) -> Weights:
    draw = torch.Generator().manual_seed(0)
    found = {
        "a": torch.randn(7, 5, generator=draw),
        "b": torch.randn(33, generator=draw).to(torch.bfloat16),
        "none": torch.zeros(0, 4),
        "c": torch.arange(11, dtype=torch.uint8),
        "d": torch.randn(4, 6, generator=draw).T,
    }
    return found | changed


def streamed(sent: Weights, layout: Layout, size: int) -> tuple[list[torch.Tensor], dict[str, int]]:
    """All buckets, and the checksums of what is in them."""
    found, sums = [], {name: Checksum(torch.device("cpu")) for name in sent}
    for bucket, parts in buckets({name: Source.of(one) for name, one in sent.items()}, layout, size, rank=0):
        found.append(bucket)
        for entry, content in parts:
            sums[entry.name].add(content)
    return found, {name: unsigned(one.value) for name, one in sums.items()}


@pytest.mark.parametrize("size", [8, 16, 64, 104, 10_000])
def test_weights_come_out_of_buckets_as_they_went_in(size):
    sent = some()
    layout = Layout.of(sent)
    found, sums = streamed(sent, layout, size)
    assert [len(bucket) for bucket in found[:-1]] == [size] * (len(found) - 1)
    assert sum(map(len, found)) == layout.size == 7 * 5 * 4 + 4 + 33 * 2 + 6 + 11 + 5 + 24 * 4
    room = layout.empty(sent)
    reader = Reader(room)
    for bucket in found:
        assert reader.left
        reader.take(bucket)
    assert not reader.left
    for name, tensor in sent.items():
        assert torch.equal(tensor, room[name])
        assert sums[name] == checksum(tensor)
    Fingerprint.of(sent, 3).check(Fingerprint.of(room, 3), "a test")


@pytest.mark.parametrize("words", [4, 1 << 20])
def test_every_single_bit_changes_the_checksum(words, monkeypatch):
    monkeypatch.setattr(weight_stream, "WORDS", words)
    weight_stream._places.cache_clear()
    content = torch.randint(0, 256, (85,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    sums = {checksum(content)}
    for place in range(len(content)):
        for bit in range(8):
            other = content.clone()
            other[place] ^= 1 << bit
            sums.add(checksum(other))
    weight_stream._places.cache_clear()
    assert len(sums) == 85 * 8 + 1


def weights(seed: int) -> Weights:
    draw = torch.Generator().manual_seed(seed)
    return {
        "base.weight": torch.randn(20, 7, generator=draw),
        "base.bias": torch.randn(9, generator=draw).to(torch.bfloat16),
        "lora.a": torch.randn(3, 5, generator=draw),
    }


def adapter(seed: int) -> Weights:
    return {name: tensor for name, tensor in weights(seed).items() if name.startswith("lora")}


def equal(one: Weights, other: Weights) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


class Trainer:
    """Weights that change, and their sender."""

    def __init__(self) -> None:
        self.now = weights(1)
        self.sender = Sender(lambda full: self.now, rank=0, bucket_mb=BUCKET)

    def stored(self, version: int) -> Any:
        return self.sender.to_store(version, True, {})


def receiving(own: Weights | None = None, **more: Any) -> Receiver:
    return Receiver(own or weights(0), bucket_mb=BUCKET, **more)


class Store(list):
    """Ray's, in this process: references are places in it."""

    def put(self, array: Any) -> int:
        self.append(array.copy())
        return len(self) - 1

    def get(self, place: int, timeout: float) -> Any:
        return self[place]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(weight_transfer, "ray", kept := Store())
    return kept


@pytest.fixture
def joined() -> Iterator[Any]:
    """A trainer and two receivers on one channel; each member joins in a thread."""
    trainer, receivers = Trainer(), [receiving() for _ in range(2)]
    with ThreadPoolExecutor(3) as pool:
        port = trainer.sender.rendezvous("127.0.0.1", LIMIT)
        came = [pool.submit(trainer.sender.join, 3, "cpu", LIMIT)]
        came += [pool.submit(one.join, "127.0.0.1", port, 1 + i, 3, "cpu", LIMIT) for i, one in enumerate(receivers)]
        for member in came:
            member.result(LIMIT)

        def publish(version: int) -> tuple[Any, list[Any]]:
            received = [pool.submit(one.from_broadcast, version, trainer.sender.layout(True)) for one in receivers]
            sent = pool.submit(trainer.sender.broadcast, version, True, {})
            return sent.result(LIMIT), [one.result(LIMIT) for one in received]

        yield trainer, receivers, publish


def test_a_broadcast_fills_the_second_buffer_and_a_switch_takes_it_over(joined):
    trainer, receivers, publish = joined
    payload, acks = publish(4)
    assert not torch.distributed.is_initialized(), "the default group is left alone"
    assert [ack.fingerprint for ack in acks] == [payload.fingerprint] * 2
    assert payload.fingerprint.version == 4
    assert payload.seconds.keys() == {"gather", "check", "transfer"}
    assert acks[0].seconds.keys() == {"transfer", "load", "check"}
    for receiver in receivers:
        assert equal(receiver._weights, weights(0))  # sampling goes on with these
        assert receiver.version is None
        assert receiver.switch(4) == payload.fingerprint.digest
        assert equal(receiver._weights, weights(1))
        assert receiver.version == 4
    trainer.now = adapter(2)  # later ones may bring the adapter alone
    publish(5)
    receivers[0].switch(5)
    assert equal(receivers[0]._weights, weights(1) | adapter(2))
    assert equal(receivers[1]._weights, weights(1))


def test_what_is_changed_lost_or_not_taken_over_is_found_and_named(store):
    trainer, receiver = Trainer(), receiving()
    payload = trainer.stored(1)
    store[payload.buckets[5]][90] ^= 1  # byte 570: behind the 560 of base.weight
    ack = receiver.from_store(payload, LIMIT)
    with pytest.raises(Mismatch, match=r"weight sync v1: tensor base\.bias \(bfloat16 \[9\]\)"):
        payload.fingerprint.check(ack.fingerprint, "a receiver")
    assert equal(receiver._weights, weights(0))

    receiver, payload = receiving(), trainer.stored(1)
    payload.buckets.pop()
    with pytest.raises(Mismatch, match="72 bytes"):
        receiver.from_store(payload, LIMIT)
    with pytest.raises(Mismatch, match="holds nothing"):
        receiver.switch(1)

    class Deaf(torch.Tensor):
        def copy_(self, *arguments):
            return self

    receiver = receiving(weights(0) | {"lora.a": weights(0)["lora.a"].as_subclass(Deaf)})
    receiver.from_store(trainer.stored(1), LIMIT)
    with pytest.raises(Mismatch, match=r"tensor lora\.a"):
        receiver.switch(1)

    trainer.now = adapter(2)
    with pytest.raises(Mismatch, match=r"first sync must bring all weights.*base\.weight"):
        receiving().from_store(trainer.stored(1), LIMIT)


def uneven(version: int) -> Weights:
    """Weights that two ranks cut unevenly, and not at all."""
    draw = torch.Generator().manual_seed(version)
    shapes = {"embed": (5, 3), "row": (1, 7), "bias": (9,), "block": (8, 2, 3)}
    found = {name: torch.randn(*shape, generator=draw) for name, shape in shapes.items()}
    return found | {"scale": torch.tensor(float(version))}


def publish(ranks: Any, folder: Path) -> dict[str, Any]:
    """Two versions, the second in another precision, then the first one again; and what memory a large one takes."""
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = mesh_of(ranks, None, "cpu")

    def sharded(given: Weights) -> Weights:
        return {name: distribute_tensor(v, mesh, [Shard(0)]) if v.ndim else v for name, v in given.items()}

    store = weight_transfer.ray = Store()
    now = sharded(uneven(1))
    sender = Sender(lambda full: now, rank=ranks.rank, bucket_mb=40 / 2**20, versions=2)
    lower, found = dict.fromkeys(uneven(1), "bfloat16"), {}
    for name, version, types in (("first", 1, {}), ("second", 2, lower), ("again", 1, {})):
        now = sharded(uneven(version)) if name != "again" else now
        payload = sender.to_store(version, True, types)
        if ranks.rank:
            assert payload is None
            continue
        target = {k: torch.zeros_like(v, dtype=torch.bfloat16 if types else None) for k, v in uneven(1).items()}
        receiver = Receiver(target, bucket_mb=40 / 2**20)
        assert receiver.from_store(payload, LIMIT).fingerprint == payload.fingerprint
        assert receiver.switch(version) == payload.fingerprint.digest
        found[name] = target
    rows = torch.ones(LARGE * 1024 // ranks.size, 256)
    large = {"large": DTensor.from_local(rows, mesh, [Shard(0)])}
    store.clear()
    store.put = lambda array: None
    sender = Sender(lambda full: large, rank=ranks.rank, bucket_mb=1)
    meter = Meter()
    sender.to_store(1, True, {"large": "bfloat16"})
    return {"found": found, "above": meter.stop()["above"]}


@pytest.mark.cluster
def test_shards_arrive_as_full_weights_in_a_few_buckets_of_memory(tmp_path):
    first, second = together(publish, tmp_path, deadline=120)
    for name, version in (("first", 1), ("second", 2), ("again", 1)):
        for key, expected in uneven(version).items():
            value = first["found"][name][key]
            assert torch.equal(value, expected.to(value.dtype)), (name, key)
    assert first["found"]["second"]["embed"].dtype == torch.bfloat16
    assert max(first["above"], second["above"]) < 16 < LARGE / 4  # MiB: buckets of 1, and threads
