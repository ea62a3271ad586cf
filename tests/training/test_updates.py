"""What must hold of an update: how it is cut into pieces, and where its log-probs come from, changes nothing."""

from __future__ import annotations

import io
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


@pytest.mark.parametrize(
    ("transition", "lora"), [("sde", True), ("cps", False), pytest.param("dance", True, marks=pytest.mark.thorough)]
)
def test_on_policy_the_ratio_is_exactly_one(pipeline, transition, lora):
    metrics = Bench(pipeline, FlowGRPO(window=WINDOW, transition=transition), lora=lora).train(2)
    assert metrics["actor/ratio_mean"] == 1.0
    assert metrics["actor/ratio_std"] == 0.0
    assert metrics["rollout_corr/logprob_abs_diff"] < 1e-5


@pytest.mark.parametrize("source", ["sampler", "recompute"])
def test_a_source_of_old_logprobs_that_is_asked_for_is_used(pipeline, source):
    bench = Bench(pipeline, FlowGRPO(window=WINDOW, old_logprob=source), merge_lora=False)
    scored = bench.collect()
    wrong = replace(scored, trace=replace(scored.trace, logprob=scored.trace.logprob + 1e-3))
    ratio = bench.train(scored=wrong)["actor/ratio_mean"]
    assert ratio == pytest.approx(0.999 if source == "sampler" else 1.0, abs=1e-5)


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


def test_half_precision_and_guidance_train_float32_weights(pipeline):
    bench = Bench(pipeline, ALGORITHMS["nft+kl"], lora=False, dtype="bfloat16", guidance=3.0)
    before = bench.weights()
    metrics = bench.train(2)
    assert before.dtype == torch.float32
    assert (bench.weights() - before).abs().max() > 1e-3
    assert all(math.isfinite(value) for value in metrics.values())


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


@pytest.mark.parametrize("lora", [True, False])
def test_the_reference_stays_and_the_old_policy_follows(pipeline, lora):
    bench = Bench(pipeline, DiffusionNFT(old_decay="ema", old_ema=0.5, train_timesteps=2, kl_coef=0.1), lora=lora)
    scored = bench.collect()
    ends = scored.trace.latents[:, None]
    steps = replace(
        scored.trace, state=ends, next_state=ends, time=torch.full((12, 1), 0.5), time_next=torch.zeros(12, 1),
        logprob=torch.zeros(12, 1),
    ).steps()  # fmt: skip

    def predict(role):
        with torch.no_grad():
            return role(steps.state, steps.time, steps.conditioning, steps.unconditional)

    start = predict(bench.roles.policy)
    old = [value.clone() for value in bench.roles.parameters("old").values()]
    bench.train(scored=scored)
    torch.testing.assert_close(predict(bench.roles.reference), start, rtol=0, atol=1e-6)
    assert (predict(bench.roles.policy) - start).abs().max() > 1e-4
    for was, new, policy in zip(
        old, bench.roles.parameters("old").values(), bench.roles.parameters().values(), strict=True
    ):
        torch.testing.assert_close(new, 0.5 * was + 0.5 * policy)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_restored_worker_goes_on_bit_by_bit(pipeline, name):
    first = Bench(pipeline, ALGORITHMS[name])
    first.train(2)
    file = io.BytesIO()
    torch.save(first.workers.state_dict(), file)
    file.seek(0)
    first.train()
    second = Bench(pipeline, ALGORITHMS[name])
    second.workers.load_state_dict(torch.load(file, weights_only=True))
    second.train()
    assert torch.equal(second.weights(), first.weights())
    for key, value in first.workers.ema.average.items():
        assert torch.equal(second.workers.ema.average[key], value)


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
