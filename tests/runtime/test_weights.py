"""Weights on their way from trainers to samplers: buckets, checksums that notice any byte, and both sides of a sync."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from burnish.language.vllm.apart.burnish_vllm import shared
from burnish.language.vllm.apart.burnish_vllm.shared import buckets, checksum, entries_of
from burnish.runtime.weights import Mismatch, Receiver, Sender, room
from burnish.training.sharding import mesh_of
from tests.support.rank_runs import together

BUCKET = 100  # bytes
LIMIT = 30.0  # seconds
Weights = dict[str, torch.Tensor]


@pytest.mark.parametrize("size", [8, 104, 10_000])
def test_weights_come_out_of_buckets_as_they_went_in(size):
    draw = torch.Generator().manual_seed(0)
    sent = {
        "a": torch.randn(7, 5, generator=draw),
        "b": torch.randn(33, generator=draw).to(torch.bfloat16),
        "none": torch.zeros(0, 4),
        "c": torch.arange(11, dtype=torch.uint8),
        "d": torch.randn(4, 6, generator=draw).T,
        "number": torch.tensor(3.0),
    }
    found = list(buckets(entries_of(sent), size))
    assert [entry for bucket in found for entry in bucket] == entries_of(sent)
    for bucket in found:
        content, views = room(bucket, torch.device("cpu"))
        assert len(content) <= size or len(bucket) == 1
        for entry, view in zip(bucket, views, strict=True):
            view.copy_(sent[entry.name])
        for entry, view in zip(bucket, views, strict=True):
            assert torch.equal(view, sent[entry.name])
            assert checksum(view) == checksum(sent[entry.name])


@pytest.mark.parametrize("words", [4, 1 << 20])
def test_every_single_bit_changes_the_checksum(words, monkeypatch):
    monkeypatch.setattr(shared, "WORDS", words)
    shared._places.cache_clear()
    content = torch.randint(0, 256, (85,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    sums = {int(checksum(content))}
    for place in range(len(content)):
        for bit in range(8):
            other = content.clone()
            other[place] ^= 1 << bit
            sums.add(int(checksum(other)))
    shared._places.cache_clear()
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
        self.sender = Sender(lambda full: self.now, rank=0, bucket=BUCKET)


@pytest.fixture
def joined() -> Iterator[Any]:
    """A trainer and two receivers on one channel; each member joins in a thread."""
    trainer, held = Trainer(), [weights(0) for _ in range(2)]
    receivers = [Receiver(own, bucket=BUCKET) for own in held]
    with ThreadPoolExecutor(3) as pool:
        port = trainer.sender.rendezvous("127.0.0.1", LIMIT)
        came = [pool.submit(trainer.sender.join, 3, "cpu", LIMIT)]
        came += [pool.submit(one.join, "127.0.0.1", port, 1 + i, 3, "cpu", LIMIT) for i, one in enumerate(receivers)]
        for member in came:
            member.result(LIMIT)

        def publish(version: int) -> tuple[Any, list[Any]]:
            entries = trainer.sender.entries(True, receivers[0].types())
            received = [pool.submit(one.receive, version, entries) for one in receivers]
            sent = pool.submit(trainer.sender.broadcast, version, entries)
            return sent.result(LIMIT), [one.result(LIMIT) for one in received]

        yield trainer, receivers, held, publish


def test_a_broadcast_fills_the_second_buffer_and_a_switch_takes_it_over(joined):
    trainer, receivers, held, publish = joined
    sent, received = publish(4)
    assert not torch.distributed.is_initialized(), "the default group is left alone"
    assert [one.checksums for one in received] == [sent.checksums] * 2
    assert sent.checksums == [int(checksum(tensor)) for tensor in trainer.now.values()]
    assert sent.seconds.keys() == {"gather", "check", "transfer"}
    assert received[0].seconds.keys() == {"transfer", "load", "check"}
    for receiver, own in zip(receivers, held, strict=True):
        assert equal(own, weights(0))  # sampling goes on with these
        assert receiver.version is None
        receiver.switch(4)
        assert equal(own, weights(1))
        assert receiver.version == 4
    trainer.now = adapter(2)  # later ones may bring the adapter alone
    publish(5)
    receivers[0].switch(5)
    assert equal(held[0], weights(1) | adapter(2))
    assert equal(held[1], weights(1))


def test_what_does_not_fit_or_did_not_come_is_named():
    receiver = Receiver(weights(0), bucket=BUCKET)
    receiver._channel = SimpleNamespace(seconds=LIMIT)
    with pytest.raises(Mismatch, match="there are vNone and vNone"):
        receiver.switch(1)
    for sent, said in (
        (adapter(2), r"first sync must bring all weights.*base\.weight"),
        (weights(1) | {"lora.a": torch.zeros(3, 6)}, r"brings lora\.a \(float32 \[3, 6\]\), but the receiver has"),
        ({"other": torch.zeros(3)}, "no such tensor"),
    ):
        with pytest.raises(Mismatch, match=said):
            receiver.receive(1, entries_of(sent))


def uneven(version: int) -> Weights:
    draw = torch.Generator().manual_seed(version)
    shapes = {"embed": (5, 3), "row": (1, 7), "bias": (9,), "block": (8, 2, 3)}
    found = {name: torch.randn(*shape, generator=draw) for name, shape in shapes.items()}
    return found | {"scale": torch.tensor(float(version))}


def publish(ranks: Any, folder: Path) -> dict[str, Any]:
    """Two versions, the second in another precision, then the first one again: what rank 0 sends."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = mesh_of(ranks, None, "cpu")
    sender = Sender(lambda full: now, rank=ranks.rank, bucket=40, versions=2)
    lower, found = dict.fromkeys(uneven(1), torch.bfloat16), {}
    for name, version, types in (("first", 1, {}), ("second", 2, lower), ("again", 1, {})):
        given = uneven(2 if name == "again" else version)
        now = {name: distribute_tensor(v, mesh, [Shard(0)]) if v.ndim else v for name, v in given.items()}
        sent: list[torch.Tensor] = []
        sender._send = lambda content, sent=sent: sent.append(content) or ""
        entries = sender.entries(True, types)
        transfer = sender.broadcast(version, entries)
        if ranks.rank:
            assert transfer is None
            continue
        found[name] = {}
        for bucket, content in zip(buckets(entries, 40), sent, strict=False):
            room_, views = room(bucket, torch.device("cpu"))
            room_.copy_(content)
            found[name] |= {entry.name: view for entry, view in zip(bucket, views, strict=True)}
        assert transfer.checksums == [int(checksum(one)) for one in found[name].values()]
    return found


@pytest.mark.cluster
def test_shards_arrive_as_full_weights_and_older_ones_again(tmp_path):
    first, _ = together(publish, tmp_path, deadline=120)
    for name, version in (("first", 1), ("second", 2), ("again", 1)):
        for key, expected in uneven(version).items():
            value = first[name][key]
            assert torch.equal(value, expected.to(value.dtype)), (name, key)
    assert first["second"]["embed"].dtype == torch.bfloat16
