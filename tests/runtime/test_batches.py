"""Batches by reference: what is read is what was stored, bit for bit, nobody else's, and no more than is needed."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest
import ray
import torch
from torch import Tensor

from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.draft import Draft
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.flow.tdm_r1 import TDMR1
from burnish.batches.steps import StepBatch
from burnish.rollout.requests import RolloutRequest, numbered
from burnish.runtime import transfer
from burnish.runtime.hand_over import handed_over
from burnish.runtime.prompt_numbers import PromptNumbers
from burnish.runtime.transfer import Pointers, Stored, pack, resolved
from burnish.training.batching import rank_micro_batches
from burnish.types.batch import Batch, Gathered, shared
from burnish.types.columns import Column
from burnish.types.completion import Completion, Encoded, Features
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.rollout import Denoising, Embeddings, Requests
from tests.support.equality import same
from tests.support.factory import tiny_pipeline
from tests.support.flow_bench import WINDOW, Bench, Red

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
    draw = torch.Generator().manual_seed(start)
    tables = Embeddings(tokens=torch.randn(2, 40, 30, generator=draw), pooled=torch.randn(2, 3, generator=draw))
    return Everything(
        rows=[(torch.randn(i + 1, 300, generator=draw) * 9).to(DTYPES[i % len(DTYPES)]) for i in range(count)],
        table=Gathered(table=tables, index=torch.arange(count) % 2),
        same=Gathered(table=tables, index=torch.zeros(count, dtype=torch.long)),
        prompts=[Prompt(text=f"prompt {start + i}") for i in range(count)],
        features=[Features.none() for _ in range(count)],
        wide=torch.randn(2000, count, generator=draw).T,
        empty=torch.zeros(count, 0, 3),
        pictures=[np.full((64, 64, 3), i, dtype=np.uint8) for i in range(count)],
        schedule=torch.tensor([1.0, float("nan"), -0.0]),
        names=("a", "b"),
    )


def completion() -> Completion:
    features = Features({"images": torch.randn(2000, 4), "image_grid": torch.tensor([[1, 40, 50]])}, {"images": 0})
    prompts = Encoded(ids=[torch.arange(5)], positions=[torch.arange(15).view(3, 5)], features=[features])
    assert prompts.lengths == [5]  # cached
    return Completion(
        prompts=Gathered(table=prompts, index=torch.zeros(2, dtype=torch.long)),
        ids=torch.tensor([[1, 2], [3, 0]]),
        mask=torch.tensor([[True, True], [True, False]]),
        logprob=torch.tensor([[-0.1, -0.2], [-0.3, 0.0]]),
        positions=torch.zeros(2, 3, 2, dtype=torch.long),
        length=torch.tensor([2, 1]),
        finished=torch.tensor([True, False]),
        features=[features, Features.none()],
    )


def test_a_batch_comes_back_bit_for_bit():
    batch = everything(len(DTYPES))
    same(batch, pickle.loads(pickle.dumps(pack(batch))).unpack())
    odd = [torch.tensor(3.5), torch.zeros(0), torch.randn(1, 1)[0], torch.randn(70, 70)[::2, 1:], torch.ones(3, 1)]
    odd += [torch.ones(3, 1).expand(3, 4000), torch.randn(5000).to(torch.bfloat16)[1:], torch.tensor([True])]
    batch = everything(len(odd))
    batch.rows = odd
    same(batch, pack(batch).unpack())
    responses = completion()
    found = pack(responses).unpack()
    same(responses, found)
    assert found.features[0] is found.prompts.table.features[0]
    found = pack(everything()).unpack()
    assert found.table.table is found.same.table
    assert len(Gathered.cat([found.table, found.same]).table) == 2


def test_long_tensors_travel_outside_the_head_and_are_nobodys_to_change():
    packed = pack(everything())
    assert len(packed.head) < 50_000 < sum(map(len, packed.arrays))
    assert sum(array.nbytes for array in packed.heavy) == 2 * 40 * 30 * 4
    assert packed.rows == 5
    for array in [*packed.arrays, *packed.heavy]:
        array.flags.writeable = False  # as the object store gives them
    before, own = packed.unpack(), packed.unpack()
    own.wide.zero_()
    own.table.table.tokens.values().zero_()
    own.prompts.clear()
    same(before, packed.unpack())


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


def texts(batch) -> list[str]:
    return [prompt.text.removeprefix("prompt ") for prompt in batch.prompts]


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
    same(parts[0], pointers(parts[0]).resolve(seconds=1))


def test_batches_that_no_row_is_in_are_let_go_and_others_are_read_once():
    pointing = pointers(everything(2, 0), everything(2, 2), everything(2, 4)).select([5, 1])
    assert len(pointing.stored) == 2
    assert texts(pointing.resolve(seconds=1)) == ["5", "1"]
    none = pointing.select([])
    assert (len(none), len(none.stored)) == (0, 1)
    assert len(none.resolve(seconds=1)) == 0
    whole = pointers(everything(6))
    joined = Pointers.cat([whole.select([5, 4]), whole.select([0])])
    assert len(joined.stored) == 1
    assert texts(joined.resolve(seconds=1)) == ["5", "4", "0"]
    assert len(joined.stored[0].reads) == 1
    batches = [everything(3, 0), everything(2, 3)]
    outer = Outer.cat([Outer(number=torch.arange(len(b)), trace=pointers(b)) for b in batches]).select([4, 0])
    found = resolved(outer, seconds=1)
    assert found.number.tolist() == [1, 0]
    assert texts(found.trace) == ["4", "0"]
    assert resolved(found, seconds=1) is found


ROWS, STEPS, SIDE, PROMPTS = 48, 3, 16, 12
STATE = 4 * SIDE**2 * 4  # bytes
PROMPT = (20 * 32 + 8) * 4


class Ranks:
    """One of several that all have equally many micro-batches."""

    timeout, group = 1.0, None

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def max(self, value: int) -> int:
        return value


def trajectories() -> Denoising:
    draw = torch.Generator().manual_seed(0)
    times = torch.linspace(1, 0, STEPS + 1)
    path = torch.randn(ROWS, STEPS + 1, 4, SIDE, SIDE, generator=draw)
    table = Embeddings(tokens=torch.randn(PROMPTS, 20, 32), pooled=torch.randn(PROMPTS, 8))
    prompts = Gathered(table=table, index=torch.arange(ROWS) * PROMPTS // ROWS)
    return Denoising(
        conditioning=prompts, unconditional=prompts, latents=path[:, -1], state=path[:, :-1], next_state=path[:, 1:],
        time=times[:-1].expand(ROWS, -1).contiguous(), time_next=times[1:].expand(ROWS, -1).contiguous(),
        logprob=torch.zeros(ROWS, STEPS), node=torch.zeros(ROWS, STEPS, dtype=torch.long), schedule=times,
    )  # fmt: skip


def parts_of(trace: Denoising, rank: int, size: int):
    """What a rank learns, in micro-batches of four."""
    ones, nothing = torch.ones(ROWS, STEPS), torch.zeros(ROWS, STEPS, 0)
    batch = StepBatch(
        trace=trace, advantage=ones, weight=ones, trained=ones.bool(), old=ones, old_mean=nothing,
        reference_mean=nothing,
    )  # fmt: skip
    return rank_micro_batches(FlowGRPO(), batch, 4, Ranks(rank, size))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_rank_reads_its_own_share(size, monkeypatch):
    packed = pack(trajectories().put_away())
    assert sum(array.nbytes for array in packed.heavy) < 1.05 * (ROWS * (STEPS + 2) * STATE + PROMPTS * PROMPT)
    monkeypatch.setattr(transfer.ray, "get", lambda reference, timeout: packed)
    read, rows_of = [], transfer.rows_of
    monkeypatch.setattr(transfer, "rows_of", lambda *given: read.append(rows_of(*given)) or read[-1])
    everything = 0
    for rank in range(size):
        read.clear()
        trace = Stored(reference=None, rows=ROWS).read(seconds=1)
        assert not read, "what is heavy stays where it is"
        largest = 0
        for part, _ in parts_of(trace, rank, size):
            before = sum(value.nbytes for value in read)
            assert part.to("cpu").steps.state.shape == (4, 4, SIDE, SIDE)
            largest = max(largest, sum(value.nbytes for value in read) - before)
        everything += (own := sum(value.nbytes for value in read))
        # each step's two states once, and the prompts of micro-batches
        assert own <= 1.15 * ROWS * STEPS * 2 * STATE / size + 2 * PROMPT * ROWS * STEPS / 4 / size * 2
        assert largest <= 4 * 2 * STATE + 4 * PROMPT, "and holds no more than a micro-batch of it"
    assert everything >= ROWS * STEPS * 2 * STATE


@pytest.mark.parametrize("size", [1, 3])
def test_pictures_inside_of_prompts_are_read_by_the_ranks_that_use_them(size, monkeypatch):
    large = 100_000
    prompts = [Prompt(text=f"edit {i}", images=(Media.encoded(bytes([i]) * large),)) for i in range(PROMPTS)]
    table = Requests(prompts=prompts, height=None, width=None, steps=STEPS)
    negative = Requests(prompts=[one.unconditional for one in prompts], height=None, width=None, steps=STEPS)
    given = torch.arange(ROWS) * PROMPTS // ROWS
    conditions = (Gathered(table=one, index=given) for one in (table, negative))
    trace = replace(trajectories(), **dict(zip(("conditioning", "unconditional"), conditions, strict=True)))
    packed = pack(trace.put_away())
    assert packed.head.nbytes < large / 5, "no picture travels with every rank's copy of the rest"
    came = packed.unpack().conditioning.table.prompts
    assert [(one, one.images[0].read()) for one in came] == [(one, one.images[0].read()) for one in prompts]
    monkeypatch.setattr(transfer.ray, "get", lambda reference, timeout: packed)
    for rank in range(size):
        read = {}
        for part, _ in parts_of(Stored(reference=None, rows=ROWS).read(seconds=1), rank, size):
            for condition in (part.to("cpu").steps.conditioning, part.to("cpu").steps.unconditional):
                read |= {one.images[0].read(): one for one in condition.rows().prompts}
        assert len(read) == PROMPTS / size, "a rank reads those of its own rows, whose negative prompts share them"


def nft(pipeline):
    return Bench(pipeline, DiffusionNFT(old_decay="ema", old_ema=0.5, train_timesteps=2), mini=5, micro=3)


BENCHES = {
    "all weights": lambda at: Bench(at, FlowGRPO(window=WINDOW, kl_coef=0.1), lora=False, mini=5, micro=3),
    "few steps": lambda at: Bench(at, TDMR1(), mini=2, micro=4),
    "matching": nft,
    "uphill": lambda at: Bench(at, Draft(last_steps=2, recompute=True), rewards={"red": Red()}, mini=5, micro=3),
}


@pytest.mark.parametrize(
    "name", ["all weights", "few steps", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("matching", "uphill"))]
)
def test_samples_that_wait_elsewhere_teach_the_same(tmp_path, name):
    pipeline, found = tiny_pipeline(tmp_path, vae=False), []
    for wait in (lambda trace: trace, lambda trace: trace.put_away(), lambda trace: pack(trace.put_away()).unpack()):
        bench = BENCHES[name](pipeline)
        scored = bench.collect()
        trace = wait(scored.trace)
        bench.train(scored=replace(scored, trace=trace))
        found.append(bench.weights())
    assert isinstance(trace.latents, Column), "and nothing is read before it is used"
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])
    if name == "all weights":
        away = scored.trace.put_away()
        assert len(away.state.sources[0].tensor) < 2 * away.time.numel(), "a state between two steps is kept once"


@dataclass
class Request:
    prompts: list[Prompt]


def with_pictures(size: int) -> list[Prompt]:
    return [Prompt(text=f"{i}", images=(Media.encoded(bytes([i]) * size),)) for i in range(5)]


@pytest.mark.parametrize("size", [100, 100_000])
def test_prompts_with_pictures_cross_processes_as_numbers(size):
    here, there = with_pictures(size), with_pictures(size)  # each process has read the data
    numbers = PromptNumbers(lambda: here)
    sent = numbers.numbered(Request([here[3], here[3], here[0]]))
    assert len(pickle.dumps(sent)) < 200
    found = PromptNumbers(lambda: there).named(pickle.loads(pickle.dumps(sent)))
    assert [one is there[i] for one, i in zip(found.prompts, [3, 3, 0], strict=True)] == [True] * 3

    asked, group, sample = numbered([here[1]], 2)
    request = RolloutRequest(
        prompts=asked, group=group, sample=sample, groups=1, update=1, version=0, ahead=[here[4], here[0]]
    )
    sent = numbers.numbered(request)  # those that come next, too
    assert len(pickle.dumps(sent)) < 2000
    assert sent.ahead == [4, 0]
    found = PromptNumbers(lambda: there).named(pickle.loads(pickle.dumps(sent)))
    assert [one is other for one, other in zip(found.ahead, [there[4], there[0]], strict=True)] == [True, True]


def test_prompts_that_are_short_or_of_elsewhere_travel_as_they_are():
    here = [Prompt(text="a"), *with_pictures(10)]
    numbers = PromptNumbers(lambda: here)
    other = replace(here[1], text="of a checkpoint")
    sent = numbers.numbered(Request([here[0], here[2], other]))
    assert sent.prompts == [here[0], 2, other]
    assert numbers.named(sent).prompts == [here[0], here[2], other]
    unread = PromptNumbers(lambda: pytest.fail("the data are not read where every prompt is short"))
    assert unread.numbered(Request([here[0]])).prompts == [here[0]]


def test_the_next_is_made_while_one_is_used_in_order_and_no_more_than_two_wait():
    making, made, highest, used = threading.Event(), [], [], []

    def make():
        for number in range(6):
            made.append(number)
            if number == 1:
                making.set()
            yield number

    def use(number):
        assert making.wait(20), "the second was not made while the first was used"
        used.append(number)
        highest.append(len(made) - len(used))

    handed_over(make(), use)
    assert max(highest) <= 2
    assert used == list(range(6))


@pytest.mark.parametrize("side", ["making", "using"])
def test_an_error_of_either_side_ends_both(side):
    def make():
        yield from (1, 2)
        if side == "making":
            raise ZeroDivisionError
        yield from range(100)

    def use(number):
        if side == "using" and number == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handed_over(make(), use)
    assert not [one for one in threading.enumerate() if one.name == "hand over"]
