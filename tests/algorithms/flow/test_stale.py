"""Samples of weights that have moved since: what they are compared with, and how they are corrected."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from burnish.algorithms.correction import RolloutCorrection
from burnish.algorithms.flow.flow_dppo import FlowDPPO
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from tests.support.factory import tiny_pipeline
from tests.support.flow_bench import WINDOW, Bench
from tests.support.language_runs import SMALL, assembly_of


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("sd3"), vae=False)


def aged(pipeline, algorithm):
    """A worker after one update, samples for the next one by the weights of before, and others by the present ones."""
    bench = Bench(pipeline, algorithm, merge_lora=False)
    stale = replace(bench.collect(2), version=0)
    bench.train()
    return bench, stale, bench.collect(2)


def test_log_probs_of_older_weights_are_not_taken_for_the_policys_own(pipeline):
    bench, stale, fresh = aged(pipeline, FlowGRPO(window=WINDOW, clip=1e-3))
    assert bench.roles.on_policy
    annotated = bench.workers.annotate(fresh)
    assert annotated.metrics["old_policy/recomputed"] == 0
    assert torch.equal(annotated.old, fresh.trace.logprob)
    annotated = bench.workers.annotate(stale)
    assert annotated.metrics["old_policy/recomputed"] == 1
    assert (annotated.old - stale.trace.logprob).abs().max() > 1e-4
    metrics = bench.workers.update(bench.algorithm.credit(annotated)[0], 2)
    assert metrics["actor/ratio_mean"] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("mode", ["decoupled", "bypass"])
def test_the_correction_weighs_what_older_weights_sampled(pipeline, mode):
    algorithm = FlowGRPO(window=WINDOW, clip=0.5, rollout_correction=RolloutCorrection(mode=mode))
    bench, stale, fresh = aged(pipeline, algorithm)
    weights = {}
    for name, scored in (("stale", stale), ("fresh", fresh)):
        annotated = bench.workers.annotate(scored)
        learned, metrics = bench.algorithm.credit(annotated)
        difference = annotated.learner - scored.trace.logprob  # means over the elements of a latent
        ratio = (difference * scored.trace.latents[0].numel()).exp()
        bounded = ratio.clamp(max=2.0)
        torch.testing.assert_close(learned.weight, bounded if mode == "decoupled" else bounded / difference.exp())
        assert "rollout_corr/rollout_is_mean" in metrics
        weights[name] = float((ratio - 1).abs().max())
    assert weights["fresh"] < 1e-3
    assert weights["stale"] > 1e-2


def test_means_of_older_weights_are_computed_anew(pipeline):
    bench, stale, _ = aged(pipeline, FlowDPPO(window=WINDOW))
    annotated = bench.workers.annotate(stale)
    assert annotated.old_mean.shape[2:] == stale.trace.state.shape[2:]
    assert annotated.metrics["old_policy/recomputed"] == 1


@pytest.mark.parametrize("correction", ["null", "{}"])
def test_responses_of_older_weights_are_scored_anew(correction):
    assembly = assembly_of(
        *SMALL, "algorithm=grpo", "trainer.mini_batch_size=null", f"algorithm.rollout_correction={correction}"
    )
    workers, algorithm = assembly.workers, assembly.config.algorithm
    first = assembly.source.collect(1)
    stale = assembly.rollout_worker.generate(assembly.prompt_schedule.request(2, 0, Counter()))
    assert workers.annotate(first).metrics["old_policy/recomputed"] == float(correction != "null")
    workers.update(algorithm.credit(workers.annotate(first))[0], 1)
    workers.publish(1)
    annotated = workers.annotate(stale)
    assert annotated.metrics["old_policy/recomputed"] == 1
    difference = (annotated.old - stale.trace.logprob)[stale.trace.mask].abs().max()
    assert difference > 1e-6
    learned, metrics = algorithm.credit(annotated)
    assert learned.weight[learned.mask].eq(1).all() == (correction == "null")
    if correction != "null":
        assert "rollout_corr/rollout_is_mean" in metrics
