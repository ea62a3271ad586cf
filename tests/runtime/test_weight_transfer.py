"""Both sides of a publication: over a channel whose members are threads here, and over a store that is a dict."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from burnish.runtime import weight_transfer as publication
from burnish.runtime.weight_stream import Mismatch
from burnish.runtime.weight_transfer import Receiver, Sender

BUCKET = 100 / 2**20  # MiB: 96 bytes, so that tensors and buckets cut each other
LIMIT = 30.0  # seconds
TYPES: dict[str, str] = {}  # the receivers' are the sender's


def weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "base.weight": torch.randn(20, 7, generator=generator),
        "base.bias": torch.randn(9, generator=generator).to(torch.bfloat16),
        "lora.a": torch.randn(3, 5, generator=generator),
    }


def adapter(seed: int) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in weights(seed).items() if name.startswith("lora")}


def equal(one: dict, other: dict) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


class Trainer:
    """Weights that change, and their sender."""

    def __init__(self) -> None:
        self.now = weights(1)
        self.sender = Sender(lambda full: self.now, rank=0, bucket_mb=BUCKET)


@pytest.fixture
def store(monkeypatch) -> list:
    """Ray's store, as a list: references are places in it."""
    kept: list = []
    monkeypatch.setattr(publication.ray, "put", lambda array: kept.append(array.copy()) or len(kept) - 1)
    monkeypatch.setattr(publication.ray, "get", lambda place, timeout: kept[place])
    return kept


@pytest.fixture
def joined():
    """A trainer and two receivers on one channel; each member joins in a thread."""
    trainer = Trainer()
    receivers = [Receiver(weights(0), bucket_mb=BUCKET) for _ in range(2)]
    with ThreadPoolExecutor(3) as pool:
        port = trainer.sender.rendezvous("127.0.0.1", LIMIT)
        came = [pool.submit(trainer.sender.join, 3, "cpu", LIMIT)]
        came += [
            pool.submit(receiver.join, "127.0.0.1", port, 1 + i, 3, "cpu", LIMIT)
            for i, receiver in enumerate(receivers)
        ]
        for one in came:
            one.result(LIMIT)

        def publish(version: int):
            received = [
                pool.submit(receiver.from_broadcast, version, trainer.sender.layout(True)) for receiver in receivers
            ]
            sent = pool.submit(trainer.sender.broadcast, version, True, TYPES)
            return sent.result(LIMIT), [one.result(LIMIT) for one in received]

        yield trainer, receivers, publish


def test_a_broadcast_fills_the_second_buffer_and_a_switch_takes_it_over(joined):
    _, receivers, publish = joined
    payload, acks = publish(4)
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


def test_later_broadcasts_may_bring_the_adapter_alone(joined):
    trainer, receivers, publish = joined
    publish(0)
    for receiver in receivers:
        receiver.switch(0)
    trainer.now = adapter(2)
    publish(1)
    receivers[0].switch(1)
    assert equal(receivers[0]._weights, weights(1) | adapter(2))
    assert equal(receivers[1]._weights, weights(1))


def test_a_channel_leaves_the_default_group_alone(joined):
    assert not torch.distributed.is_initialized()
    joined[2](0)
    assert not torch.distributed.is_initialized()


def test_the_store_brings_the_same(store):
    trainer, receiver = Trainer(), Receiver(weights(0), bucket_mb=BUCKET)
    payload = trainer.sender.to_store(7, True, TYPES)
    assert len(payload.buckets) == len(store) == -(-(20 * 7 * 4 + 24 + 64) // 96)
    assert receiver.from_store(payload, LIMIT).fingerprint == payload.fingerprint
    assert equal(receiver._weights, weights(0))
    receiver.switch(7)
    assert equal(receiver._weights, weights(1))


def test_a_byte_that_differs_is_found_and_its_tensor_named(store):
    trainer, receiver = Trainer(), Receiver(weights(0), bucket_mb=BUCKET)
    payload = trainer.sender.to_store(1, True, TYPES)
    store[payload.buckets[5]][90] ^= 1  # byte 570: behind the 560 of base.weight
    ack = receiver.from_store(payload, LIMIT)
    with pytest.raises(Mismatch, match=r"weight sync v1: tensor base\.bias \(bfloat16 \[9\]\) differs .* a receiver"):
        payload.fingerprint.check(ack.fingerprint, "a receiver")
    assert equal(receiver._weights, weights(0))


def test_a_bucket_that_is_missing_is_found(store):
    receiver, payload = Receiver(weights(0), bucket_mb=BUCKET), Trainer().sender.to_store(1, True, TYPES)
    payload.buckets.pop()
    with pytest.raises(Mismatch, match="stream truncated, 72 bytes missing"):
        receiver.from_store(payload, LIMIT)
    with pytest.raises(Mismatch, match="weight sync v1: asked to switch, but the second buffer holds nothing"):
        receiver.switch(1)


def test_a_network_that_did_not_take_the_weights_over_is_found(store):
    class Deaf(torch.Tensor):
        def copy_(self, *arguments):
            return self

    own = weights(0) | {"lora.a": weights(0)["lora.a"].as_subclass(Deaf)}
    trainer, receiver = Trainer(), Receiver(own, bucket_mb=BUCKET)
    receiver.from_store(trainer.sender.to_store(1, True, TYPES), LIMIT)
    with pytest.raises(Mismatch, match=r"tensor lora\.a .* the network that samples"):
        receiver.switch(1)


def test_where_an_engine_samples_the_network_is_the_second_buffer(store):
    taken = []
    own = weights(0)
    receiver = Receiver(own, bucket_mb=BUCKET, engine=lambda version: taken.append((version, dict(own))))
    payload = Trainer().sender.to_store(7, True, TYPES)
    assert receiver.from_store(payload, LIMIT).fingerprint == payload.fingerprint
    assert not receiver._spare
    assert not taken, "the engine samples on with what it has"
    assert receiver.switch(7) == payload.fingerprint.digest
    assert [version for version, _ in taken] == [7]
    assert equal(own, weights(1))
    assert receiver.switch(7) == payload.fingerprint.digest
    assert len(taken) == 1


def test_only_the_version_that_is_held_can_be_switched_to(store):
    trainer, receiver = Trainer(), Receiver(weights(0), bucket_mb=BUCKET)
    receiver.from_store(trainer.sender.to_store(1, True, TYPES), LIMIT)
    with pytest.raises(Mismatch, match="weight sync v2: asked to switch, but the second buffer holds v1"):
        receiver.switch(2)
    digest = receiver.switch(1)
    with pytest.raises(Mismatch, match="holds nothing"):
        receiver.switch(2)
    assert receiver.switch(1) == digest, "asked for again by trainers that came back, it is there already"
    trainer.now = weights(3)
    receiver.from_store(trainer.sender.to_store(1, True, TYPES), LIMIT)
    assert receiver.switch(1) != digest, "but what was published again is taken over"


def test_the_first_publication_has_to_bring_everything(store):
    trainer, receiver = Trainer(), Receiver(weights(0), bucket_mb=BUCKET)
    trainer.now = adapter(2)
    with pytest.raises(Mismatch, match=r"a receiver's first sync must bring all weights, but it lacks base\.weight"):
        receiver.from_store(trainer.sender.to_store(1, True, TYPES), LIMIT)


def test_other_ranks_than_the_first_send_nothing(store):
    sender = Sender(lambda full: weights(1), rank=1, bucket_mb=BUCKET)
    assert sender.to_store(1, True, TYPES) is None
    assert sender.broadcast(1, True, TYPES) is None
    assert not store


def test_a_receiver_that_waits_alone_gives_up(monkeypatch):
    trainer, receiver = Trainer(), Receiver(weights(0), bucket_mb=BUCKET)
    port = trainer.sender.rendezvous("127.0.0.1", 2.0)
    both = threading.Thread(target=trainer.sender.join, args=(2, "cpu", 2.0))
    both.start()
    receiver.join("127.0.0.1", port, 1, 2, "cpu", 2.0)
    both.join(LIMIT)
    with pytest.raises(RuntimeError):
        receiver.from_broadcast(1, trainer.sender.layout(True))
