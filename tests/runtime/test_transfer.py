"""Batches by reference: what is read is what was stored, bit for bit, and nobody else's."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import ray
import torch
from torch import Tensor

from burnish.runtime.transfer import Pointers, Stored, pack, resolved
from burnish.types.batch import Batch, Gathered, shared
from burnish.types.completion import Completion, Encoded, Features
from burnish.types.prompt import Prompt
from burnish.types.rollout import Embeddings
from tests.support.equality import same

DTYPES = [torch.bool, torch.int64, torch.uint8, torch.float32, torch.float64, torch.bfloat16, torch.float16]


@dataclass(kw_only=True)
class Everything(Batch):
    rows: list[Tensor]
    table: Gathered[Embeddings]
    same: Gathered[Embeddings]
    prompts: list[Prompt]
    features: list[Features]
    wide: Tensor  # [B, N] strided
    empty: Tensor  # [B, 0, 3]
    pictures: list[np.ndarray]
    schedule: Tensor = shared()
    names: tuple[str, ...] = shared()


@dataclass(kw_only=True)
class Outer(Batch):
    number: Tensor  # [B]
    trace: Batch


def everything(count: int = 5, start: int = 0) -> Everything:
    generator = torch.Generator().manual_seed(start)
    tokens, pooled = torch.randn(2, 40, 30, generator=generator), torch.randn(2, 3, generator=generator)
    tables = Embeddings(tokens=tokens, pooled=pooled)
    return Everything(
        rows=[(torch.randn(i + 1, 300, generator=generator) * 9).to(DTYPES[i % len(DTYPES)]) for i in range(count)],
        table=Gathered(table=tables, index=torch.arange(count) % 2),
        same=Gathered(table=tables, index=torch.zeros(count, dtype=torch.long)),
        prompts=[Prompt(text=f"prompt {start + i}") for i in range(count)],
        features=[Features.none() for _ in range(count)],
        wide=torch.randn(2000, count, generator=generator).T,
        empty=torch.zeros(count, 0, 3),
        pictures=[np.full((64, 64, 3), i, dtype=np.uint8) for i in range(count)],
        schedule=torch.tensor([1.0, float("nan"), -0.0]),
        names=("a", "b"),
    )


def test_a_batch_comes_back_bit_for_bit():
    batch = everything(len(DTYPES))
    same(batch, pack(batch).unpack())


def test_tensors_of_every_kind_come_back():
    found = [torch.tensor(3.5), torch.zeros(0), torch.randn(1, 1)[0], torch.randn(70, 70)[::2, 1:], torch.ones(3, 1)]
    found += [torch.ones(3, 1).expand(3, 4000), torch.randn(5000).to(torch.bfloat16)[1:], torch.tensor([True])]
    batch = everything(len(found))
    batch.rows = found
    same(batch, pack(batch).unpack())


def test_what_was_one_stays_one():
    batch = pack(everything()).unpack()
    assert batch.table.table is batch.same.table
    assert len(Gathered.cat([batch.table, batch.same]).table) == 2


def test_long_tensors_travel_outside_the_head():
    packed = pack(everything())
    assert len(packed.head) < 50_000 < sum(map(len, packed.arrays))
    assert sum(array.nbytes for array in packed.heavy) == 2 * 40 * 30 * 4
    assert packed.rows == 5


def test_writing_to_what_was_read_changes_nothing_for_others():
    packed = pack(everything())
    for array in [*packed.arrays, *packed.heavy]:
        array.flags.writeable = False  # as the object store gives them
    before, own = packed.unpack(), packed.unpack()
    own.wide.zero_()
    own.table.table.tokens.values().zero_()
    own.prompts.clear()
    same(before, packed.unpack())


def test_a_completion_with_features_inside_comes_back():
    features = Features({"images": torch.randn(2000, 4), "image_grid": torch.tensor([[1, 40, 50]])}, {"images": 0})
    prompts = Encoded(ids=[torch.arange(5)], positions=[torch.arange(15).view(3, 5)], features=[features])
    assert prompts.lengths == [5]  # cached
    completion = Completion(
        prompts=Gathered(table=prompts, index=torch.zeros(2, dtype=torch.long)),
        ids=torch.tensor([[1, 2], [3, 0]]),
        mask=torch.tensor([[True, True], [True, False]]),
        logprob=torch.tensor([[-0.1, -0.2], [-0.3, 0.0]]),
        positions=torch.zeros(2, 3, 2, dtype=torch.long),
        length=torch.tensor([2, 1]),
        finished=torch.tensor([True, False]),
        features=[features, Features.none()],
    )
    found = pack(completion).unpack()
    same(completion, found)
    assert found.features[0] is found.prompts.table.features[0]


class Here(Stored):
    """A stored batch without a store, which counts how often it is read."""

    def __new__(cls, batch):
        return super().__new__(cls)

    def __init__(self, batch):
        object.__setattr__(self, "reference", ray.ObjectRef.from_random())
        object.__setattr__(self, "rows", len(batch))
        object.__setattr__(self, "packed", pack(batch))
        object.__setattr__(self, "reads", [])

    def read(self, *, seconds):
        self.reads.append(seconds)
        return self.packed.unpack()


def pointers(*batches) -> Pointers:
    return Pointers.cat([Pointers.to_all(Here(batch)) for batch in batches])


def test_pointers_give_the_rows_that_they_point_to_in_their_order():
    parts = [everything(4, 0), everything(3, 4), everything(5, 7)]
    every = Everything.cat(parts)
    pointing = pointers(*parts)
    assert len(pointing) == 12
    for index in [list(range(12)), [11, 0, 5, 5, 2], [4, 5, 6], [6], torch.randperm(12).tolist()]:
        found, expected = pointing.select(index).resolve(seconds=1), every.select(index)
        for name in ("rows", "prompts", "wide", "empty", "pictures", "names"):
            same(getattr(found, name), getattr(expected, name))
        same(found.table.rows(), expected.table.rows())


def test_a_whole_batch_is_given_as_it_is():
    batch = everything()
    same(batch, pointers(batch).resolve(seconds=1))


def test_batches_that_no_row_is_in_are_let_go_and_not_read():
    pointing = pointers(everything(2, 0), everything(2, 2), everything(2, 4)).select([5, 1])
    assert len(pointing.stored) == 2
    assert [prompt.text for prompt in pointing.resolve(seconds=1).prompts] == ["prompt 5", "prompt 1"]
    none = pointing.select([])
    assert (len(none), len(none.stored)) == (0, 1)
    assert len(none.resolve(seconds=1)) == 0


def test_rows_of_one_batch_that_went_several_ways_read_it_once():
    whole = pointers(everything(6))
    joined = Pointers.cat([whole.select([5, 4]), whole.select([0])])
    assert len(joined.stored) == 1
    assert [prompt.text for prompt in joined.resolve(seconds=1).prompts] == ["prompt 5", "prompt 4", "prompt 0"]
    assert len(joined.stored[0].reads) == 1


def test_a_record_that_holds_pointers_is_selected_joined_and_resolved():
    batches = [everything(3, 0), everything(2, 3)]
    outer = Outer.cat([Outer(number=torch.arange(len(b)), trace=pointers(b)) for b in batches]).select([4, 0])
    found = resolved(outer, seconds=1)
    assert found.number.tolist() == [1, 0]
    assert [prompt.text for prompt in found.trace.prompts] == ["prompt 4", "prompt 0"]
    assert resolved(found, seconds=1) is found


def test_a_packed_batch_survives_pickling():
    packed = pack(everything())
    same(everything(), pickle.loads(pickle.dumps(packed)).unpack())


@pytest.mark.cluster
def test_the_object_store_keeps_a_batch(connection):
    batch = everything()
    stored = Stored.put(batch)
    read = stored.read(seconds=60)
    same(batch, read)
    read.wide.zero_()
    same(batch, Pointers.to_all(stored).resolve(seconds=60))
    lying = ray.get(stored.reference).arrays
    assert not any(array.flags.writeable or array.flags.owndata for array in lying)
