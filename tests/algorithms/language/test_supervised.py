"""Imitating responses: the tokens that count, the best of the own ones, and imitation beside another algorithm."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from burnish.algorithms.language.dpo import DPO
from burnish.algorithms.language.sft import SFT
from burnish.data.language.offline import ResponseData
from burnish.data.language.responses import ResponseRecord
from burnish.tasks.language.engine import Encoder
from burnish.training.auxiliary import AuxiliaryLoss
from burnish.types.prompt import Prompt
from tests.support.response_batches import REWARDS, Bench, answered, given


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_the_loss_is_the_likelihood_of_the_responses_tokens(mode):
    bench = Bench(SFT(loss_agg_mode=mode), budget=40)
    sampled = answered(bench.model)
    rows = [0, 3, 5, 7]  # the last one is empty
    loss, gradient = bench.gradient(bench.learned(given(sampled, rows, 1))[0])
    bench.zero_grad()
    sums, _ = bench.sums(sampled, rows[:3])
    lengths = torch.tensor([4.0, 5.0, 4.0])
    expected = {
        "token-mean": -sums.sum() / lengths.sum(),
        "seq-mean-token-mean": -(sums / lengths).mean(),
        "seq-mean-token-sum": -sums.mean(),
    }[mode]
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(gradient, bench.flat_gradient(), rtol=1e-4, atol=1e-5)


def test_rejection_sampling_keeps_the_best_of_each_group():
    bench = Bench(SFT(online=True, best=2))
    sampled = answered(bench.model, missing=[4])
    batch, metrics = bench.learned(sampled)
    kept = [0, 2, 3, 5, 6, 8]
    assert torch.equal(batch.answers.trace.ids, sampled.trace.ids[kept])
    assert metrics["train/imitated_reward"] == pytest.approx(sum(REWARDS[row] for row in kept) / 6)
    strict = Bench(SFT(online=True, best=2, min_reward=0.9))
    batch, metrics = strict.learned(sampled)
    assert torch.equal(batch.answers.trace.ids, sampled.trace.ids[[0, 5, 8]])
    assert metrics["train/imitated"] == 3
    nothing, _ = strict.learned(answered(bench.model, [0.0] * 9))
    assert strict.workers.update(nothing, 1)["actor/skipped_updates"] == 1


RECORDS = [
    ResponseRecord(Prompt(text="How are you?"), ("<answer>well</answer>",)),
    ResponseRecord(Prompt(text="And now?"), ("x",)),
]


def written(bench: Bench) -> ResponseData:
    return ResponseData(RECORDS, bench.model, Encoder(bench.model))


def test_a_written_response_is_read_back_with_its_end():
    bench = Bench(SFT())
    batch = written(bench).batch(RECORDS, update=1, seed=0)
    trace = batch.answers.trace
    assert trace.finished.all()
    for row, record in enumerate(RECORDS):
        ids = trace.ids[row, : int(trace.length[row])].tolist()
        assert ids[-1] in bench.model.stop
        assert bench.model.decode(ids) == record.responses[0]
        first = trace.prompts.table.next_position[row]
        assert trace.positions[row, 0, : len(ids)].tolist() == list(range(first, first + len(ids)))
    assert torch.equal(trace.mask.sum(1), trace.length)
    assert trace.ids[~trace.mask].eq(0).all()


def test_imitation_beside_changes_the_gradient_by_exactly_its_coefficient():
    """Text alone beside responses about pictures."""
    coefficients, gradients, metrics = (0.0, 0.25, 1.0), [], []
    for coef in coefficients:
        bench = Bench(DPO(beta=0.3))
        data = written(bench)
        beside = AuxiliaryLoss(
            SFT(), lambda step, data=data: data.batch(RECORDS, update=step, seed=0), coef, metric="actor/ptx_loss"
        )
        batch, _ = bench.learned(answered(bench.model))
        bench.gradient(batch)
        _, reported = beside.backward(0, bench.roles)
        gradients.append(bench.flat_gradient())
        metrics.append(reported["actor/ptx_loss"])
    alone = Bench(SFT())
    loss, own = alone.gradient(alone.learned(written(alone).batch(RECORDS, update=0, seed=0))[0])
    for coef, gradient in zip(coefficients, gradients, strict=True):
        torch.testing.assert_close(gradient - gradients[0], coef * own, rtol=1e-3, atol=1e-5)
    assert metrics == pytest.approx([loss] * 3, abs=1e-6)


@pytest.mark.parametrize("options", [{"best": 2}, {"min_reward": 0.5}])
def test_an_option_that_nothing_reads_is_refused(options):
    with pytest.raises(ValidationError, match="never read when online is false"):
        SFT(**options)
