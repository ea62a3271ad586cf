"""What must hold of an update: how it is cut into pieces, and where its log-probs come from, changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.options import StepOptions
from burnish.training.batching import learned_rows, mini_batches
from burnish.training.ranks import SINGLE_RANK
from burnish.training.trainer import Diverged
from tests.support.factory import tiny_pipeline
from tests.support.flow_bench import WINDOW, Bench
from tests.support.forward_batches import given

UIDS = "abcdefg"
ALGORITHMS = {
    "grpo+kl": FlowGRPO(window=WINDOW, kl_coef=0.1),
    "cps, unfolded": FlowGRPO(window=WINDOW, transition="cps", fold_timesteps=False),
    "nft+kl": DiffusionNFT(train_timesteps=3, kl_coef=0.1),
}


def minis(update: int = 1, **options) -> list[str]:
    return ["".join(mini.uid) for mini in mini_batches(given(1, UIDS), StepOptions(**options), 0, update)]


def test_samples_are_learned_in_their_order_or_in_one_of_each_pass():
    assert minis(mini_batch_size=3, epochs=2, shuffle=False) == ["abc", "def", "g"] * 2
    assert learned_rows([1] * 7, StepOptions(mini_batch_size=3, shuffle=False), 0, 1, SINGLE_RANK) == list(range(7))
    passes = [minis(update, mini_batch_size=3, epochs=2)[start : start + 3] for update in (1, 2) for start in (0, 3)]
    orders = {"".join(each) for each in passes}
    assert len(orders) == 4
    assert {"".join(sorted(order)) for order in orders} == {UIDS}
    for shuffle in (False, True):
        assert minis(shuffle=shuffle) == [UIDS]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("sd3"), vae=False)


OFTEN = [("grpo+kl", True), ("cps, unfolded", False), ("nft+kl", True)]


@pytest.mark.parametrize(
    ("name", "lora"),
    [*OFTEN, *(pytest.param(name, not lora, marks=pytest.mark.thorough) for name, lora in OFTEN)],
)
def test_micro_batches_change_nothing_but_rounding(pipeline, name, lora):
    whole, parts = (Bench(pipeline, ALGORITHMS[name], lora=lora, micro=size) for size in (100, 5))
    before = whole.weights()
    first, second = whole.train(2), parts.train(2)
    assert (whole.weights() - before).abs().max() > 1e-3
    torch.testing.assert_close(parts.weights(), whole.weights(), rtol=1e-3, atol=1e-4)
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert second[key] == pytest.approx(value, rel=2e-2, abs=1e-4), key


def test_old_logprobs_are_taken_from_the_sampler_only_if_they_pass_the_check(pipeline):
    bench = Bench(pipeline, FlowGRPO(window=WINDOW), mini=6, merge_lora=False)
    scored = bench.collect()
    trusted = bench.workers.annotate(scored)
    assert trusted.metrics["old_policy/recomputed"] == 0
    assert torch.equal(trusted.old, scored.trace.logprob)
    wrong = replace(scored, trace=replace(scored.trace, logprob=scored.trace.logprob + 1e-3))
    doubted = bench.workers.annotate(wrong)
    assert doubted.metrics["old_policy/recomputed"] == 1
    assert Bench(pipeline, FlowGRPO(window=WINDOW), merge_lora=False).train()["rollout_corr/logprob_abs_diff"] == 0.0
    torch.testing.assert_close(doubted.old, scored.trace.logprob, rtol=0, atol=1e-6)


def test_a_missing_reward_is_as_if_the_sample_were_not_there(pipeline):
    bench = Bench(pipeline, FlowGRPO(window=WINDOW))
    scored = bench.collect()
    without = replace(scored.scores, missing=torch.arange(12) == 5)
    kept = [i for i in range(12) if i != 5]
    credited, _ = bench.algorithm.credit(bench.workers.annotate(replace(scored, scores=without)))
    expected, _ = bench.algorithm.credit(bench.workers.annotate(scored.select(kept)))
    torch.testing.assert_close(credited.advantage, expected.advantage)
    assert len(credited) == 11


def test_a_non_finite_loss_skips_the_step_and_several_stop_the_run(pipeline):
    bench = Bench(pipeline, FlowGRPO(window=WINDOW))
    before = bench.weights()
    scored = bench.collect()
    broken = replace(scored, trace=replace(scored.trace, next_state=scored.trace.next_state * float("nan")))
    for _ in range(3):
        assert bench.train(scored=broken)["actor/skipped_updates"] == 1
    assert torch.equal(bench.weights(), before)
    with pytest.raises(Diverged):
        bench.train(scored=broken)
