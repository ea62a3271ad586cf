"""Clipped ratios and the other surrogates: published numbers, closed forms, gradients, and what must not break them."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from burnish.diffusion.steps import Transition
from burnish.registry import lookup
from burnish.rl import objectives, surrogates
from burnish.rl.importance import rejection
from tests.conformance import case, cases
from tests.support.token_losses import aggregate, assert_gradient, batch, mask_of, spoil

MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
CONSTANT = dict.fromkeys(MODES[:3]) | {MODES[3]: 10.0}


def all_of(values) -> torch.Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def published(given: dict):
    """The published form: advantages clipped to +-5, one clip range."""
    logprob = torch.as_tensor(given["log_prob"]).clone().requires_grad_()
    advantage = torch.as_tensor(given["advantages"])
    limit = given.get("adv_clip_max", 5.0)
    clip = given.get("clip_ratio", given.get("clip_range"))
    old = torch.as_tensor(given["old_log_prob"])
    made = lookup("flow algorithm", "flow_grpo")(clip=clip, advantage_clip=limit)
    bounded, _ = made.clipped(advantage[:, None], all_of(logprob)[:, None])
    one = (value[:, None] for value in (logprob, old))
    loss, metrics = made.objective(*one, bounded, all_of(bounded), torch.ones_like(bounded))
    ratio = metrics["actor/ratio_mean"][:, 0]
    return logprob, surrogates.Surrogate(loss[:, 0], ratio, {name: value[:, 0] for name, value in metrics.items()})


@pytest.mark.parametrize("c", cases("losses", "loss/flow_grpo/"), ids=lambda c: c.id)
def test_flow_clip(c):
    logprob, found = published(c.inputs)
    c.close(found.loss.mean(), c.expected["loss"])
    (gradient,) = torch.autograd.grad(found.loss.mean(), logprob)
    c.close(gradient, c.expected["grad_log_prob"])
    for name in ("actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_higher", "actor/pg_clipfrac_lower"):
        c.close(found.metrics[name].mean(), c.expected["metrics"][name])
    c.close(found.ratio.mean(), c.expected["metrics"]["actor/ratio_mean"])
    c.close(found.ratio.std(), c.expected["metrics"]["actor/ratio_std"])


def test_a_rejected_step_leaves_the_denominator():
    """verl-omni still divides by all steps."""
    c = case("correction", "total_loss/flow_grpo_bypass_rs")
    given = dict(c.inputs)
    old, logprob = given["old_log_prob(=rollout)"], given["log_prob"]
    lower, upper = (float(bound) for bound in given["threshold"].split("_"))
    kept, _ = rejection(logprob[:, None] - old[:, None], torch.ones(len(old), 1).bool(), rule=given["rollout_rs"],
                        upper=upper, lower=lower)  # fmt: skip
    kept = kept[:, 0]
    _, found = published(given | {"old_log_prob": old})
    c.close((found.loss * kept).mean(), c.expected["loss"])
    for name in found.metrics.keys() & c.expected["metrics"].keys():
        c.close(found.metrics[name].mean(), c.expected["metrics"][name])
    assert kept.tolist() == [True, False, True, True]
    # what is required: three surrogates.terms; the ratio is to the sampler already, so no weight comes on top
    torch.testing.assert_close(found.loss[kept].mean(), c.expected["loss"] * 4 / 3)


def test_dual_clip_bounds_what_a_bad_token_costs():
    ratio = torch.tensor([[1.1, 5.0, 50.0]], dtype=torch.float64)
    advantage, mask = -torch.ones_like(ratio), mask_of([3], 3)
    found = objectives.ppo_clip(ratio.log(), torch.zeros_like(ratio), advantage, mask, clip=0.2, dual_clip=3.0)
    torch.testing.assert_close(found.loss, torch.tensor([[1.1, 3.0, 3.0]], dtype=torch.float64))
    assert found.metrics["actor/pg_clipfrac_lower"].tolist() == [[0, 1, 1]]
    same = objectives.ppo_clip(torch.zeros(1, 3), torch.zeros(1, 3), advantage, mask, dual_clip=1.0)
    assert not same.metrics["actor/pg_clipfrac_lower"].any()


@pytest.mark.parametrize(("mode", "expected"), zip(MODES, [21 / 6, (2 + 4.5 + 6) / 3, 21 / 3, 21 / 30], strict=True))
def test_closed_forms(mode, expected):
    """Three sequences of 3, 2 and 1 tokens that count, with losses 1 to 6, and one without a token."""
    mask = mask_of([3, 2, 1, 0], 3)
    values = torch.full((4, 3), torch.nan).masked_scatter(mask, torch.arange(1.0, 7.0))
    assert aggregate(values, mask, mode, CONSTANT[mode]).item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [1, 3])
def test_the_cut_into_micro_batches_is_not_seen(mode, rows):
    torch.manual_seed(0)
    mask = torch.rand(7, 6) < 0.5
    mask[2] = False
    values = torch.randn(7, 6, dtype=torch.float64)
    total = sum(
        (part * surrogates.weights(chosen, mode, CONSTANT[mode])).sum()
        for part, chosen in zip(values.split(rows), mask.split(rows), strict=True)
    )
    count = sum(int(surrogates.terms(chosen, mode)) for chosen in mask.split(rows))
    assert count == int(surrogates.terms(mask, mode))
    torch.testing.assert_close(total / count, aggregate(values, mask, mode, CONSTANT[mode]), rtol=1e-6, atol=1e-9)


def test_a_batch_that_says_nothing_is_zero():
    for mode in MODES:
        for shape in ((2, 3), (2, 0), (0, 3)):
            mask = torch.zeros(shape, dtype=torch.bool)
            assert int(surrogates.terms(mask, mode)) == 0
            assert aggregate(torch.full(shape, torch.nan), mask, mode, CONSTANT[mode]).item() == 0


GRPO = "seq-mean-token-mean"
LOSSES = {
    "ppo_clip": lambda *a: objectives.ppo_clip(*a, clip=0.2, clip_high=0.28),
    "dual_clip": lambda *a: objectives.ppo_clip(*a, clip=0.2, clip_high=0.28, dual_clip=1.4),
    "flow_clip": lambda *a: objectives.flow_clip(*a, clip=0.2, clip_high=0.28),
    "kl_trust_region": lambda *a: surrogates.kl_trust_region(*a, torch.where(a[3], 0.1, torch.inf), threshold=0.05),
    "gspo": lambda *a: objectives.gspo(*a, clip=0.1, clip_high=0.15),
    "gmpo": lambda *a: objectives.gmpo(*a, clip=0.2, clip_high=0.2),
    "cispo": lambda *a: objectives.cispo(*a, clip=1.0, clip_high=0.2),
    "sapo": lambda *a: objectives.sapo(*a, tau_pos=1.0, tau_neg=1.05),
    "cpgd": lambda *a: objectives.cpgd(*a, clip=0.2, clip_high=0.2),
    "cpgd_drift": lambda *a: objectives.cpgd(*a, clip=0.2, clip_high=0.2, drift_coef=0.5),
    "ratio": objectives.plain_ratio, "reinforce": objectives.reinforce,
}  # fmt: skip
# gradient of their own value
VALUES = ["ppo_clip", "dual_clip", "flow_clip", "gmpo", "sapo", "cpgd", "ratio", "reinforce"]
every = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


@pytest.mark.parametrize("name", VALUES)
def test_gradients_are_those_of_the_value(name):
    logprob, old, advantage, mask = batch()
    assert_gradient(lambda at: aggregate(LOSSES[name](at, old, advantage, mask).loss, mask, GRPO), logprob)


def test_what_lies_on_a_bound_of_its_own_side_is_not_clipped():
    ratio = torch.tensor([[1.6, 2.0, 2.1, 0.5, 0.4]], dtype=torch.float64)
    given = ratio.log(), torch.zeros_like(ratio), torch.ones_like(ratio), mask_of([5], 5)
    found = objectives.flow_clip(*given, clip=0.5, clip_high=1.0).metrics
    parts = [found[f"actor/pg_clipfrac{part}"].tolist() for part in ("_higher", "_lower", "")]
    assert parts == [[[0, 0, 1, 0, 0]], [[0, 0, 0, 0, 1]], [[0, 0, 1, 0, 1]]]
    assert objectives.cispo(*given, clip=0.5, clip_high=1.0).metrics["actor/pg_clipfrac"].tolist() == parts[2]


def test_gspo_is_the_clipped_ratio_of_the_sequence():
    """The token form has the value and the gradient of the sequence's own objective."""
    logprob, old, advantage, mask = batch()
    leaf = logprob.clone().requires_grad_()
    total = aggregate(LOSSES["gspo"](leaf, old, advantage, mask).loss, mask, GRPO)

    def objective(at):
        ratio = surrogates.sequence_mean(surrogates.log_ratio(at, old, mask), mask).exp()
        bounded = ratio.clamp(1 - 0.1, 1 + 0.15)
        each = torch.maximum(-advantage[:, 0] * ratio, -advantage[:, 0] * bounded)
        return each[mask.any(-1)].mean()

    torch.testing.assert_close(total, objective(leaf))
    other = logprob.clone().requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(total, leaf)[0], torch.autograd.grad(objective(other), other)[0], rtol=1e-6, atol=1e-9
    )


def test_cispo_weighs_the_policy_gradient_and_drops_no_token():
    logprob, old, advantage, mask = batch(1, spread=1.0)
    leaf = logprob.clone().requires_grad_()
    found = LOSSES["cispo"](leaf, old, advantage, mask)
    weight = (logprob - old).exp().clamp(max=1.2)
    expected = torch.where(mask, -weight * advantage, 0.0)
    torch.testing.assert_close(torch.autograd.grad(found.loss.sum(), leaf)[0], expected)
    assert found.metrics["actor/pg_clipfrac"].sum() > 0


def test_gmpo_is_the_geometric_mean_of_ratios_clipped_where_it_pushes():
    ratio = torch.tensor([[1.5, 0.5], [1.5, 0.5]], dtype=torch.float64)
    advantage = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    loss = objectives.gmpo(
        ratio.log(), torch.zeros(2, 2), advantage, mask_of([2, 2], 2), clip=math.log(1.6), clip_high=math.log(1.2)
    ).loss
    torch.testing.assert_close(loss[0, 0].item(), -math.sqrt(1.2 * 0.5))
    torch.testing.assert_close(loss[1, 0].item(), math.sqrt(1.5 / 1.6))


def test_sapo_reports_whose_gradient_its_gate_halves():
    """4 g (1 - g) is a half where tau (ratio - 1) is +-1.763."""
    ratio, advantage = torch.tensor([[2.7, 2.8, 0.1, 0.13]]), torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    found = objectives.sapo(ratio.log(), torch.zeros(1, 4), advantage, mask_of([4], 4), tau_pos=1.0, tau_neg=2.0)
    assert found.metrics["actor/pg_clipfrac"].tolist() == [[0, 1, 1, 0]]


def test_cpgd_drift_pulls_back_no_harder_than_its_clip():
    """Without an advantage only the drift is left: (ratio - 1), at most 0.2, per log-prob."""
    difference = torch.tensor([[3.0, 0.1, -0.5]], dtype=torch.float64)
    logprob, nothing, mask = difference.clone().requires_grad_(), torch.zeros_like(difference), mask_of([3], 3)
    found = objectives.cpgd(logprob, nothing, nothing, mask, clip=0.2, drift_coef=0.5)
    estimate = difference.exp() - 1 - difference
    torch.testing.assert_close(found.loss, 0.5 * estimate)
    torch.testing.assert_close(found.metrics["actor/policy_drift"], estimate)
    expected = 0.5 * (difference.exp() - 1).clamp(max=0.2)
    torch.testing.assert_close(torch.autograd.grad(found.loss.sum(), logprob)[0], expected)


@every
def test_on_policy_every_loss_is_the_policy_gradient(loss):
    """At ratio 1 the gradient is -advantage, or its mean over the sequence for losses of sequences; nothing is clipped,
    and what is reported has no gradient."""
    logprob, _, advantage, mask = batch()
    leaf = logprob.clone().requires_grad_()
    found = loss(leaf, logprob, advantage, mask)
    total = aggregate(found.loss, mask, GRPO)
    assert not any(value.any() for name, value in found.metrics.items() if "pg_clipfrac" in name)
    assert not any(value.requires_grad for value in (found.ratio, *found.metrics.values()) if value is not None)
    plain = logprob.clone().requires_grad_()
    expected = aggregate(objectives.reinforce(plain, logprob, advantage, mask).loss, mask, GRPO)
    torch.testing.assert_close(torch.autograd.grad(total, leaf)[0], torch.autograd.grad(expected, plain)[0])


@every
@pytest.mark.parametrize("rubbish", [math.nan, -math.inf, 1e30])
def test_rubbish_in_padding_other_rows_and_the_width_change_nothing(loss, rubbish):
    logprob, old, advantage, mask = batch()
    leaf, spoilt = logprob.clone().requires_grad_(), spoil(logprob, mask, rubbish).requires_grad_()
    clean = loss(leaf, old, advantage, mask)
    got = loss(spoilt, spoil(old, mask, rubbish), spoil(advantage, mask, rubbish), mask)
    torch.testing.assert_close(
        (got.loss, got.ratio, got.metrics), (clean.loss, clean.ratio, clean.metrics), rtol=0, atol=0
    )
    gradients = torch.autograd.grad(clean.loss.sum(), leaf)[0], torch.autograd.grad(got.loss.sum(), spoilt)[0]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    for tensor in (got.loss, got.ratio, gradients[1], *got.metrics.values()):
        assert tensor is None or not tensor[~mask].any()
    for row in range(len(mask)):
        width = max(int(mask[row].sum()), 1)
        alone = loss(*[tensor[row : row + 1, :width] for tensor in (logprob, old, advantage, mask)]).loss
        torch.testing.assert_close(alone, clean.loss.detach()[row : row + 1, :width])


@every
def test_a_wild_ratio_stays_finite_and_half_precision_is_raised_before_anything_is_subtracted(loss):
    _, old, advantage, mask = batch(dtype=torch.float32)
    for far in (1e3, -1e3):
        logprob = (old + far).requires_grad_()
        for sign in (1, -1):
            total = loss(logprob, old, sign * advantage.abs(), mask).loss.sum()
            assert total.isfinite()
            assert torch.autograd.grad(total, logprob)[0].isfinite().all()
    logprob, old, advantage, mask = [t.bfloat16() if t.is_floating_point() else t for t in batch()]
    got = loss(logprob, old, advantage, mask).loss
    torch.testing.assert_close(got, loss(logprob.float(), old.float(), advantage.float(), mask).loss)


def objective_of(made: Any, given: dict, advantage: torch.Tensor) -> tuple[torch.Tensor, dict, list[torch.Tensor]]:
    """Of terms [M] of one step each: the mean loss, what is reported, and the log-probs and means that learn."""
    logprob, mean = leaves = [given[name].clone().requires_grad_() for name in ("log_prob", "prev_sample_mean")]
    terms = SimpleNamespace(
        advantage=advantage, weight=torch.ones(len(advantage)), by_sample=lambda value: value[:, None],
        by_term=lambda value: value[:, 0], mask=lambda device: torch.ones(len(advantage), 1, dtype=torch.bool),
    )  # fmt: skip
    step = Transition(mean, given["std_dev_t"].flatten() * given["sqrt_dt"], given["sqrt_dt"].square())
    before = given["old_log_prob"], given["old_prev_sample_mean"]
    loss, values = made.step_objective(terms, step, logprob, *before)
    return loss.mean(), values, leaves


@pytest.mark.parametrize("c", cases("losses", "loss/grpo_guard/"), ids=lambda c: c.id)
def test_guard_of_verl_omni(c):
    """It takes the mean of std and step over the batch, which are equal in all of its rows here."""
    given, expected = c.inputs, c.expected
    made = lookup("flow algorithm", "grpo_guard")(clip=given["clip_ratio"], advantage_clip=given["adv_clip_max"])
    advantage, _ = made.clipped(given["advantages"], all_of(given["log_prob"]))
    total, values, leaves = objective_of(made, given, advantage)
    ratio = values["actor/ratio_mean"]
    c.close(total, expected["loss"])
    by_logprob, by_mean = torch.autograd.grad(total, leaves)
    c.close(by_logprob, expected["grad_log_prob"])
    c.close(by_mean, expected["grad_prev_sample_mean"])
    for name in ("actor/pg_clipfrac", "actor/pg_clipfrac_higher", "actor/pg_clipfrac_lower"):
        c.close(values[name].mean(), expected["metrics"][name])
    c.close((given["old_log_prob"] - leaves[0]).mean(), expected["metrics"]["actor/ppo_kl"])
    c.close(ratio.mean(), expected["metrics"]["actor/ratio_mean"])
    c.close(ratio.std(), expected["metrics"]["actor/ratio_std"])


@pytest.mark.parametrize("c", cases("losses", "loss/flow_dppo/"), ids=lambda c: c.id)
def test_trust_region_of_flow_dppo(c):
    given, expected = c.inputs, c.expected
    measure = "gaussian" if given["add_kl_coefficient"] else "means"
    made = lookup("flow algorithm", "flow_dppo")(kl_threshold=given["kl_mask_threshold"], kl_measure=measure)
    total, values, leaves = objective_of(made, given, given["advantages"])
    c.close(total, expected["loss"])
    by_logprob, by_mean = torch.autograd.grad(total, leaves, allow_unused=True)
    c.close(by_logprob, expected["grad_log_prob"])
    assert by_mean is None
    metrics = expected["metrics"]
    for name in values.keys() & metrics.keys():
        c.close(values[name].mean(), metrics[name])
    assert len(values.keys() & metrics.keys()) == 8
    c.close(values["actor/kl_new_old"].mean(), metrics["actor/kl_new_old_mean"])
    c.close(values["actor/kl_new_old"].max(), metrics["actor/kl_new_old_max"])
    ratio = values["actor/ratio_mean"]
    for name, value in (("mean", ratio.mean()), ("min", ratio.min()), ("max", ratio.max())):
        c.close(value, metrics[f"actor/ratio_{name}"])
    c.close(ratio.std(correction=0), metrics["actor/ratio_std"])


def test_beyond_the_trust_region_only_the_way_back_is_open():
    logprob = torch.tensor([0.5, 0.5, -0.5, -0.5, 0.5, -0.5], requires_grad=True)
    advantage, mask = torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0, 0.0]), torch.ones(6, dtype=torch.bool)
    far, near = torch.full((6,), 0.1), torch.full((6,), 0.05)
    for kl, still in ((far, [False, True, True, False, True, True]), (near, [True] * 6)):
        found = surrogates.kl_trust_region(logprob, torch.zeros(6), advantage, mask, kl, threshold=0.1)
        (gradient,) = torch.autograd.grad(found.loss.sum(), logprob)
        assert (gradient[:4] != 0).tolist() == still[:4]
        assert found.metrics["actor/unmasked_fraction"].bool().tolist() == still


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_dppo_leaves_out_what_has_moved_too_far_and_would_move_on(divergence):
    """By hand: probabilities after and before, the advantage, and whether the action still counts."""
    rows = [
        (0.9, 0.5, 1.0, False),  # likely, and further up: out
        (0.9, 0.5, -1.0, True),  # is drawn back
        (0.2, 0.6, -1.0, False),
        (0.2, 0.6, 1.0, True),
        (0.012, 0.002, 1.0, True),  # six times as likely, and next to nothing has moved
        (0.52, 0.5, 1.0, True),
        (0.9, 0.5, 0.0, True),  # an advantage of 0 pushes nowhere
        (0.2, 0.6, 0.0, True),
    ]
    p, q, advantage = (torch.tensor([[row[i] for row in rows]], dtype=torch.float64) for i in range(3))
    leaf, old, mask = p.log().requires_grad_(), q.log(), torch.ones(1, len(rows), dtype=torch.bool)
    found = objectives.dppo(leaf, old, advantage, mask, divergence=divergence, divergence_limit=0.15)
    (gradient,) = torch.autograd.grad(found.loss.sum(), leaf)
    counts = torch.tensor([[row[3] for row in rows]])
    torch.testing.assert_close(gradient, torch.where(counts, -advantage * p / q, 0.0))
    assert torch.equal(found.metrics["actor/pg_clipfrac"] == 0, counts)


def test_drpo_weighs_the_gradient_down_as_a_probability_moves_and_turns_it_beyond_the_limit():
    """1 - sign(A (r - 1)) |p - q| / limit, of the gradient of the ratio (arXiv:2606.09821, table 1)."""
    p, q, advantage = torch.tensor([[0.9, 0.9, 0.1, 0.1, 0.8], [0.5] * 4 + [0.1], [1.0, -2.0, 1.0, -1.0, 1.0]]).double()
    leaf, old, mask = p.log().requires_grad_(), q.log(), torch.ones(1, 5, dtype=torch.bool)
    found = objectives.drpo(leaf[None], old[None], advantage[None], mask, divergence_limit=0.5)
    (gradient,) = torch.autograd.grad(found.loss.sum(), leaf)
    weight = 1 - (advantage * (p - q)).sign() * (p - q).abs() / 0.5
    torch.testing.assert_close(gradient, -advantage * weight * p / q)
    assert found.metrics["actor/pg_clipfrac"].tolist() == [[0.0] * 4 + [1.0]]
