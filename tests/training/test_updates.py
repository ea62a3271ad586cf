"""What must hold of an update: how it is cut into pieces, and where its log-probs come from, changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.losses.policy import extremes_of
from burnish.options import StepOptions
from burnish.training.batching import learned_rows, mini_batches
from burnish.training.ranks import SINGLE_RANK
from burnish.training.step_metrics import extreme_of, length_metrics, step_metrics
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


def test_metrics_of_steps_are_extremes_and_means_over_ranks():
    sums = {
        "extreme 0 actor/ratio_max": 1.5, "extreme 1 actor/ratio_max": 2.0, "extreme 2 actor/ratio_max": -math.inf,
        "extreme 0 actor/ratio_min": 0.5, "extreme 1 actor/ratio_min": 0.25, "extreme 2 actor/ratio_min": math.inf,
    }  # fmt: skip
    assert step_metrics(sums) == {"actor/ratio_max": 2.0, "actor/ratio_min": 0.25}
    found = {name: extreme_of(f"actor/ratio_{name}")([1.0, 3.0, 2.0]) for name in ("max", "min", "mean")}
    assert found == {"max": 3.0, "min": 1.0, "mean": 2.0}
    assert extreme_of("global_seqlen/max")([1.0, 3.0]) == 2.0

    ratio, mask = torch.tensor([[1.0, 9.0], [0.5, 2.0]]), torch.tensor([[True, False], [True, True]])
    found = extremes_of(ratio, (ratio - 1).abs(), mask)
    assert {name: float(value) for name, value in found.items()} == {
        "actor/ratio_max": 2.0, "actor/ratio_min": 0.5, "rollout_corr/logprob_abs_diff_max": 1.0,
    }  # fmt: skip
    assert extremes_of(None, None) == extremes_of(ratio[:0], None) == {}

    assert length_metrics([4, 1, 1, 2, 3], 2) == {
        "global_seqlen/min": 5.0, "global_seqlen/max": 6.0, "global_seqlen/minmax_diff": 1.0,
        "global_seqlen/balanced_min": 5.0, "global_seqlen/balanced_max": 6.0, "global_seqlen/mean": 5.5,
    }  # fmt: skip
    assert length_metrics([7], 3)["global_seqlen/min"] == 0


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


def test_folding_the_adapter_leaves_no_trace(pipeline):
    bench = Bench(pipeline, FlowGRPO(window=WINDOW))
    bench.train()
    before = {name: value.clone() for name, value in bench.roles.model.network.state_dict().items()}
    folded = bench.collect(7)
    for name, value in bench.roles.model.network.state_dict().items():
        assert torch.equal(value, before[name]), name
    bench.rollout.merge_lora = False
    torch.testing.assert_close(bench.collect(7).trace.latents, folded.trace.latents, rtol=0, atol=2e-5)


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
