"""Batches by reference: what is read is what was stored, bit for bit, nobody else's, and no more than is needed."""

import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from burnish.rollout.sources import RolloutRequest, join, numbered
from burnish.runtime.transfer import PromptNumbers, pack
from burnish.types.batch import Batch, Gathered, heavy, shared
from burnish.types.completion import Completion, Encoded, Features
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.rollout import Rollouts, Scores
from tests.support.equality import same

DTYPES = [torch.bool, torch.int64, torch.uint8, torch.float32, torch.float64, torch.bfloat16, torch.float16]


@dataclass(kw_only=True)
class Embeddings(Batch):
    tokens: Tensor = heavy()  # [B, L, D]
    pooled: Tensor = heavy()  # [B, P]


@dataclass(kw_only=True)
class Everything(Batch):
    rows: list[Tensor]
    table: Gathered[Embeddings]
    same: Gathered[Embeddings]
    prompts: list[Prompt]
    features: list[Features]
    wide: Tensor  # [B, N] strided
    empty: Tensor  # [B, 0, 3]
    images: list[np.ndarray]
    schedule: Tensor = shared()
    names: tuple[str, ...] = shared()


def everything(count: int = 5, start: int = 0) -> Everything:
    draw = torch.Generator().manual_seed(start)
    tables = Embeddings(tokens=torch.randn(2, 40, 30, generator=draw), pooled=torch.randn(2, 3, generator=draw))
    return Everything(
        rows=[(torch.randn(i + 1, 300, generator=draw) * 9).to(DTYPES[i % len(DTYPES)]) for i in range(count)],
        table=Gathered(table=tables, index=torch.arange(count) % 2),
        same=Gathered(table=tables, index=torch.zeros(count, dtype=torch.long)),
        prompts=[Prompt(text=f"prompt {start + i}") for i in range(count)],
        features=[Features() for _ in range(count)],
        wide=torch.randn(2000, count, generator=draw).T,
        empty=torch.zeros(count, 0, 3),
        images=[np.full((64, 64, 3), i, dtype=np.uint8) for i in range(count)],
        schedule=torch.tensor([1.0, float("nan"), -0.0]),
        names=("a", "b"),
    )


def completion() -> Completion:
    features = Features({"images": torch.randn(2000, 4), "image_grid": torch.tensor([[1, 40, 50]])}, {"images": 0})
    prompts = Encoded(ids=[torch.arange(5)], positions=[torch.arange(15).view(3, 5)], features=[features])
    assert prompts.lengths == [5]  # cached
    found = Completion.of_text(
        Gathered(table=prompts, index=torch.zeros(2, dtype=torch.long)), torch.tensor([[1, 2], [3, 0]]),
        torch.tensor([2, 1]), axes=3, logprob=torch.tensor([[-0.1, -0.2], [-0.3, 0.0]]),
    )  # fmt: skip
    return replace(found, features=[features, Features({"rate": torch.tensor(2.0)})])


def test_a_batch_comes_back_bit_for_bit():
    batch = everything(len(DTYPES))
    same(batch, pickle.loads(pickle.dumps(pack(batch))).unpack())
    odd = [torch.tensor(3.5), torch.zeros(0), torch.randn(1, 1)[0], torch.randn(70, 70)[::2, 1:], torch.ones(3, 1)]
    odd += [torch.ones(3, 1).expand(3, 4000), torch.randn(5000).to(torch.bfloat16)[1:], torch.tensor([True])]
    batch = everything(len(odd))
    batch.rows, batch.prompts = odd, [with_images(5000)[i % 2] for i in range(len(odd))]
    packed = pack(batch)
    same(batch, packed.unpack())
    assert sum(len(one) == 5000 for one in packed.arrays) == 2, "each image travels once"
    responses = completion()
    found = pack(responses).unpack()
    same(responses, found)
    both = Completion.cat([found, responses.padded(4)])
    assert both.ids.tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]] * 2
    assert both.mask.sum(1).tolist() == [2, 1, 2, 1]
    same(both.select([0, 1]).padded(2).logprob, responses.logprob)
    assert found.features[0] is found.prompts.table.features[0]
    found = pack(everything()).unpack()
    assert found.table.table is found.same.table
    assert len(Gathered.cat([found.table, found.same]).table) == 2
    one = everything()
    two = replace(one, same=replace(one.same, table=replace(one.table.table)))  # another record of the same tensors
    assert sum(map(len, pack(two).arrays)) == sum(map(len, pack(one).arrays))


def test_long_tensors_travel_outside_the_head_and_are_nobodys_to_change():
    packed = pack(everything())
    assert len(packed.head) < 50_000 < sum(map(len, packed.arrays))
    assert packed.rows == 5
    for array in packed.arrays:
        array.flags.writeable = False  # as the object store gives them
    before, own = packed.unpack(), packed.unpack()
    own.wide.zero_()
    own.table.table.tokens.values().zero_()
    own.prompts.clear()
    same(before, packed.unpack())


def with_images(size: int) -> list[Prompt]:
    return [Prompt(text=f"{i}", images=(Media.encoded(bytes([i]) * size),)) for i in range(5)]


@pytest.mark.parametrize("size", [100, 100_000])
def test_prompts_with_images_cross_processes_as_numbers(size):
    here, there = with_images(size), with_images(size)  # each process has read the data
    numbers = PromptNumbers(lambda: here)
    asked, group, sample = numbered([here[3], here[0]], 2)
    more = {"groups": 2, "update": 1, "version": 0, "ahead": [here[4], here[0]]}  # those that come next, too
    request = RolloutRequest(prompts=asked, group=group, sample=sample, **more)
    sent = numbers.numbered(request)
    assert len(pickle.dumps(sent)) < 2000
    assert (sent.prompts, sent.ahead) == ([3, 3, 0, 0], [4, 0])
    found = PromptNumbers(lambda: there).named(pickle.loads(pickle.dumps(sent)))
    for one, place in zip([*found.prompts, *found.ahead], [3, 3, 0, 0, 4, 0], strict=True):
        assert one is there[place]
    about = {"group": group, "sample": sample, "scores": None, "update": 1, "version": 0, "seed": 0}
    sent = numbers.numbered(Rollouts(prompts=[here[1]], put_aside=[request], **about))
    assert (sent.prompts, sent.put_aside[0].prompts) == ([1], [3, 3, 0, 0])
    assert numbers.named(sent).put_aside[0].prompts[0] is here[3]


def test_metrics_of_chunks_are_those_of_all_samples():
    parts = [
        Rollouts(
            prompts=[Prompt(text="a")], group=torch.tensor([i]), sample=torch.tensor([0]), update=1, version=3 - i,
            scores=Scores.given([[1.0]], {"a": 1.0}), seed=0, counts={"turns/mean": 1.0 + i},
            metrics={"turns/mean": 2.0 + 3 * i, "turns/max": 4.0 + i, "turns/min": 1.0 + i},
        ) for i in range(2)
    ]  # fmt: skip
    found = join(parts)
    assert (found.version, found.metrics) == (2, {"turns/mean": 4.0, "turns/max": 5.0, "turns/min": 1.0})
