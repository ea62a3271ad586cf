"""Weights in buckets, and checksums that notice any byte."""

import pytest
import torch

from burnish.runtime import weight_stream as module
from burnish.runtime.weight_sources import Source, buckets
from burnish.runtime.weight_stream import Checksum, Fingerprint, Layout, Mismatch, Reader, checksum, unsigned


def some(**changed) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = {
        "a": torch.randn(7, 5, generator=generator),
        "b": torch.randn(33, generator=generator).to(torch.bfloat16),
        "none": torch.zeros(0, 4),
        "c": torch.arange(11, dtype=torch.uint8),
        "d": torch.randn(4, 6, generator=generator).T,
    }
    return found | changed


def streamed(sent: dict, layout: Layout, size: int) -> tuple[list[torch.Tensor], dict[str, int]]:
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


def test_weights_travel_in_the_receivers_types():
    sent = some()
    layout = Layout.of(sent).cast({"a": "bfloat16", "b": "float32", "c": "float32"})
    assert [entry.dtype for entry in layout.entries] == ["bfloat16", "float32", "float32", "uint8", "float32"]
    room = layout.empty(sent)
    reader = Reader(room)
    for bucket in streamed(sent, layout, 48)[0]:
        reader.take(bucket)
    assert torch.equal(room["a"], sent["a"].bfloat16())
    assert torch.equal(room["b"], sent["b"].float())
    assert torch.equal(room["c"], sent["c"])


@pytest.mark.parametrize("words", [4, 1 << 20])
def test_every_single_bit_changes_the_checksum(words, monkeypatch):
    monkeypatch.setattr(module, "WORDS", words)
    module._places.cache_clear()
    content = torch.randint(0, 256, (85,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    sums = {checksum(content)}
    for place in range(len(content)):
        for bit in range(8):
            other = content.clone()
            other[place] ^= 1 << bit
            sums.add(checksum(other))
    module._places.cache_clear()
    assert len(sums) == 85 * 8 + 1


def test_a_checksum_sees_order_and_nothing_of_strides():
    one = torch.arange(16.0).view(4, 4)
    assert checksum(one) == checksum(one.T.contiguous().T)
    assert checksum(one) != checksum(one.T)
    assert checksum(one) != checksum(one.flip(0))
    assert checksum(torch.zeros(0)) == checksum(torch.zeros(5)) == 0
    assert checksum(torch.cat([torch.zeros(1), one.flatten()])[1:]) == checksum(one)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"b": torch.zeros(33, dtype=torch.bfloat16)}, "weight sync v3: tensor b (bfloat16 [33]) differs"),
        ({"a": torch.zeros(5, 7)}, "the trainer has a (float32 [7, 5]) where a test has a (float32 [5, 7])"),
        ({"z": torch.zeros(1)}, "the trainer has 5 tensors, a test has 6"),
    ],
)
def test_the_first_tensor_that_differs_is_named(changed, words):
    with pytest.raises(Mismatch) as caught:
        Fingerprint.of(some(), 3).check(Fingerprint.of(some(**changed), 3), "a test")
    assert words in str(caught.value)
    assert Fingerprint.of(some(), 3).digest != Fingerprint.of(some(**changed), 3).digest


def test_another_version_is_a_difference():
    with pytest.raises(Mismatch, match="weight sync v3: a test has v2"):
        Fingerprint.of(some(), 3).check(Fingerprint.of(some(), 2), "a test")


@pytest.mark.parametrize(
    ("sent", "full", "words"),
    [
        (some(new=torch.zeros(2)), False, "brings new (float32 [2]), but the receiver has no such tensor"),
        (some(a=torch.zeros(2)), False, "brings a (float32 [2]), but the receiver has a (float32 [7, 5])"),
        (some(c=torch.zeros(11)), False, "brings c (float32 [11]), but the receiver has c (uint8 [11])"),
        ({"a": some()["a"]}, True, "it lacks b (bfloat16 [33]) and 3 more"),
    ],
)
def test_weights_that_do_not_fit_are_refused(sent, full, words):
    with pytest.raises(Mismatch) as caught:
        Layout.of(sent).check(Layout.of(some()), 1, full=full)
    assert words in str(caught.value)


def test_a_part_of_the_weights_fits_when_it_may():
    Layout.of({"c": some()["c"]}).check(Layout.of(some()), 1, full=False)
