"""What must hold of an update: how it is cut into pieces, and where its log-probs come from, changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.training.trainer import Diverged
from tests.support.factory import tiny_pipeline
from tests.support.flow_bench import WINDOW, Bench


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("sd3"), vae=False)


ALGORITHMS = [
    FlowGRPO(window=WINDOW, kl_coef=0.1),
    FlowGRPO(window=WINDOW, transition="cps", fold_timesteps=False),
    DiffusionNFT(train_timesteps=3, kl_coef=0.1),
]


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["grpo+kl", "cps, unfolded", "nft+kl"])
def test_micro_batches_change_nothing_but_rounding(pipeline, algorithm, lora):
    whole, parts = (Bench(pipeline, algorithm, lora=lora, micro=size) for size in (100, 5))
    before = whole.weights()
    first, second = whole.train(2), parts.train(2)
    assert (whole.weights() - before).abs().max() > 1e-3
    torch.testing.assert_close(parts.weights(), whole.weights(), rtol=1e-3, atol=1e-4)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert second[name] == pytest.approx(value, rel=2e-2, abs=1e-4), name


@pytest.mark.parametrize("transition", ["sde", "cps", "dance"])
@pytest.mark.parametrize("lora", [True, False])
def test_on_policy_the_ratio_is_exactly_one(pipeline, transition, lora):
    algorithm = FlowGRPO(window=WINDOW, transition=transition)
    for updates in (1, 2):
        metrics = Bench(pipeline, algorithm, lora=lora).train(updates)
        assert metrics["actor/ratio_mean"] == 1.0
        assert metrics["actor/ratio_std"] == 0.0
        assert metrics["rollout_corr/logprob_abs_diff"] < 1e-5


def test_the_samplers_logprobs_are_the_trainers_bit_by_bit(pipeline):
    bench = Bench(pipeline, FlowGRPO(window=WINDOW), merge_lora=False)
    assert bench.train(2)["rollout_corr/logprob_abs_diff"] == 0.0


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
    torch.testing.assert_close(doubted.old, scored.trace.logprob, rtol=0, atol=1e-6)


def test_mini_batches_and_epochs_move_away_from_the_old_policy(pipeline):
    metrics = Bench(pipeline, FlowGRPO(window=WINDOW, clip=0.2), mini=6, epochs=2).train()
    assert metrics["actor/ratio_std"] > 1e-6
    assert metrics["actor/pg_clipfrac"] < 1


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS[::2], ids=["grpo+kl", "nft+kl"])
def test_half_precision_and_guidance_train_float32_weights(pipeline, algorithm, lora):
    bench = Bench(pipeline, algorithm, lora=lora, dtype="bfloat16", guidance=3.0)
    before = bench.weights()
    metrics = bench.train(2)
    assert before.dtype == torch.float32
    assert (bench.weights() - before).abs().max() > 1e-3
    assert all(value == value for value in metrics.values())


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


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["grpo+kl", "cps, unfolded", "nft+kl"])
def test_a_restored_worker_goes_on_bit_by_bit(pipeline, algorithm):
    first = Bench(pipeline, algorithm)
    first.train(2)
    state = torch.load(_saved(first.workers.state_dict()), weights_only=True)
    first.train()
    second = Bench(pipeline, algorithm)
    second.workers.load_state_dict(state)
    second.train()
    assert torch.equal(second.weights(), first.weights())
    for name, value in first.workers.ema.average.items():
        assert torch.equal(second.workers.ema.average[name], value)


def test_a_non_finite_loss_skips_the_step_and_several_stop_the_run(pipeline):
    bench = Bench(pipeline, FlowGRPO(window=WINDOW))
    before = bench.weights()
    scored = bench.collect()
    broken = replace(scored, trace=replace(scored.trace, next_state=scored.trace.next_state * float("nan")))
    for _ in range(3):
        assert bench.train(scored=broken)["actor/skipped_updates"] == 1
    assert torch.equal(bench.weights(), before)
    with pytest.raises(Diverged, match="not finite for 4 optimizer steps"):
        bench.train(scored=broken)


def _saved(state):
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file
