"""Policy losses: gradients, closed forms, what leaves them alone, and what must not break them."""

import math

import pytest
import torch
from burnish.losses.tokens import aggregate

from burnish.losses.policy import log_ratio, ppo_clip, sequence_mean
from burnish.losses.surrogates import cispo, cpgd, gmpo, gspo, reinforce, sapo
from tests.support.token_losses import assert_gradient, batch, mask_of, spoil

GRPO = "seq-mean-token-mean"
LOSSES = {
    "ppo_clip": lambda *a: ppo_clip(*a, clip_low=0.2, clip_high=0.28),
    "dual_clip": lambda *a: ppo_clip(*a, clip_low=0.2, clip_high=0.28, dual_clip=1.4),
    "gspo": lambda *a: gspo(*a, clip_low=0.1, clip_high=0.15),
    "gmpo": lambda *a: gmpo(*a, clip_low=0.2, clip_high=0.2),
    "cispo": lambda *a: cispo(*a, clip_low=1.0, clip_high=0.2),
    "sapo": lambda *a: sapo(*a, tau_pos=1.0, tau_neg=1.05),
    "cpgd": lambda *a: cpgd(*a, clip_low=0.2, clip_high=0.2),
    "cpgd_drift": lambda *a: cpgd(*a, clip_low=0.2, clip_high=0.2, drift=0.5),
    "reinforce": lambda logprob, old, advantage, mask: (reinforce(logprob, advantage, mask), {}),
}
RATIOS = ["ppo_clip", "dual_clip", "gmpo", "sapo", "cpgd", "reinforce"]  # whose gradient is that of their value
every = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


@pytest.mark.parametrize("name", RATIOS)
@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_the_value(name, seed):
    logprob, old, advantage, mask = batch(seed)
    assert_gradient(lambda at: aggregate(LOSSES[name](at, old, advantage, mask)[0], mask, GRPO), logprob)


@pytest.mark.parametrize("seed", range(3))
def test_gspo_is_the_clipped_ratio_of_the_sequence(seed):
    """The token form has the value and the gradient of the sequence's own objective."""
    logprob, old, advantage, mask = batch(seed)
    leaf = logprob.clone().requires_grad_()
    total = aggregate(LOSSES["gspo"](leaf, old, advantage, mask)[0], mask, GRPO)

    def objective(at):
        ratio = sequence_mean(log_ratio(at, old, mask), mask).exp()
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
    loss, values = LOSSES["cispo"](leaf, old, advantage, mask)
    weight = (logprob - old).exp().clamp(max=1.2)
    expected = torch.where(mask, -weight * advantage, 0.0)
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), leaf)[0], expected)
    assert values["actor/pg_clipfrac"].sum() > 0


def test_gmpo_is_the_geometric_mean_of_ratios_clipped_where_it_pushes():
    ratio = torch.tensor([[1.5, 0.5], [1.5, 0.5]], dtype=torch.float64)
    advantage = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    loss, _ = gmpo(
        ratio.log(), torch.zeros(2, 2), advantage, mask_of([2, 2], 2), clip_low=math.log(1.6), clip_high=math.log(1.2)
    )
    torch.testing.assert_close(loss[0, 0].item(), -math.sqrt(1.2 * 0.5))
    torch.testing.assert_close(loss[1, 0].item(), math.sqrt(1.5 / 1.6))


def test_sapo_closes_softly():
    """At ratio 1 the gradient is the plain one; far from it there is none; the negative side closes sooner."""
    ratio = torch.tensor([[1.0, 30.0, 2.0]], dtype=torch.float64)
    mask = mask_of([3], 3)

    def gradient(sign: float):
        logprob = ratio.log().requires_grad_()
        loss, values = sapo(logprob, torch.zeros_like(ratio), sign * torch.ones_like(ratio), mask, tau_pos=1, tau_neg=2)
        return torch.autograd.grad(loss.sum(), logprob)[0][0], values

    positive, values = gradient(1.0)
    negative, _ = gradient(-1.0)
    torch.testing.assert_close(positive[0].item(), -1.0)
    torch.testing.assert_close(negative[0].item(), 1.0)
    assert abs(positive[1]) < 1e-6
    assert abs(negative[2]) < abs(positive[2])
    assert values["actor/pg_clipfrac"].tolist() == [[0, 1, 0]]


def test_dual_clip_bounds_what_a_bad_token_costs():
    ratio = torch.tensor([[1.1, 5.0, 50.0]], dtype=torch.float64)
    advantage = -torch.ones_like(ratio)
    loss, values = ppo_clip(
        ratio.log(), torch.zeros_like(ratio), advantage, mask_of([3], 3), clip_low=0.2, clip_high=0.2, dual_clip=3.0
    )
    torch.testing.assert_close(loss, torch.tensor([[1.1, 3.0, 3.0]], dtype=torch.float64))
    assert values["actor/pg_clipfrac_lower"].tolist() == [[0, 1, 1]]
    with pytest.raises(ValueError, match="dual_clip is 1"):
        ppo_clip(ratio, ratio, advantage, mask_of([3], 3), clip_low=0.2, clip_high=0.2, dual_clip=1.0)


def test_clipping_is_counted_where_it_acts():
    ratio = torch.tensor([[1.5, 1.5, 0.5, 0.5, 1.5]])
    advantage = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0]])
    mask = mask_of([4])
    _, values = ppo_clip(ratio.log(), torch.zeros(1, 5), advantage, mask, clip_low=0.2, clip_high=0.2)
    assert values["actor/pg_clipfrac"].tolist() == [[1, 0, 0, 1, 0]]
    torch.testing.assert_close(values["ratio"], torch.tensor([[1.5, 1.5, 0.5, 0.5, 0.0]]))
    torch.testing.assert_close(values["actor/ppo_kl"][0, :4], -ratio.log()[0, :4])


def test_cpgd_drift_pulls_back_no_harder_than_its_clip():
    """Without an advantage only the drift is left: (ratio - 1), at most 0.2, per log-prob."""
    difference = torch.tensor([[3.0, 0.1, -0.5]], dtype=torch.float64)
    logprob, nothing, mask = difference.clone().requires_grad_(), torch.zeros_like(difference), mask_of([3], 3)
    loss, values = cpgd(logprob, nothing, nothing, mask, clip_low=0.2, clip_high=0.2, drift=0.5, drift_clip=0.2)
    estimate = difference.exp() - 1 - difference
    torch.testing.assert_close(loss, 0.5 * estimate)
    torch.testing.assert_close(values["actor/policy_drift"], estimate)
    expected = 0.5 * (difference.exp() - 1).clamp(max=0.2)
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), logprob)[0], expected)
    with pytest.raises(ValueError, match="clip_low is 1"):
        cpgd(logprob, nothing, nothing, mask, clip_low=1.0, clip_high=0.2)


@every
def test_on_policy_every_loss_is_the_policy_gradient(loss):
    """At ratio 1 the gradient is -advantage, or its mean over the sequence for losses of sequences."""
    logprob, _, advantage, mask = batch()
    leaf = logprob.clone().requires_grad_()
    total = aggregate(loss(leaf, logprob, advantage, mask)[0], mask, GRPO)
    plain = logprob.clone().requires_grad_()
    expected = aggregate(reinforce(plain, advantage, mask), mask, GRPO)
    torch.testing.assert_close(torch.autograd.grad(total, leaf)[0], torch.autograd.grad(expected, plain)[0])


@every
@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -math.inf, 1e30])
def test_rubbish_in_padding_changes_nothing(loss, rubbish):
    """Nor does an all-masked row; a batch without one chosen token is all zeros."""
    logprob, old, advantage, mask = batch()
    leaf = logprob.clone().requires_grad_()
    clean, values = loss(leaf, old, advantage, mask)
    spoilt = spoil(logprob, mask, rubbish).requires_grad_()
    got, got_values = loss(spoilt, spoil(old, mask, rubbish), spoil(advantage, mask, rubbish), mask)
    torch.testing.assert_close(got, clean, rtol=0, atol=0)
    torch.testing.assert_close(got_values, values, rtol=0, atol=0)
    gradients = torch.autograd.grad(clean.sum(), leaf)[0], torch.autograd.grad(got.sum(), spoilt)[0]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    for tensor in (got, gradients[1], *got_values.values()):
        assert not tensor[~mask].any()
    nothing = torch.zeros_like(mask)
    total = loss(spoilt, spoilt.detach(), spoil(advantage, nothing, rubbish), nothing)[0].sum()
    assert total.item() == 0
    assert not torch.autograd.grad(total, spoilt, allow_unused=True, materialize_grads=True)[0].any()


@every
def test_rows_do_not_see_each_other_nor_the_width(loss):
    logprob, old, advantage, mask = batch()
    whole = loss(logprob, old, advantage, mask)[0]
    for row in range(len(mask)):
        width = max(int(mask[row].sum()), 1)
        alone = loss(*[tensor[row : row + 1, :width] for tensor in (logprob, old, advantage, mask)])[0]
        torch.testing.assert_close(alone, whole[row : row + 1, :width])


@every
@pytest.mark.parametrize("far", [1e3, -1e3])
def test_a_wild_ratio_stays_finite(loss, far):
    _, old, advantage, mask = batch(dtype=torch.float32)
    logprob = (old + far).requires_grad_()
    for sign in (1, -1):
        total = loss(logprob, old, sign * advantage.abs(), mask)[0].sum()
        assert total.isfinite()
        assert torch.autograd.grad(total, logprob)[0].isfinite().all()


@every
def test_half_precision_is_raised_before_anything_is_subtracted(loss):
    logprob, old, advantage, mask = [t.bfloat16() if t.is_floating_point() else t for t in batch()]
    got = loss(logprob, old, advantage, mask)[0]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, loss(logprob.float(), old.float(), advantage.float(), mask)[0])


@every
def test_without_an_advantage_nothing_moves(loss):
    logprob, _, advantage, mask = batch()
    leaf = logprob.clone().requires_grad_()
    total = loss(leaf, logprob, torch.zeros_like(advantage), mask)[0].sum()
    assert not torch.autograd.grad(total, leaf)[0].any()


def test_responses_of_no_length_are_allowed():
    empty = torch.zeros(2, 0)
    for loss in LOSSES.values():
        assert loss(empty, empty, empty, empty.bool())[0].shape == (2, 0)
