"""Typed batches: cutting and joining lose nothing, and what a prompt's samples share is stored once."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from burnish.types.batch import Batch, Gathered, shared
from burnish.types.columns import Column, Here, at, read
from burnish.types.rollout import Scores, settled, share_of
from burnish.types.samples import DROPS
from tests.support.equality import same


@dataclass(kw_only=True)
class Words(Batch):
    vector: Tensor


@dataclass(kw_only=True)
class ImageBatch(Batch):
    words: Gathered[Words]
    pixels: Tensor
    names: list[str]
    seed: int = shared()


def image_batch(count: int = 6, first: int = 0) -> ImageBatch:
    return ImageBatch(
        words=Gathered(table=Words(vector=torch.arange(6.0).view(3, 2) + first), index=torch.arange(count) % 3),
        pixels=torch.arange(count * 4.0).view(count, 2, 2) + first, names=[f"{first + i}" for i in range(count)],
        seed=4,
    )  # fmt: skip


@pytest.mark.parametrize("size", [1, 4, 6, 9])
def test_split_and_cat_are_inverse_and_the_table_is_not_copied(size):
    whole = image_batch()
    parts = list(whole.split(size))
    assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert 0 < len(parts[-1]) <= size
    assert all(part.words.table is whole.words.table for part in parts)
    joined = ImageBatch.cat(parts)
    same(joined, whole)
    assert joined.words.table is whole.words.table


def test_select_takes_rows_in_the_order_asked_for():
    whole = image_batch()
    for index in ([3, 0, 3], torch.tensor([3, 0, 3])):
        part = whole.select(index)
        assert part.names == ["3", "0", "3"]
        assert torch.equal(part.pixels, whole.pixels[[3, 0, 3]])
        assert torch.equal(part.words.rows().vector, whole.words.rows().vector[[3, 0, 3]])
    same(whole.select(slice(None)), whole)
    none = whole.select([])
    assert (len(none), none.pixels.shape, none.names) == (0, (0, 2, 2), [])
    assert none.words.rows().vector.shape == (0, 2)
    assert list(none.split(3)) == []


def test_joining_tables_keeps_rows_also_where_some_are_one():
    a, b = image_batch(4), image_batch(5, first=100)
    joined = ImageBatch.cat([a, b])
    assert len(joined.words.table) == 6
    rows = torch.cat([part.words.rows().vector for part in (a, b)])
    assert torch.equal(joined.words.rows().vector, rows)


def test_a_batch_moves_with_the_rows_of_its_table_that_are_used():
    moved = image_batch().to("meta")
    assert moved.pixels.device.type == moved.words.index.device.type == moved.words.table.vector.device.type == "meta"
    words = Gathered(table=Words(vector=torch.arange(40.0).view(20, 2)), index=torch.tensor([7, 3, 7]))
    here = words.to("cpu")
    assert here.table is words.table, "what is there already is not copied"
    assert torch.equal(here.rows().vector, words.rows().vector)


class Counted(Here):
    """Rows that remember how many of them were read."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor)
        object.__setattr__(self, "reads", [])

    def take(self, rows):
        self.reads.append(len(rows))
        return super().take(rows)


def test_a_column_is_selected_joined_and_indexed_as_a_tensor_is_and_read_when_it_is_used():
    tensors = [torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    sources = [Counted(tensor) for tensor in tensors]
    column, tensor = Column.cat([Column.of(source) for source in sources]), torch.cat(tensors)
    members = torch.tensor([[7, 0], [2, 2], [9, 1]])
    assert column.shape == tensor.shape
    assert at(column, members).shape == tensor[members].shape
    assert len(column.select([1, 2]).sources) == 1
    assert not any(source.reads for source in sources), "nothing is read before it is used"
    for index in ([3, 8, 0], [4], [], list(range(10))):
        assert torch.equal(column.select(index).values(), tensor[index])
    assert torch.equal(read(at(column, members)), tensor[members])
    assert torch.equal(read(at(at(column, members), torch.tensor([2, 0]), torch.tensor([1, 0]))), tensor[[1, 7]])
    assert torch.equal(read(column.flatten(0, 1)), tensor.flatten(0, 1)), "as of states that a checkpoint holds"
    assert torch.equal(read(column.view(5, 2, 3, 2)), tensor.view(5, 2, 3, 2))
    assert (column.ndim, column.dtype) == (3, torch.float32)
    assert torch.equal(share_of(column.view(10, 3, 2)), tensor.mean((1, 2)))


def test_a_group_is_left_out_with_one_of_its_samples():
    scores = Scores.given([[1.0], [float("nan")], [3.0]], {"it": 1.0})
    scores.ran, scores.notes = [{"it": (0.5, 1)}, {"it": (0.5, 1 | DROPS)}, {"it": (0.5, 1)}], ["a", "b", "c"]
    found, ran = settled(scores, torch.tensor([4, 4, 7]))
    assert found.missing.tolist() == [True, True, False]
    assert (found.notes[0][:23], found.notes[0][-3:], found.notes[1:]) == ("left out with its group", "; a", ["b", "c"])
    assert [row["it"] for row in ran] == [(0.5, 1 | DROPS)] * 2 + [(0.5, 1)]
