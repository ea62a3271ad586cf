"""Typed batches: cutting and joining lose nothing, and what a prompt's samples share is stored once."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from burnish.types.batch import Batch, Gathered, shared, size_of, to_device
from tests.support.pretend_gpu import PretendGpu


@dataclass(kw_only=True)
class Words(Batch):
    vector: Tensor


@dataclass(kw_only=True)
class Pictures(Batch):
    words: Gathered[Words]
    pixels: Tensor
    names: list[str]
    seed: int = shared()


def pictures(count: int = 6, first: int = 0) -> Pictures:
    return Pictures(
        words=Gathered(table=Words(vector=torch.arange(6.0).view(3, 2) + first), index=torch.arange(count) % 3),
        pixels=torch.arange(count * 4.0).view(count, 2, 2) + first,
        names=[f"{first + i}" for i in range(count)],
        seed=4,
    )


def same(a: Pictures, b: Pictures) -> None:
    assert len(a) == len(b)
    assert torch.equal(a.pixels, b.pixels)
    assert a.names == b.names
    assert a.seed == b.seed
    assert torch.equal(a.words.rows().vector, b.words.rows().vector)


@pytest.mark.parametrize("size", [1, 2, 4, 6, 9])
def test_split_and_cat_are_inverse(size):
    whole = pictures()
    parts = list(whole.split(size))
    assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert 0 < len(parts[-1]) <= size
    same(Pictures.cat(parts), whole)


def test_select_takes_rows_in_the_order_asked_for():
    whole = pictures()
    for index in ([3, 0, 3], torch.tensor([3, 0, 3])):
        part = whole.select(index)
        assert part.names == ["3", "0", "3"]
        assert torch.equal(part.pixels, whole.pixels[[3, 0, 3]])
        assert torch.equal(part.words.rows().vector, whole.words.rows().vector[[3, 0, 3]])
        assert part.seed == 4
    same(whole.select(slice(None)), whole)
    assert whole.select(slice(1, 5, 2)).names == ["1", "3"]
    assert whole.select(slice(-2, None)).names == ["4", "5"]
    assert whole.select(range(0, 6, 3)).names == ["0", "3"]


def test_nothing_can_be_selected():
    none = pictures().select([])
    assert len(none) == 0
    assert none.pixels.shape == (0, 2, 2)
    assert none.names == []
    assert none.words.rows().vector.shape == (0, 2)
    assert list(none.split(3)) == []


def test_cutting_does_not_copy_the_table():
    whole = pictures()
    parts = list(whole.split(2))
    assert all(part.words.table is whole.words.table for part in parts)
    assert Pictures.cat(parts).words.table is whole.words.table


def test_joining_different_tables_keeps_rows():
    a, b = pictures(4), pictures(5, first=100)
    joined = Pictures.cat([a, b])
    assert len(joined.words.table) == 6
    assert torch.equal(joined.words.rows().vector, torch.cat([a.words.rows().vector, b.words.rows().vector]))
    assert joined.names == a.names + b.names


def test_joining_tables_of_which_some_are_one_keeps_rows():
    a, b = pictures(4), pictures(5, first=100)
    parts = [a.select([0, 1]), b, a.select([2, 3])]
    joined = Pictures.cat(parts)
    assert torch.equal(joined.words.rows().vector, torch.cat([part.words.rows().vector for part in parts]))


def test_a_batch_can_be_moved():
    moved = pictures().to("meta")
    assert moved.pixels.device.type == moved.words.index.device.type == moved.words.table.vector.device.type == "meta"
    assert moved.names == pictures().names


def test_only_the_rows_of_a_table_that_are_used_move():
    words = Gathered(table=Words(vector=torch.arange(40.0).view(20, 2)), index=torch.tensor([7, 3, 7]))
    moved = words.to("meta")
    assert moved.table.vector.shape == (2, 2)
    assert moved.index.device.type == "meta"
    here = words.to("cpu")
    assert here.table is words.table, "what is there already is not copied"
    assert torch.equal(here.rows().vector, words.rows().vector)


def test_moved_rows_are_the_same_rows():
    words = Gathered(table=Words(vector=torch.arange(40.0).view(20, 2)), index=torch.tensor([7, 3, 7]))
    used, index = words.index.unique(return_inverse=True)
    some = Gathered(table=words.table.select(used), index=index)
    assert torch.equal(some.rows().vector, words.rows().vector)
    assert size_of(some.table) == 2 * 2 * 4


@pytest.mark.parametrize(("count", "times"), [(2**13, 0), (2**15, 1)])
def test_large_copies_to_a_gpu_go_through_pinned_memory(count, times, monkeypatch):
    value, pinned = torch.arange(float(count)), []
    with PretendGpu() as gpu:
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda one: pinned.append(one.numel()) or one.clone())
        moved = to_device(value, "cuda")
        assert gpu.count("sync") == 0
        assert (moved.cpu() == value).all()
    assert pinned == [count] * times
    assert to_device(value, "cpu") is value
