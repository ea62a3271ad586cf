"""Preferences between whole responses: which are compared, what the losses are, and what changes nothing."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import logsigmoid

from burnish.algorithms.language.dpo import DPO, IPO, MPO, SimPO
from burnish.algorithms.language.kto import KTO
from burnish.batches.responses import mismatched
from burnish.language.logprobs import response_logprobs
from tests.support.response_batches import REWARDS, Bench, answered, given, reordered

BEST, WORST = [0, 4, 8], [1, 3, 7]  # of the groups of REWARDS
LOSSES = [
    DPO(beta=0.3),
    DPO(label_smoothing=0.1),
    DPO(average_log_prob=True, reference_free=True),
    DPO(rpo_alpha=0.5),
    IPO(),
    IPO(average_log_prob=False, rpo_alpha=1.0),
    SimPO(),
    MPO(),
    MPO(average_log_prob=True, quality_weight=0.0),
    KTO(),
    KTO(threshold=0.4, average_log_prob=True, undesirable_weight=2.0),
    KTO(reference_point="zero"),
    KTO(reference_point="opposite"),
]


def named(algorithm):
    return f"{algorithm.name}-{LOSSES.index(algorithm)}"


def test_dpo_is_the_formula_on_the_best_and_the_worst_of_each_group():
    bench = Bench(DPO(beta=0.3, label_smoothing=0.1, rpo_alpha=0.5))
    sampled = answered(bench.model)
    batch, metrics = bench.learned(sampled)
    loss, gradient = bench.gradient(batch)
    bench.zero_grad()
    (won, won_before), (lost, lost_before) = bench.sums(sampled, BEST), bench.sums(sampled, WORST)
    margin = 0.3 * ((won - won_before) - (lost - lost_before))
    lengths = sampled.trace.mask[BEST].sum(1)
    expected = (-0.9 * logsigmoid(margin) - 0.1 * logsigmoid(-margin) - 0.5 * won / lengths).mean()
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), abs=1e-6)
    torch.testing.assert_close(gradient, bench.flat_gradient(), rtol=1e-4, atol=1e-6)
    assert metrics["train/pairs"] == 3
    assert metrics["train/pair_margin"] == pytest.approx((1 + 1 + 0.8) / 3)


def test_simpo_is_the_formula_on_means_over_tokens():
    bench = Bench(SimPO(beta=2.5, target_margin=0.5))
    sampled = answered(bench.model, [1.0, 0.0, 0.5] * 3, lengths=[4, 1, 3, 5, 2, 4, 3, 1, 2])
    loss, gradient = bench.gradient(bench.learned(sampled)[0])
    bench.zero_grad()
    best, worst = [0, 3, 6], [1, 4, 7]
    (won, _), (lost, _) = bench.sums(sampled, best), bench.sums(sampled, worst)
    lengths = sampled.trace.mask.sum(1)
    expected = -logsigmoid(2.5 * (won / lengths[best] - lost / lengths[worst]) - 0.5).mean()
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), abs=1e-6)
    torch.testing.assert_close(gradient, bench.flat_gradient(), rtol=1e-4, atol=1e-6)


def test_mpo_is_the_sum_of_three_losses_with_a_shift_that_is_remembered():
    bench = Bench(MPO(beta=0.3))
    sampled = answered(bench.model)
    batch, _ = bench.learned(sampled)
    loss, gradient = bench.gradient(batch)
    bench.zero_grad()
    (won, won_before), (lost, lost_before) = bench.sums(sampled, BEST), bench.sums(sampled, WORST)
    good, bad = 0.3 * (won - won_before), 0.3 * (lost - lost_before)
    shift = torch.cat([good, bad]).detach().mean()
    assert batch.point.tolist() == pytest.approx([float(shift)] * 3, abs=1e-5)
    quality = -logsigmoid(good - shift) - logsigmoid(shift - bad)
    expected = (-0.8 * logsigmoid(good - bad) + 0.2 * quality - won / sampled.trace.mask[BEST].sum(1)).mean()
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    torch.testing.assert_close(gradient, bench.flat_gradient(), rtol=1e-4, atol=1e-6)
    memory = bench.roles.memory
    assert memory["rewards"].known.count == 6
    bench.learned(sampled)
    assert memory["rewards"].known.count == 12


def test_ipo_is_the_formula_on_means_over_tokens():
    bench = Bench(IPO(beta=0.2))
    sampled = answered(bench.model, [1.0, 0.0, 0.5] * 3, lengths=[4, 1, 3, 5, 2, 4, 3, 1, 2])
    loss, gradient = bench.gradient(bench.learned(sampled)[0])
    bench.zero_grad()
    count = sampled.trace.mask.sum(1)
    sides = []
    for rows in ([0, 3, 6], [1, 4, 7]):
        ours, theirs = bench.sums(sampled, rows)
        sides.append((ours - theirs) / count[rows])
    expected = (sides[0] - sides[1] - 1 / 0.4).square().mean()
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    torch.testing.assert_close(gradient, bench.flat_gradient(), rtol=1e-4, atol=1e-5)


def test_kto_is_the_formula_from_its_reference_point():
    bench = Bench(KTO(beta=0.3, desirable_weight=1.5))
    sampled = answered(bench.model)
    batch, metrics = bench.learned(sampled)
    loss, gradient = bench.gradient(batch)
    good, bad = [0, 4, 5, 8], [1, 3, 6, 7]  # row 2 is at the mean of its group
    rows = sorted(good + bad)
    moved = mismatched(sampled.trace.select(torch.tensor(rows)))
    with torch.no_grad():
        drift = (bench.roles.policy(moved).logprob - bench.roles.reference(moved).logprob).sum(1).mean().clamp_min(0)
    bench.zero_grad()
    (won, won_before), (lost, lost_before) = bench.sums(sampled, good), bench.sums(sampled, bad)
    expected = (
        1.5 * (1 - (0.3 * (won - won_before - drift)).sigmoid()).sum()
        + (1 - (0.3 * (drift - lost + lost_before)).sigmoid()).sum()
    ) / 8
    expected.backward()
    assert metrics["actor/reference_point"] == pytest.approx(float(drift), abs=1e-5)
    assert metrics["train/desirable_ratio"] == 0.5
    assert loss == pytest.approx(float(expected.detach()), abs=1e-6)
    torch.testing.assert_close(gradient, bench.flat_gradient(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", LOSSES, ids=named)
def test_neither_cuts_nor_order_change_the_gradient(algorithm):
    whole, cut = Bench(algorithm), Bench(algorithm, budget=1)
    sampled = answered(whole.model)
    batch, metrics = whole.learned(sampled)
    loss, gradient = whole.gradient(batch)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0
    again, others = cut.learned(reordered(sampled, [6, 7, 8, 3, 4, 5, 0, 1, 2]))
    together = again.answers.members
    parts = list(cut.algorithm.micro_batches(again, 1))
    assert len(parts) == len(again)
    assert all(len(part.answers.trace) == together for part in parts)  # a pair is never parted
    if (
        algorithm.name != "kto" or algorithm.reference_point != "mismatched"
    ):  # its mismatches follow the order of the batch
        other_loss, other = cut.gradient(again)
        assert other_loss == pytest.approx(loss, abs=1e-5)
        torch.testing.assert_close(other, gradient, rtol=1e-3, atol=1e-5)
        assert others == pytest.approx(metrics)
    _, same = cut.gradient(cut.learned(sampled)[0])
    torch.testing.assert_close(same, gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("algorithm", [DPO(), IPO(), KTO()], ids=lambda one: one.name)
def test_responses_from_a_file_are_learned_as_sampled_ones_are(algorithm):
    online, offline = Bench(algorithm), Bench(replace(algorithm, online=False))
    sampled = answered(online.model)
    if algorithm.name == "kto":
        rows = [0, 1, 3, 4, 5, 6, 7, 8]
        written = given(sampled, rows, 1, [REWARDS[row] > 0.45 for row in rows])
    else:
        written = given(sampled, [row for pair in zip(BEST, WORST, strict=True) for row in pair], 2)
    expected, gradient = online.gradient(online.learned(sampled)[0])
    batch, metrics = offline.learned(written)
    loss, same = offline.gradient(batch)
    assert loss == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(same, gradient, rtol=1e-4, atol=1e-6)
    assert "critic/rewards/mean" not in metrics


@pytest.mark.parametrize(
    ("algorithm", "rewards", "missing", "left"),
    [
        (DPO(), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.6], [], 1),
        (DPO(min_margin=0.5), [1.0, 0.5, 0.5, 1.0, 0.4, 0.5, 0.5, 0.5, 0.6], [], 1),
        (DPO(), REWARDS, [0, 2], 2),
        (DPO(), REWARDS, range(9), 0),
        (IPO(), [1.0] * 9, [], 0),
        (KTO(), [1.0] * 9, [], 0),
        (KTO(), [1.0, 1.0, 0.0, 0.5, 0.5, 0.5, 1.0, 0.0, 0.5], [2], 2),
        (KTO(threshold=0.5), [1.0] * 9, [3], 8),
        (KTO(), REWARDS, range(9), 0),
    ],
)
def test_only_what_differs_is_compared(algorithm, rewards, missing, left):
    bench = Bench(algorithm)
    batch, _ = bench.learned(answered(bench.model, rewards, missing))
    assert len(batch) == left


@pytest.mark.parametrize("algorithm", [DPO(), IPO(), KTO()], ids=lambda one: one.name)
def test_an_update_without_judgements_is_skipped_and_counted(algorithm):
    bench = Bench(algorithm)
    before = bench.weights()
    batch, metrics = bench.learned(answered(bench.model, missing=range(9)))
    updated = bench.workers.update(batch, 1)
    assert updated["actor/skipped_updates"] == 1
    assert torch.equal(bench.weights(), before)
    assert metrics["train/judged" if algorithm.name == "kto" else "train/pairs"] == 0


def test_an_update_widens_the_margin_and_reports_it():
    bench = Bench(DPO(beta=0.3), lr=1e-3)
    sampled = answered(bench.model)
    batch, _ = bench.learned(sampled)
    first, second = (bench.workers.update(batch, update) for update in (1, 2))
    assert second["rewards/margins"] > first["rewards/margins"]
    assert second["actor/dpo_loss"] < first["actor/dpo_loss"]
    assert first["rewards/margins"] == pytest.approx(first["rewards/chosen"] - first["rewards/rejected"], abs=1e-5)


def test_values_of_judged_responses_are_means_over_their_own_kind():
    bench = Bench(KTO(threshold=0.4))
    sampled = answered(bench.model)
    batch, _ = bench.learned(sampled)
    metrics = bench.workers.update(batch, 1)
    fresh = Bench(KTO())
    with torch.no_grad():
        ours, theirs = fresh.sums(sampled, [row for row in range(9) if REWARDS[row] >= 0.4])
    assert metrics["rewards/chosen"] == pytest.approx(0.1 * float((ours - theirs).mean()), abs=1e-5)


def test_a_mismatched_response_stands_behind_the_next_prompt():
    bench = Bench(KTO())
    trace = answered(bench.model).trace
    moved = mismatched(trace)
    assert moved.prompts.index.tolist() == [1, 1, 1, 2, 2, 2, 0, 0, 0]
    next_position = trace.prompts.table.next_position
    assert moved.positions[0, :, 0].tolist() == [next_position[1]] * 3
    assert moved.positions[6, :, 2].tolist() == [next_position[0] + 2] * 3
    assert torch.equal(moved.ids, trace.ids)
    with torch.no_grad():  # the layouts take positions from different places
        padded, shared = (
            response_logprobs(bench.model, bench.model.network, moved, temperature=1.0, layout=layout).logprob
            for layout in ("padded", "shared")
        )
    torch.testing.assert_close(padded, shared, rtol=1e-4, atol=1e-5)
    assert len(mismatched(trace.select([0, 1, 2]))) == 0


def test_without_another_prompt_the_reference_point_is_zero():
    bench = Bench(KTO())
    _, metrics = bench.learned(answered(bench.model, [1.0, 0.0], index=[1, 1], lengths=[2, 3]))
    assert metrics["actor/reference_point"] == 0


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (DPO, {"online": False, "min_margin": 0.1}, "min_margin is never read"),
        (IPO, {"label_smoothing": 0.1}, "label_smoothing"),
        (DPO, {"label_smoothing": 0.5}, "label_smoothing"),
        (KTO, {"online": False, "threshold": 0.0}, "threshold is 0, but online is false"),
    ],
)
def test_an_option_that_nothing_reads_is_refused(kind, options, message):
    with pytest.raises(ValidationError, match=message):
        kind(**options)


def test_what_is_needed_follows_from_the_options():
    assert DPO().needs().data == "prompts"
    assert DPO().needs().groups
    assert DPO(online=False).needs().data == "preferences"
    assert not DPO(reference_free=True).needs().reference
    assert KTO(online=False).needs().data == "judgements"
    assert not KTO(threshold=0.5).needs().groups


@pytest.mark.parametrize(
    ("algorithm", "changed"),
    [
        (DPO(), {"beta": 0.5}),
        (DPO(), {"label_smoothing": 0.2}),
        (DPO(), {"average_log_prob": True}),
        (DPO(), {"reference_free": True}),
        (DPO(), {"rpo_alpha": 0.5}),
        (DPO(), {"min_margin": 0.9}),
        (IPO(), {"beta": 0.5}),
        (IPO(), {"average_log_prob": False}),
        (IPO(), {"rpo_alpha": 0.5}),
        (KTO(), {"beta": 0.5}),
        (KTO(), {"average_log_prob": True}),
        (KTO(), {"threshold": 0.05}),
        (KTO(), {"desirable_weight": 2.0}),
        (KTO(), {"undesirable_weight": 2.0}),
        (KTO(), {"reference_point": "zero"}),
        (KTO(), {"reference_point": "opposite"}),
    ],
    ids=lambda one: one.name if hasattr(one, "name") else "-".join(one),
)
def test_every_option_changes_the_gradient(algorithm, changed):
    gradients = []
    for one in (algorithm, replace(algorithm, **changed)):
        bench = Bench(one)
        gradients.append(bench.gradient(bench.learned(answered(bench.model))[0])[1])
    assert (gradients[0] - gradients[1]).norm() > 1e-4 * gradients[0].norm()


def test_no_option_is_forgotten_above():
    tested = test_every_option_changes_the_gradient.pytestmark[0].args[1]
    for kind in (DPO, IPO, KTO):
        own = {field.name for field in fields(kind)} - {"online"}
        seen = {name for one, changed in tested for name in changed if isinstance(one, kind)}
        shared = {"min_margin", "reference_free"} if kind is IPO else set()  # they are DPO's very own
        assert own <= seen | shared, kind.name
