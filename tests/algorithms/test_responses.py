"""Algorithms that learn from responses, with tables in place of networks: what they mean, and which rows count."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import logsigmoid

from burnish.algorithms.base import advantages_of
from burnish.algorithms.language.shaping import shape
from burnish.batches.responses import mismatched
from burnish.losses.entropy import covariance
from burnish.registry import lookup
from burnish.types.completion import ResponseRows
from burnish.types.rollout import OfflineResponses
from tests.support.language_tables import REWARDS, Tables, annotated, answered, judged
from tests.support.token_batches import ALGORITHMS, Bench
from tests.support.token_losses import mask_of, spoil

KL = {"coef": 0.1}
POLICY_GRADIENTS = [(name, {"kl": KL, "entropy_coef": 0.01}) for name in ALGORITHMS]
PREFERENCES = [
    ("dpo", {"beta": 0.3}), ("dpo", {"label_smoothing": 0.1}), ("dpo", {"rpo_alpha": 0.5}),
    ("dpo", {"average_log_prob": True, "reference_free": True}), ("ipo", {}),
    ("ipo", {"average_log_prob": False, "rpo_alpha": 1.0}), ("simpo", {}),
    ("mpo", {}), ("mpo", {"average_log_prob": True, "quality_weight": 0.0}), ("kto", {"reference_point": "zero"}),
    ("kto", {"threshold": 0.4, "average_log_prob": True, "undesirable_weight": 2.0, "reference_point": "opposite"}),
    ("sft", {"online": True, "best": 2}), ("sft", {"online": True, "loss_agg_mode": "seq-mean-token-mean"}),
]  # fmt: skip
BEST, WORST = [0, 4], [1, 3]  # of the groups of REWARDS, the last of which has equal ones
every = pytest.mark.parametrize("name", ALGORITHMS)


def made(name, **options):
    return lookup("language algorithm", name)(**options)


def scored(rewards=REWARDS, missing=()):
    """Responses to three prompts, of which one is empty and one has two turns."""
    one, reward = answered(), torch.tensor(rewards)
    absent = torch.zeros(9, dtype=torch.bool)
    absent[list(missing)] = True
    scores = replace(one.scores, reward=reward, components=reward[:, None], missing=absent)
    return replace(one, scores=scores)


def learned(algorithm, given=None, roles=None):
    roles = roles or Tables(algorithm.make_memory())
    batch, metrics = algorithm.credit(algorithm.annotate(given or scored(), roles))
    return roles, batch, metrics


def gradient(algorithm, batch, roles, budget=10_000):
    """The loss of a batch in micro-batches of so many tokens, and its gradients to all tables."""
    tables, total = (roles.logprob, roles.entropy, roles.value), 0.0
    for table in tables:
        table.grad = None
    for part in algorithm.micro_batches(batch, budget):
        loss = algorithm.loss(part, roles).total / algorithm.size(batch)
        loss.backward()
        total += float(loss.detach())
    return total, torch.stack([torch.zeros_like(t) if t.grad is None else t.grad.clone() for t in tables])


@every
def test_the_gradient_is_that_of_the_pure_function_on_the_whole_batch(name):
    algorithm = made(name, loss_agg_mode="token-mean")
    roles, batch, _ = learned(algorithm)
    roles.step()
    _, found = gradient(algorithm, batch, roles)
    loss, _ = algorithm.objective(
        roles.policy(batch.trace).logprob, batch.old, batch.advantage, batch.mask, batch.weight
    )
    (expected,) = torch.autograd.grad(loss.sum() / batch.mask.sum(), roles.logprob)
    if name == "kl_cov":  # which adds a KL for some tokens
        expected = found[0]
    assert expected.abs().max() > 0
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), POLICY_GRADIENTS + PREFERENCES, ids=str)
def test_neither_cuts_nor_order_change_the_gradient(name, options):
    algorithm = made(name, **options)
    roles, batch, metrics = learned(algorithm)
    roles.step()
    loss, expected = gradient(algorithm, batch, roles)
    assert expected.isfinite().all()
    assert expected.abs().max() > 0
    order = torch.tensor([6, 7, 8, 3, 4, 5, 0, 1, 2])
    given = replace(scored().select(order), seed=0)
    _, turned, others = learned(algorithm, given, Tables(algorithm.make_memory()))
    assert len(list(algorithm.micro_batches(turned, 1))) == len(turned)  # a pair is never parted
    for one in (batch, turned):
        again, found = gradient(algorithm, one, roles, 1)
        assert again == pytest.approx(loss, abs=1e-5)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert others == pytest.approx(metrics, rel=1e-4, abs=1e-5, nan_ok=True)


@every
def test_odd_samples_give_finite_gradients_and_right_counts(name):
    """A missing reward, nothing chosen, no token, and a group without a difference, which says nothing."""
    algorithm, one = made(name, kl=KL), scored([*REWARDS[:5], math.nan, *REWARDS[6:]], missing=[5])
    mask = one.trace.mask.clone()
    mask[1] = False
    roles, batch, metrics = learned(algorithm, replace(one, trace=replace(one.trace, mask=mask)))
    assert len(batch) == 9 - 3
    assert batch.advantage.isfinite().all()
    if algorithm.needs().groups and name != "reinforce_plus_plus_baseline":
        same = batch.trace.prompts.index == 2
        assert same.sum() == 2
        assert (batch.advantage[same] == 0).all()
    assert gradient(algorithm, batch, roles)[1].isfinite().all()
    assert all(value == value for value in metrics.values())
    _, nothing, _ = learned(algorithm, scored(missing=range(9)))
    assert len(nothing) == 0


def pairs_of(algorithm):
    """Roles and a batch of two pairs; summed log-probs of its sides and of the reference, and lengths."""
    roles, batch, metrics = learned(algorithm)
    trace = scored().trace
    ours, theirs = (role(trace).logprob.sum(1) for role in (roles.policy, roles.reference))
    return roles, batch, metrics, ours, theirs.detach(), trace.mask.sum(1)


def dpo(won, lost, *rest):
    margin = 0.3 * (won - lost)
    return -0.9 * logsigmoid(margin) - 0.1 * logsigmoid(-margin) - 0.5 * rest[0] / rest[1]


def mpo(won, lost, chosen, length, *rest):
    good, bad = 0.3 * won, 0.3 * lost
    shift = torch.cat([good, bad]).detach().mean()
    return -0.8 * logsigmoid(good - bad) - 0.2 * (logsigmoid(good - shift) + logsigmoid(shift - bad)) - chosen / length


@pytest.mark.parametrize(("name", "options", "formula"), [
    ("dpo", {"beta": 0.3, "label_smoothing": 0.1, "rpo_alpha": 0.5}, dpo),
    ("mpo", {"beta": 0.3}, mpo),
    ("ipo", {"beta": 0.2}, lambda won, lost, chosen, n, rejected, m: (won / n - lost / m - 1 / 0.4).square()),
    ("simpo", {"beta": 2.5, "target_margin": 0.5},
     lambda won, lost, chosen, n, rejected, m: -logsigmoid(2.5 * (chosen / n - rejected / m) - 0.5)),
], ids=["dpo", "mpo", "ipo", "simpo"])  # fmt: skip
def test_preferences_are_the_formulas_on_the_best_and_the_worst_of_each_group(name, options, formula):
    algorithm = made(name, **options)
    roles, batch, metrics, ours, theirs, length = pairs_of(algorithm)
    won, lost = ((ours - theirs)[rows] for rows in (BEST, WORST))
    expected = formula(won, lost, ours[BEST], length[BEST], ours[WORST], length[WORST]).mean()
    (slope,) = torch.autograd.grad(expected, roles.logprob)
    loss, found = gradient(algorithm, batch, roles)
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    torch.testing.assert_close(found[0], slope, rtol=1e-4, atol=1e-6)
    assert metrics["train/pairs"] == 2
    assert metrics["train/pair_margin"] == pytest.approx((0.9 + 1.0) / 2)
    if name == "mpo":
        assert roles.memory["rewards"].known.count == 4
        learned(algorithm, roles=roles)
        assert roles.memory["rewards"].known.count == 8, "its shift is that of the run"


def test_kto_is_the_formula_from_its_reference_point():
    algorithm = made("kto", beta=0.3, desirable_weight=1.5)
    roles, batch, metrics, ours, theirs, _ = pairs_of(algorithm)
    good, bad = [0, 2, 4, 5], [1, 3]  # compared with the mean of their group
    moved = mismatched(scored().trace.select(torch.tensor(sorted(good + bad))))
    drift = (roles.policy(moved).logprob - roles.reference(moved).logprob).sum(1).mean().clamp_min(0).detach()
    ahead = 0.3 * (ours - theirs - drift)
    expected = (1.5 * (1 - ahead[good].sigmoid()).sum() + (1 - (-ahead[bad]).sigmoid()).sum()) / 6
    (slope,) = torch.autograd.grad(expected, roles.logprob)
    loss, found = gradient(algorithm, batch, roles)
    assert metrics["actor/reference_point"] == pytest.approx(float(drift), abs=1e-5)
    assert metrics["train/desirable_ratio"] == pytest.approx(4 / 6)
    assert loss == pytest.approx(float(expected.detach()), abs=1e-6)
    torch.testing.assert_close(found[0], slope, rtol=1e-4, atol=1e-6)


def test_a_mismatched_response_stands_behind_the_next_prompt():
    places = [torch.arange(length)[None] for length in (3, 5, 4)]
    trace = answered().trace
    table = replace(trace.prompts.table, ids=[place[0] for place in places], positions=places)
    trace = replace(trace, prompts=replace(trace.prompts, table=table))
    moved = mismatched(trace)
    assert moved.prompts.index.tolist() == [1, 1, 1, 2, 2, 2, 0, 0, 0]
    assert (moved.positions - trace.positions)[[0, 3, 6], 0, 0].tolist() == [5 - 3, 4 - 5, 3 - 4]
    assert torch.equal(moved.ids, trace.ids)
    assert len(mismatched(trace.select([0, 1, 2]))) == 0  # there is no other prompt


@pytest.mark.parametrize("name", ["dpo", "ipo", "kto"])
def test_responses_from_a_file_are_learned_as_sampled_ones_are(name):
    online, offline = made(name), made(name, online=False)
    rows = [0, 1, 2, 3, 4, 5] if name == "kto" else [0, 1, 4, 3]
    good = [True, False, True, False, True, True] if name == "kto" else [True, True]
    answers = ResponseRows(trace=scored().trace.select(torch.tensor(rows)), members=len(rows) // len(good))
    written = OfflineResponses(answers=answers, good=torch.tensor(good), update=1, version=0, seed=0)
    roles, batch, _ = learned(online)
    _, given, metrics = learned(offline, written)
    torch.testing.assert_close(gradient(online, batch, roles), gradient(offline, given, roles))
    assert "critic/rewards/mean" not in metrics
    assert offline.needs().data == ("judgements" if name == "kto" else "preferences")


@pytest.mark.parametrize(("name", "options", "rewards", "missing", "left"), [
    ("dpo", {}, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.6], [], 1),
    ("dpo", {"min_margin": 0.5}, [1.0, 0.5, 0.5, 1.0, 0.4, 0.5, 0.5, 0.5, 0.6], [], 1),
    ("dpo", {}, REWARDS, [0, 1], 1), ("dpo", {}, REWARDS, range(9), 0), ("ipo", {}, [1.0] * 9, [], 0),
    ("kto", {}, [1.0] * 9, [], 0), ("kto", {}, [1.0, 1.0, 0.0, 0.5, 0.5, 0.5, 1.0, 0.0, 0.5], [2], 2),
    ("kto", {"threshold": 0.5}, [1.0] * 9, [3], 8), ("kto", {}, REWARDS, range(9), 0),
    ("sft", {"online": True, "best": 2}, REWARDS, [4], 6), ("sft", {"online": True, "min_reward": 0.9}, REWARDS, [], 2),
])  # fmt: skip
def test_only_what_differs_is_compared_and_only_the_best_imitated(name, options, rewards, missing, left):
    assert len(learned(made(name, **options), scored(rewards, missing))[1]) == left


@pytest.mark.parametrize("rubbish", [math.nan, math.inf])
def test_a_kl_in_the_reward_is_taken_off_every_token(rubbish):
    mask, reward = mask_of(), torch.tensor([5.0, -0.5, 1.0, 2.0])
    kl = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0))
    algorithm = made("ppo", kl={"route": "reward", "coef": 0.1}, reward_clip=1.0)
    rewards, coef, metrics = shape(algorithm, annotated(algorithm, judged(reward, mask), kl=spoil(kl, mask, rubbish)))
    sums = torch.tensor([1.0, -0.5, 0.0, 1.0]) - 0.1 * kl.masked_fill(~mask, 0).sum(1)
    torch.testing.assert_close(rewards.actions.sum(1), sums)
    torch.testing.assert_close(rewards.reward[mask.any(1)], sums[mask.any(1)])
    assert not rewards.actions[~mask].any()
    assert coef == 0.0  # nothing is left for the loss
    assert metrics["critic/rewards/clip_ratio"] == 0.5
    algorithm = made("grpo", kl=KL)
    rewards, coef, _ = shape(algorithm, annotated(algorithm, judged(reward, mask), kl=torch.ones(mask.shape)))
    assert torch.equal(rewards.reward, reward)
    assert coef == 0.1


def test_a_reward_of_a_turn_counts_from_its_end_back_if_asked():
    mask = torch.tensor([[1, 1, 0, 1, 0]]).bool()
    one = replace(judged(torch.tensor([3.0]), mask), turn_rewards=torch.tensor([[1.0, 0.5]]))
    for turns, expected in ((True, [[3.0, 3.0, 0, 2.0, 0]]), (False, [[3.0, 3.0, 0, 3.0, 0]])):
        algorithm = made("reinforce", whiten=False, turn_rewards=turns)
        assert algorithm.credit(annotated(algorithm, one))[0].advantage.tolist() == expected


def test_remax_compares_with_the_greedy_response():
    mask, greedy = mask_of([2, 1, 2], 2), torch.tensor([0.5, 1.0, torch.nan])
    algorithm, one = made("remax"), judged(torch.ones(3), mask, greedy=greedy)
    found = advantages_of(algorithm, shape(algorithm, annotated(algorithm, one))[0])
    assert found.returns.tolist() == [[1, 1], [1, 0], [0, 0]]
    batch, metrics = algorithm.credit(annotated(algorithm, one))
    assert batch.advantage.tolist() == [[0.5, 0.5], [0, 0]]  # what has no greedy response is not learned from
    assert metrics["critic/score/mean"] == 1.0


def test_rewards_and_advantages_may_have_another_bound_below():
    algorithm = made("grpo", reward_clip=0.7, reward_clip_low=0.1, advantage_clip=0.6, advantage_clip_low=-0.25)
    _, batch, metrics = learned(algorithm)
    assert metrics["critic/rewards/max"] == pytest.approx(0.7)
    assert metrics["critic/rewards/min"] == pytest.approx(0.1)
    assert float(batch.advantage[batch.mask].max()) == pytest.approx(0.6)
    assert float(batch.advantage[batch.mask].min()) == pytest.approx(-0.25)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("per", ["batch", "sequence"])
def test_tokens_of_high_entropy_are_chosen_and_may_alone_be_counted(per, mode):
    options = {"high_entropy_fraction": 0.25, "high_entropy_per": per, "loss_agg_mode": mode}
    roles, batch, metrics = learned(made("grpo", **options))
    entropy, chosen = roles.policy(batch.trace).entropy.detach(), batch.weight > 0
    groups = [(chosen, batch.mask)] if per == "batch" else zip(chosen, batch.mask, strict=True)
    for row, (some, mask) in enumerate(groups):
        values = entropy if per == "batch" else entropy[row]
        assert some.sum() == max(1, int(0.25 * int(mask.sum())))
        assert (mask & ~some).sum() == 0 or values[some].min() >= values[mask & ~some].max()
    assert metrics["actor/high_entropy_ratio"] == pytest.approx(float(chosen.sum() / batch.mask.sum()))
    selected = made("grpo", **options, high_entropy_count="selected")
    _, again, _ = learned(selected)
    assert torch.equal(again.weight > 0, chosen)
    values = torch.randn(chosen.shape, generator=torch.Generator().manual_seed(0)) * chosen
    found = selected.total(values * again.weight, again) / selected.size(again)
    expected = values.sum() / chosen.sum()
    if mode == "seq-mean-token-mean":
        expected = (values.sum(1) / chosen.sum(1).clamp_min(1)).mean()
    torch.testing.assert_close(found, expected)


def test_tokens_of_high_covariance_are_left_out_or_held():
    _, batch, metrics = learned(made("clip_cov", cov_low=0.1, cov_high=50.0, cov_fraction=0.1))
    cov, out = covariance(batch.old, batch.advantage, batch.mask), batch.mask & (batch.weight == 0)
    assert out.sum() == int(0.1 * int(batch.mask.sum())) < (cov > 0.1).sum()
    assert metrics["actor/cov_fraction"] == pytest.approx(float(out.sum() / batch.mask.sum()))
    assert cov[out].min() > 0.1
    _, nothing, _ = learned(made("clip_cov", cov_low=1e6, cov_high=1e7))
    assert (nothing.weight[nothing.mask] == 1).all()
    algorithm = made("kl_cov", cov_fraction=0.1, cov_coef=0.7)
    roles, batch, _ = learned(algorithm)
    held = batch.held > 0
    assert batch.held.unique().tolist() == [0.0, pytest.approx(0.7)]
    assert cov[held].min() >= cov[batch.mask & ~held].max()
    roles.step()
    free = replace(batch, held=torch.zeros_like(batch.held))
    assert (gradient(algorithm, batch, roles)[1] - gradient(algorithm, free, roles)[1]).abs().max() > 1e-6


def test_old_log_probs_are_the_samplers_only_if_it_agrees():
    """A correction weighs what they disagree about, within its bounds, or rejects it."""
    bench = Bench(made("grpo"), mini=6)
    one = bench.collect()
    wrong = replace(one, trace=replace(one.trace, logprob=one.trace.logprob - 0.5))
    assert bench.workers.annotate(one).metrics["old_policy/recomputed"] == 0
    again = bench.workers.annotate(wrong)
    assert again.metrics["old_policy/recomputed"] == 1
    assert again.metrics["rollout_corr/logprob_abs_diff_mean"] == pytest.approx(0.5, abs=1e-3)
    torch.testing.assert_close(again.old, one.trace.logprob, rtol=1e-4, atol=1e-5)
    bench.algorithm = made("grpo", rollout_correction={"upper": 1.2})
    batch, metrics = bench.algorithm.credit(bench.algorithm.annotate(wrong, bench.roles))
    assert batch.weight[batch.mask].unique().tolist() == [pytest.approx(1.2)]
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(1.2)
    rejecting = made("grpo", rollout_correction={"weights": "none", "reject": "seq_mean_k1", "reject_above": 1.1})
    assert len(rejecting.credit(rejecting.annotate(wrong, bench.roles))[0]) == 0
    bench = Bench(made("grpo"))  # what older weights sampled is scored anew
    stale = bench.collect(2)
    bench.train()
    metrics = bench.workers.annotate(stale).metrics
    assert metrics["old_policy/recomputed"] == 1
    assert metrics["rollout_corr/logprob_abs_diff_mean"] > 1e-6


@pytest.mark.parametrize(("name", "options"), [
    ("grpo", {"kl": {"controller": "adaptive", "target": 0.1, "horizon": 50, "coef": 0.1}, "reward_norm": True}),
    ("mpo", {}),
])  # fmt: skip
def test_what_a_run_remembers_goes_on_where_it_was(name, options):
    algorithm = made(name, **options)

    def seen(roles, update):
        _, batch, metrics = learned(algorithm, scored([reward * update for reward in REWARDS]), roles)
        return metrics, (batch.point if name == "mpo" else batch.advantage).tolist()

    whole, resumed, alone = (Tables(algorithm.make_memory()) for _ in range(3))
    seen(whole, 1)
    whole.step()
    resumed.logprob = whole.logprob
    resumed.memory.load_state_dict(whole.memory.state_dict())
    assert seen(whole, 2) == seen(resumed, 2) != seen(alone, 2)
