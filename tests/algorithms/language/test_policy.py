"""What must hold of every policy gradient over tokens, on a tiny model that sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from burnish.algorithms.correction import RolloutCorrection
from burnish.algorithms.kl import TokenKl
from burnish.algorithms.language.covariance import ClipCov, KLCov
from burnish.algorithms.language.policy_gradient import GRPO, TokenPolicyGradient
from burnish.losses.entropy import covariance
from tests.support.token_batches import ALGORITHMS, PROMPTS, Bench, N, close, with_rewards

EVERY = pytest.mark.parametrize("name", ALGORITHMS)
SOME = pytest.mark.parametrize("name", ["ppo", "grpo", "remax"])
KL = TokenKl(coef=0.1)


@pytest.mark.parametrize(("name", "lora"), [*((name, False) for name in ALGORITHMS), ("ppo", True), ("grpo", True)])
def test_on_policy_the_ratio_is_exactly_one(name, lora):
    bench = Bench(ALGORITHMS[name](), lora=lora)
    before = bench.weights()
    metrics = bench.train(2)
    apart = 1e-6 if name == "dppo" else 0.0  # whose ratio is that to the sampler
    assert metrics["actor/ppo_kl"] == pytest.approx(0.0, abs=apart)
    assert metrics.get("actor/ratio_mean", 1.0) == pytest.approx(1.0, rel=0, abs=apart)
    assert metrics["rollout_corr/logprob_abs_diff"] < 1e-5
    assert metrics["actor/skipped_updates"] == 0.0
    assert (bench.weights() - before).abs().max() > 1e-3


@EVERY
def test_the_gradient_is_that_of_the_pure_function_on_the_whole_batch(name):
    bench = Bench(ALGORITHMS[name](loss_agg_mode="token-mean"))
    batch, _ = bench.learned()
    both = bench.gradient(batch)
    scores = bench.roles.policy(batch.trace)
    for group in bench.workers.groups:
        group.zero_grad()
    loss, _ = bench.algorithm.objective(scores.logprob, batch.old, batch.advantage, batch.mask, batch.weight)
    (loss.sum() / batch.mask.sum()).backward()
    expected = torch.cat([v.grad.flatten() for v in bench.roles.parameters().values() if v.grad is not None])
    assert expected.abs().max() > 0
    mine = torch.cat(
        [g.flatten() for g, v in zip(_split(both, bench), bench.roles.parameters().values(), strict=False)
         if v.grad is not None]
    )  # fmt: skip
    close(mine, expected)


def _split(vector, bench):
    return vector[: sum(v.numel() for v in bench.roles.parameters().values())].split(
        [v.numel() for v in bench.roles.parameters().values()]
    )


@EVERY
def test_neither_cuts_nor_order_nor_layout_change_the_gradient(name):
    made = ALGORITHMS[name](kl=KL, entropy_coef=0.01)
    whole, cut = Bench(made), Bench(made, budget=40, layout="padded")
    answered = whole.collect()
    batch, metrics = whole.learned(answered)
    parts = list(cut.algorithm.micro_batches(batch, 40))
    assert len(parts) > 2
    assert sum(len(part) for part in parts) == len(batch)
    expected = whole.gradient(batch)
    order = torch.randperm(len(answered), generator=torch.Generator().manual_seed(1))
    shuffled, again = cut.learned(answered.select(order))
    assert cut.algorithm.size(shuffled) == whole.algorithm.size(batch)
    close(cut.gradient(shuffled), expected)
    assert again == pytest.approx(metrics, rel=1e-4, abs=1e-5)


@EVERY
def test_odd_samples_give_finite_gradients_and_right_counts(name):
    bench = Bench(ALGORITHMS[name](kl=KL))
    answered = bench.collect()
    mask, length = answered.trace.mask.clone(), answered.trace.length.clone()
    mask[1] = False  # nothing of it was chosen by the policy
    mask[2], length[2] = False, 0  # empty
    finished = answered.trace.finished.clone()
    finished[3] = False
    reward = answered.scores.reward.clone()
    reward[N : 2 * N] = 0.3  # a group without a difference
    reward[-1] = torch.nan
    missing = torch.zeros(len(reward), dtype=torch.bool)
    missing[-1] = True
    odd = replace(
        with_rewards(answered, reward, missing),
        trace=replace(answered.trace, mask=mask, length=length, finished=finished),
    )
    batch, metrics = bench.learned(odd)
    assert len(batch) == len(reward) - 3
    assert torch.isfinite(batch.advantage).all()
    if bench.needs.groups and name != "reinforce_plus_plus_baseline":
        same = torch.isin(batch.trace.prompts.index, answered.trace.prompts.index[N : N + 1])
        assert same.sum() == N
        assert (batch.advantage[same] == 0).all()
    assert torch.isfinite(bench.gradient(batch)).all()
    assert all(value == value for value in metrics.values())


@SOME
def test_a_batch_in_which_nothing_was_judged_is_skipped_and_counted(name):
    bench = Bench(ALGORITHMS[name]())
    answered = bench.collect()
    batch, _ = bench.learned(
        with_rewards(answered, answered.scores.reward, torch.ones(len(answered), dtype=torch.bool))
    )
    assert len(batch) == 0
    assert bench.workers.update(batch, 1)["actor/skipped_updates"] == 1.0


@SOME
def test_pictures_or_none_a_batch_learns(name):
    for prompts in (PROMPTS[:1], PROMPTS[2:]):
        metrics = Bench(ALGORITHMS[name](), prompts=prompts).train()
        assert metrics["actor/skipped_updates"] == 0.0


@pytest.mark.parametrize("name", ["grpo", "ppo", "gspo", "reinforce"])
def test_later_mini_batches_refer_to_the_sampler_if_it_agrees(name):
    bench = Bench(ALGORITHMS[name](), mini=6, epochs=2)
    metrics = bench.train()
    if name != "reinforce":
        assert metrics["old_policy/logprob_check"] < 1e-5
        assert metrics["actor/ratio_std"] > 0
    assert metrics["old_policy/recomputed"] == 0.0
    assert metrics["actor/ppo_kl"] != 0.0


def test_what_the_sampler_says_is_not_believed_if_the_trainer_says_otherwise():
    bench = Bench(GRPO(), mini=6)
    answered = bench.collect()
    wrong = replace(answered, trace=replace(answered.trace, logprob=answered.trace.logprob - 0.1))
    annotated = bench.workers.annotate(wrong)
    assert annotated.metrics["old_policy/recomputed"] == 1.0
    assert annotated.metrics["rollout_corr/logprob_abs_diff_mean"] == pytest.approx(0.1, abs=1e-3)
    close(annotated.old, answered.trace.logprob)
    trusting = Bench(GRPO(old_logprob="sampler"), mini=6).workers.annotate(wrong)
    assert torch.equal(trusting.old, wrong.trace.logprob)


def test_what_sampler_and_trainer_disagree_about_is_weighed():
    answered = Bench(GRPO()).collect()
    off = replace(answered, trace=replace(answered.trace, logprob=answered.trace.logprob - 0.5))
    corrected = Bench(GRPO(rollout_correction=RolloutCorrection(upper=1.2)))
    batch, metrics = corrected.learned(off)
    close(batch.weight[batch.mask], torch.full_like(batch.weight[batch.mask], 1.2))
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(1.2)
    rejecting = GRPO(rollout_correction=RolloutCorrection(weights="none", reject="seq_mean_k1", reject_above=1.1))
    nothing, _ = Bench(rejecting).learned(off)
    assert len(nothing) == 0


def test_tokens_of_high_entropy_are_chosen_by_one_threshold():
    bench = Bench(GRPO(high_entropy_fraction=0.25))
    batch, metrics = bench.learned()
    # first tokens of a group tie, and those that tie with the threshold are all in
    assert 0.25 - 1 / batch.mask.sum() <= metrics["actor/high_entropy_ratio"] <= 0.25 + N / batch.mask.sum()
    entropy = bench.roles.policy(batch.trace).entropy.detach()
    assert entropy[batch.weight == 1].min() >= entropy[batch.mask & (batch.weight == 0)].max() - 1e-5
    assert bench.algorithm.size(batch) == Bench(GRPO()).algorithm.size(batch)


def test_tokens_of_high_entropy_may_be_chosen_by_a_threshold_of_each_response():
    bench = Bench(GRPO(high_entropy_fraction=0.25, high_entropy_per="sequence"))
    batch, _ = bench.learned()
    entropy = bench.roles.policy(batch.trace).entropy.detach()
    for weight, mask, values in zip(batch.weight, batch.mask, entropy, strict=True):
        chosen = values[weight == 1]
        assert len(chosen) == max(1, int(0.25 * int(mask.sum())))
        assert chosen.min() >= values[mask & (weight == 0)].max() - 1e-5


def test_clip_cov_leaves_out_some_tokens_of_high_covariance():
    bench = Bench(ClipCov(cov_low=0.1, cov_high=50.0, cov_fraction=0.1))
    batch, metrics = bench.learned()
    cov = covariance(batch.old, batch.advantage, batch.mask)
    out = batch.mask & (batch.weight == 0)
    assert out.sum() == int(0.1 * int(batch.mask.sum())) < (cov > 0.1).sum()
    assert metrics["actor/cov_fraction"] == pytest.approx(float(out.sum() / batch.mask.sum()))
    assert cov[out].min() > 0.1
    nothing, _ = Bench(ClipCov(cov_low=1e6, cov_high=1e7)).learned()
    assert (nothing.weight[nothing.mask] == 1).all()


def test_kl_cov_holds_the_tokens_of_highest_covariance():
    bench = Bench(KLCov(cov_fraction=0.1, cov_coef=0.7), mini=6)
    batch, _ = bench.learned()
    cov, held = covariance(batch.old, batch.advantage, batch.mask), batch.held > 0
    assert batch.held.unique().tolist() == [0.0, pytest.approx(0.7)]
    assert cov[held].min() >= cov[batch.mask & ~held].max()
    bench.workers.update(batch, 1)
    bench.roles.stepped()
    moved = bench.gradient(batch)
    free = bench.gradient(replace(batch, held=torch.zeros_like(batch.held)))
    assert (moved - free).abs().max() > 1e-6


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_a_loss_on_tokens_of_high_entropy_may_be_divided_by_those_alone(mode):
    """By all of the update, or by those of each response; what else is in the loss stays a mean over all tokens."""
    batches = {
        count: Bench(GRPO(high_entropy_fraction=0.25, high_entropy_count=count, loss_agg_mode=mode)).learned()[0]
        for count in ("all", "selected")
    }
    every, some = (batches[count] for count in ("all", "selected"))
    chosen = every.weight > 0
    assert torch.equal(some.weight > 0, chosen)
    assert torch.equal(some.mask, every.mask)
    values = torch.randn(chosen.shape, generator=torch.Generator().manual_seed(0)) * chosen
    algorithm = GRPO(high_entropy_fraction=0.25, high_entropy_count="selected", loss_agg_mode=mode)
    found = algorithm.total(values * some.weight, some) / algorithm.size(some)
    if mode == "token-mean":
        expected = values.sum() / chosen.sum()
    else:
        expected = (values.sum(1) / chosen.sum(1).clamp_min(1)).mean()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"high_entropy_per": "sequence"}, "never read when high_entropy_fraction is 1"),
        ({"high_entropy_count": "selected"}, "never read when high_entropy_fraction is 1"),
        (
            {"high_entropy_count": "selected", "high_entropy_fraction": 0.5, "loss_agg_mode": "seq-mean-token-sum"},
            "divides by no number of tokens",
        ),
        ({"advantage_clip": 1.0, "advantage_clip_low": 1.5}, "nothing lies between"),
        ({"reward_clip": 1.0, "reward_clip_low": 1.0}, "nothing lies between"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bounds_and_counts_that_contradict_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GRPO(**options)


def test_rewards_and_advantages_may_have_another_bound_below():
    bench = Bench(GRPO(reward_clip=0.7, reward_clip_low=0.45, advantage_clip=0.6, advantage_clip_low=-0.25))
    answered = bench.collect()
    assert float(answered.scores.reward.min()) < 0.45 < 0.7 < float(answered.scores.reward.max())
    batch, metrics = bench.algorithm.credit(bench.workers.annotate(answered))
    assert metrics["critic/rewards/max"] == pytest.approx(0.7)
    assert metrics["critic/rewards/min"] == pytest.approx(0.45)
    assert float(batch.advantage[batch.mask].max()) == pytest.approx(0.6)
    assert float(batch.advantage[batch.mask].min()) == pytest.approx(-0.25)


def test_frozen_parts_stay_and_a_pattern_without_a_match_is_refused():
    bench = Bench(GRPO(), freeze=("model.visual", "lm_head*"))
    before = {name: value.detach().clone() for name, value in bench.roles.model.network.named_parameters()}
    bench.train()
    after = dict(bench.roles.model.network.named_parameters())
    for name, value in before.items():
        assert torch.equal(after[name], value) or not name.startswith(("model.visual", "lm_head")), name
    assert any(not torch.equal(after[name], value) for name, value in before.items())
    with pytest.raises(Exception, match="matches no parameter"):
        Bench(GRPO(), freeze=("model.vision",))


@SOME
def test_resumed_is_uninterrupted_bit_by_bit(name):
    made = ALGORITHMS[name](kl=TokenKl(controller="adaptive", target=0.1, horizon=50), reward_norm=True)
    whole, first, second = Bench(made), Bench(made), Bench(made)
    expected = whole.train(3)
    first.train(2)
    second.workers.load_state_dict(first.workers.state_dict())
    assert second.train() == expected
    assert torch.equal(second.weights(), whole.weights())


def test_every_base_is_a_policy_gradient():
    assert all(issubclass(cls, TokenPolicyGradient) for cls in ALGORITHMS.values())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("grpo", {"clip": 1.5}, "clip is 1.5"),
        ("grpo", {"dual_clip": 1.0}, "dual_clip is 1.0"),
        ("grpo", {"loss_length": 3}, "loss_length is 3"),
        ("grpo", {"advantage_std": "none", "advantage_eps": 0.1}, "never read"),
        ("grpo", {"old_logprob": "sampler", "rollout_correction": {"mode": "decoupled"}}, "decoupled"),
        ("grpo", {"old_logprob": "recompute", "rollout_correction": {"mode": "bypass"}}, "bypass"),
        ("grpo", {"kl": {"route": "reward", "kind": "k3+"}}, "only its value counts"),
        ("grpo", {"kl": {"controller": "adaptive"}}, "target is null"),
        ("grpo", {"kl": {"target": 0.1}}, "never read"),
        ("cpgd", {"clip": 1.0}, "log"),
        ("cpgd", {"weighting_clip": 2.0}, "clip_filter alone"),
        ("cpgd", {"drift_clip": 0.1}, "never read"),
    ],
)
def test_what_contradicts_itself_is_refused(name, options, message):
    with pytest.raises(ValidationError, match=message):
        ALGORITHMS[name](**options)
