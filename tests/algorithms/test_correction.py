"""What is done about a sampler and a trainer that disagree: by how much a step counts, and whether at all."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from burnish.algorithms.correction import RolloutCorrection
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.flow.transitions import Transition
from burnish.flow.windows import Window
from tests.support.factory import tiny_pipeline
from tests.support.flow_bench import Bench

WINDOW = Window(kind="fixed", size=2)
SHIFT = torch.tensor([0.1, -0.1, 1.5, -1.5, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # nats by step


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("sd3"), vae=False)


def bench_of(pipeline, surrogate=None, **options):
    correction = RolloutCorrection(**options) if options else None
    how = {"surrogate": surrogate} if surrogate else {"clip": 0.5}
    return Bench(pipeline, FlowGRPO(window=WINDOW, rollout_correction=correction, **how), merge_lora=False)


def elements(scored):
    """Of a latent: what log-probs are means over."""
    return scored.trace.latents[0].numel()


def disagreeing(bench, shift=SHIFT):
    """Samples whose sampler had other log-probs: the learner's minus ``shift`` nats at every step."""
    scored = bench.collect()
    moved = scored.trace.logprob - shift[:, None] / elements(scored)
    return replace(scored, trace=replace(scored.trace, logprob=moved))


def gradient(bench, scored):
    """Of the sum of the loss, and what was learned from."""
    learned, metrics = bench.algorithm.credit(bench.workers.annotate(scored))
    bench.roles.model.network.zero_grad()
    for part in bench.algorithm.micro_batches(learned, 100):
        bench.algorithm.loss(part, bench.roles).total.backward()
    parameters = bench.roles.parameters().values()
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]), learned, metrics


@pytest.mark.parametrize("mode", ["decoupled", "bypass"])
@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({"upper": 2.0, "surrogate": "reinforce"}, SHIFT.exp().clamp(max=2.0)),
        ({"upper": 2.0}, SHIFT.exp().clamp(max=2.0)),
        ({"upper": 2.0, "lower": 0.5}, torch.where(SHIFT.abs() > math.log(2), torch.zeros(12), SHIFT.exp())),
        ({"weights": "sample", "upper": 2.0}, (2 * SHIFT).exp().clamp(max=2.0)),
    ],
    ids=["reinforce", "truncated", "icepop", "of the sample"],
)
def test_every_step_pulls_with_its_bounded_weight(pipeline, mode, options, weight):
    """Also in bypass, where ratios against the sampler hold the unbounded weight already."""
    bench = bench_of(pipeline, mode=mode, **options)
    if "surrogate" not in options:  # bypass clips around the sampler, which is not the subject here
        bench.algorithm.clip, bench.algorithm.clip_high = 0.99, 1e6
    scored = disagreeing(bench)
    actual, _, _ = gradient(bench, scored)
    plain = FlowGRPO(window=WINDOW)
    learned, _ = plain.credit(plain.annotate(scored, bench.roles))
    bench.roles.model.network.zero_grad()
    for part in replace(learned, weight=weight[:, None].expand(-1, 2)).terms().split(100):
        plain.loss(part, bench.roles).total.backward()
    expected = torch.cat([p.grad.flatten() for p in bench.roles.parameters().values() if p.grad is not None])
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_bypass_refers_ratios_to_the_sampler_and_decoupled_to_the_learner(pipeline):
    shift = 30 * SHIFT
    for mode in ("bypass", "decoupled"):
        bench = bench_of(pipeline, mode=mode)
        scored = disagreeing(bench, shift)
        mean = float((shift / elements(scored)).exp().mean()) if mode == "bypass" else 1.0
        assert mode == "decoupled" or mean > 1.05
        assert bench.train(scored=scored)["actor/ratio_mean"] == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("mode", ["decoupled", "bypass"])
def test_where_nothing_disagrees_nothing_is_corrected(pipeline, mode):
    plain, corrected = bench_of(pipeline), bench_of(pipeline, mode=mode)
    plain.train(2)
    metrics = corrected.train(2)
    torch.testing.assert_close(corrected.weights(), plain.weights(), rtol=1e-4, atol=1e-5)
    assert metrics.keys() >= {"actor/ratio_mean"}


def test_weights_divided_by_their_mean_keep_the_size_of_the_loss(pipeline):
    bench = bench_of(pipeline, batch_normalise=True)
    _, learned, _ = gradient(bench, disagreeing(bench))
    assert float(learned.weight.mean()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"reject": "token_k1", "reject_above": 2.0}, 10),
        ({"reject": "seq_mean_k1", "reject_above": 5.0, "reject_below": 0.5}, 11),
        ({"reject": "seq_max_k3", "reject_above": 0.5}, 10),
        ({"reject": "seq_sum_k2", "reject_above": 0.03}, 9),
    ],
)
def test_what_is_rejected_leaves_the_count(pipeline, options, kept):
    bench = bench_of(pipeline, weights="none", **options)
    _, learned, metrics = gradient(bench, disagreeing(bench))
    assert len(learned) == kept
    assert bench.algorithm.size(learned) == 2 * kept
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 - kept / 12)
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == pytest.approx(1 - kept / 12)


def test_a_single_step_may_be_rejected(pipeline):
    bench = bench_of(pipeline, weights="none", reject="token_k2", reject_above=0.5)
    scored = bench.collect()
    logprob = scored.trace.logprob.clone()
    logprob[3, 1] += 2
    _, learned, _ = gradient(bench, replace(scored, trace=replace(scored.trace, logprob=logprob)))
    assert bench.algorithm.size(learned) == 23
    assert learned.trained[3].tolist() == [True, False]


def test_an_update_that_loses_everything_is_skipped_and_counted(pipeline):
    bench = bench_of(pipeline, weights="none", reject="token_k2", reject_above=0.5)
    before = bench.weights()
    metrics = bench.train(scored=disagreeing(bench, torch.full((12,), 3.0)))
    assert torch.equal(bench.weights(), before)
    assert metrics["actor/skipped_updates"] == 1


def test_all_metrics_are_there(pipeline):
    bench = bench_of(pipeline, weights="step", lower=0.5, batch_normalise=True, reject="token_k1", reject_above=9.0)
    _, _, metrics = gradient(bench, disagreeing(bench))
    names = {name.removeprefix("rollout_corr/") for name in metrics if name.startswith("rollout_corr/")}
    assert names >= {
        "training_ppl", "training_log_ppl", "kl", "k3_kl", "rollout_ppl", "rollout_log_ppl", "log_ppl_diff",
        "log_ppl_abs_diff", "log_ppl_diff_max", "log_ppl_diff_min", "ppl_ratio", "chi2_token", "chi2_seq",
        "logprob_abs_diff_mean", "logprob_abs_diff_max", "rollout_is_mean", "rollout_is_max", "rollout_is_min",
        "rollout_is_std", "rollout_is_eff_sample_size", "rollout_is_oob_ratio", "rollout_is_batch_norm_factor",
        "rollout_is_ratio_fraction_high", "rollout_is_ratio_fraction_low", "rollout_is_seq_mean",
        "rollout_rs_masked_fraction", "rollout_rs_seq_masked_fraction", "rollout_rs_token_k1_mean",
        "rollout_rs_token_k1_masked_fraction",
    }  # fmt: skip
    assert metrics["rollout_corr/kl"] == pytest.approx(-float(SHIFT.mean()), abs=1e-5)
    assert len([name for name in names if name.startswith("logprob_abs_diff/ts_")]) == 2


def test_metrics_are_of_the_steps_that_count(pipeline):
    bench = bench_of(pipeline, mode="decoupled")
    scored = disagreeing(bench, torch.tensor([5.0] + 11 * [0.1]))
    scores = replace(scored.scores, missing=torch.arange(12) == 0)
    _, _, metrics = gradient(bench, replace(scored, scores=scores))
    assert metrics["rollout_corr/logprob_abs_diff_max"] == pytest.approx(0.1 / elements(scored), rel=1e-2)
    assert metrics["rollout_corr/kl"] == pytest.approx(-0.1, rel=1e-2)


def test_a_geometric_mean_over_elements_stays_near_1(pipeline):
    """As verl-omni measures: what it is worth is in docs/importance_correction.md."""
    bench = bench_of(pipeline, measure="mean")
    scored = disagreeing(bench)
    _, learned, metrics = gradient(bench, scored)
    expected = (SHIFT / elements(scored)).exp()[:, None].expand(-1, 2)
    torch.testing.assert_close(learned.weight, expected, rtol=1e-5, atol=0)
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] > 0.999
    assert metrics["rollout_corr/kl"] == pytest.approx(-float(SHIFT.mean()) / elements(scored), rel=1e-3)


@pytest.mark.parametrize("measure", ["joint", "mean"])
@pytest.mark.parametrize("rows", [96])
def test_the_effective_sample_size_of_a_generator_is_that_of_whole_steps(rows, measure):
    """Means moved by 0.01 std per element at 65,536 elements: 3.3 nats by step, though log-probs differ by 5e-5.

    Of 96 steps 7 are worth anything on average; the mean over elements would say all of them.
    """
    correction, std = RolloutCorrection(measure=measure), torch.full((rows,), 0.3)
    shares, applied = [], []
    for seed in range(4):
        noise = torch.randn(rows, 65_536, generator=torch.Generator().manual_seed(seed))
        sampler = Transition(torch.zeros(rows, 65_536), std, std)
        learner = Transition(torch.full((rows, 65_536), 0.01 * 0.3), std, std)
        landed = sampler.sample(noise)
        ours, theirs = (step.logprob(landed)[:, None] for step in (learner, sampler))
        mask, scale = torch.ones(rows, 1, dtype=torch.bool), torch.full((rows, 1), 65_536.0)
        weights, _, metrics = correction.apply(ours, theirs, mask, scale=scale)
        shares.append(metrics["rollout_corr/rollout_is_eff_sample_size"])
        applied.append(float(weights.mean()))
        if measure == "joint":
            exact = (0.01 * noise.double()).sum(1) - 65_536 * 0.01**2 / 2
            weight = exact.exp()
            assert shares[-1] == pytest.approx(float(weight.mean() ** 2 / weight.square().mean()), rel=0.1)
            assert metrics["rollout_corr/kl"] == pytest.approx(65_536 * 0.01**2 / 2, abs=1.0)
            assert metrics["rollout_corr/rollout_is_applied_eff_sample_size"] > shares[-1]
    if measure == "joint":
        assert sum(shares) / len(shares) == pytest.approx(0.07, abs=0.03)
        assert sum(applied) / len(applied) == pytest.approx(0.28, abs=0.08), "E min(w, 2), w log-normal"
    else:
        assert min(shares) > 0.999999


@pytest.mark.parametrize("transition", ["sde", "cps", "dance"])
def test_nats_of_a_step_are_those_of_its_gaussian_whatever_its_log_prob_is(pipeline, transition):
    """Flow-CPS publishes a squared error without scale, which is in no units at all."""
    bench = Bench(pipeline, FlowGRPO(window=WINDOW, transition=transition, noise_level=0.5), merge_lora=False)
    trace = bench.collect().trace
    std = bench.algorithm.step_std(trace.time.flatten(), trace.time_next.flatten(), trace.schedule)
    mean = trace.next_state.flatten(0, 1) + std.view(-1, 1, 1, 1) * torch.randn(len(std), *trace.state.shape[2:])
    before, after = (Transition(mean + shift, std, std) for shift in (0.0, 0.02))
    landed = trace.next_state.flatten(0, 1)
    density = bench.algorithm.density
    nats = trace.nats(density, bench.algorithm.step_std).flatten()
    found = (after.logprob(landed, density) - before.logprob(landed, density)) * nats
    normal = [
        torch.distributions.Normal(step.mean.double(), std.double().view(-1, 1, 1, 1)) for step in (before, after)
    ]
    exact = (normal[1].log_prob(landed.double()) - normal[0].log_prob(landed.double())).flatten(1).sum(1)
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "rules",
    [
        {"reject": ["token_k1", "seq_mean_k3"], "reject_above": [2.0, 0.015]},
        {"reject": ["token_k1", "seq_max_k2"], "reject_above": [5.0, 0.004], "reject_below": [0.5, None]},
    ],
    ids=["two bounds", "one below"],
)
def test_several_rules_reject_what_any_of_them_rejects(pipeline, rules):
    bench = bench_of(pipeline, weights="none", **rules)
    scored = disagreeing(bench)
    _, learned, metrics = gradient(bench, scored)
    kept = torch.ones(12, dtype=torch.bool)
    for i, rule in enumerate(rules["reject"]):
        below = rules.get("reject_below", [None, None])[i]
        alone = bench_of(pipeline, weights="none", reject=rule, reject_above=rules["reject_above"][i],
                         reject_below=below)  # fmt: skip
        _, some, found = gradient(alone, scored)
        kept &= torch.isin(torch.arange(12), rows_of(some, scored))
        name = f"rollout_corr/rollout_rs_{rule}_masked_fraction"
        assert metrics[name] == found[name]
        assert 0 < found[name] < 1
    assert rows_of(learned, scored).tolist() == kept.nonzero().flatten().tolist()
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 - int(kept.sum()) / 12)


def rows_of(learned, scored):
    """Which samples were kept."""
    same = (learned.trace.latents[:, None] == scored.trace.latents[None]).flatten(2).all(2)
    return same.nonzero()[:, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"upper": 1.0, "lower": 2.0}, "swap"),
        ({"weights": "none"}, "nothing is corrected"),
        ({"weights": "none", "reject": "token_k1", "reject_above": 2.0, "upper": 3.0}, "never read"),
        ({"reject": "token_k1"}, "reject_above is null"),
        ({"reject_above": 2.0}, "reject is null"),
        ({"reject": "token_k3", "reject_above": 2.0, "reject_below": 0.5}, "k1 alone"),
        ({"reject": "token_k1", "reject_above": 2.0, "reject_below": 3.0}, "swap"),
        ({"reject": ["token_k1", "token_k2"], "reject_above": 2.0}, "2 rules and reject_above 1 bounds"),
        ({"reject": ["token_k1", "token_k2"], "reject_above": [2.0], "reject_below": [0.5]}, "one for each"),
        ({"reject": ["token_k1", "token_k1"], "reject_above": [2.0, 3.0]}, "may be there once"),
        ({"reject": ["token_k1", "token_k2"], "reject_above": [2.0, 3.0], "reject_below": [None, 0.5]}, "k1 alone"),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RolloutCorrection(**options)


@pytest.mark.parametrize(("mode", "source"), [("decoupled", "sampler"), ("bypass", "recompute")])
def test_a_source_of_old_logprobs_that_the_mode_contradicts_is_refused(mode, source):
    with pytest.raises(ValueError, match="old_logprob"):
        FlowGRPO(rollout_correction=RolloutCorrection(mode=mode), old_logprob=source)
