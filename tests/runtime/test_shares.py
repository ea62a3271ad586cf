"""Counted bytes: what a rank reads of a batch shrinks with the number of ranks, and each row is read once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.batches.steps import StepBatch
from burnish.runtime import transfer
from burnish.training.batching import rank_micro_batches
from burnish.types.batch import Gathered
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.rollout import Denoising, Embeddings, Requests

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


def learned_by(trace: Denoising) -> StepBatch:
    numbers = torch.ones(ROWS, STEPS)
    nothing = torch.zeros(ROWS, STEPS, 0)
    return StepBatch(
        trace=trace,
        advantage=numbers,
        weight=numbers,
        trained=numbers.bool(),
        old=numbers,
        old_mean=nothing,
        reference_mean=nothing,
    )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_rank_reads_its_own_share(size, monkeypatch):
    packed = transfer.pack(trajectories().put_away())
    assert sum(array.nbytes for array in packed.heavy) < 1.05 * (ROWS * (STEPS + 2) * STATE + PROMPTS * PROMPT)
    monkeypatch.setattr(transfer.ray, "get", lambda reference, timeout: packed)
    read = []
    rows_of = transfer.rows_of
    monkeypatch.setattr(transfer, "rows_of", lambda *given: read.append(rows_of(*given)) or read[-1])
    everything = 0
    for rank in range(size):
        read.clear()
        trace = transfer.Stored(reference=None, rows=ROWS).read(seconds=1)
        assert not read, "what is heavy stays where it is"
        batch, largest = learned_by(trace), 0
        for part, _ in rank_micro_batches(FlowGRPO(), batch, 4, Ranks(rank, size)):
            before = sum(value.nbytes for value in read)
            moved = part.to("cpu")
            assert moved.steps.state.shape == (4, 4, SIDE, SIDE)
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
    trace, given = trajectories(), torch.arange(ROWS) * PROMPTS // ROWS
    trace = replace(
        trace, conditioning=Gathered(table=table, index=given), unconditional=Gathered(table=negative, index=given)
    )
    packed = transfer.pack(trace.put_away())
    assert packed.head.nbytes < large / 5, "no picture travels with every rank's copy of the rest"
    same = packed.unpack().conditioning.table.prompts
    assert [(one, one.images[0].read()) for one in same] == [(one, one.images[0].read()) for one in prompts]
    monkeypatch.setattr(transfer.ray, "get", lambda reference, timeout: packed)
    for rank in range(size):
        there, read = transfer.Stored(reference=None, rows=ROWS).read(seconds=1), {}
        for part, _ in rank_micro_batches(FlowGRPO(), learned_by(there), 4, Ranks(rank, size)):
            for condition in (part.to("cpu").steps.conditioning, part.to("cpu").steps.unconditional):
                read |= {one.images[0].read(): one for one in condition.rows().prompts}
        assert len(read) == PROMPTS / size, "a rank reads those of its own rows, whose negative prompts share them"
