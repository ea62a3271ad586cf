"""Pairs, judged samples, demonstrations."""

import math

import pytest
import torch

from burnish.losses.responses import bco, dpo, ipo, kto, kto_reference_point, sft, simpo
from tests.support.token_losses import assert_gradient, batch, spoil

PAIR = torch.tensor([[-10.0, -12.0, -8.0], [-11.0, -11.5, -9.0], [-10.5, -12.5, -8.0], [-10.0, -11.0, -9.5]]).double()


@pytest.mark.parametrize("loss", [
    lambda *pair: dpo(*pair, beta=0.3)[0], lambda *pair: dpo(*pair, beta=0.3, label_smoothing=0.2)[0],
    lambda *pair: ipo(*pair, beta=0.3)[0],
])  # fmt: skip
def test_gradients_of_pairs(loss):
    assert_gradient(lambda at: loss(*at).sum(), PAIR)


def test_dpo_at_the_reference_is_a_coin():
    loss, values = dpo(PAIR[0], PAIR[1], PAIR[0], PAIR[1], beta=0.3)
    torch.testing.assert_close(loss, torch.full_like(loss, math.log(2)))
    assert not values["rewards/accuracies"].any()
    assert not values["rewards/margins"].any()


def test_a_smoothed_label_is_a_mixture_of_both_orders():
    chosen, rejected, *reference = PAIR
    right = dpo(chosen, rejected, *reference, beta=0.3)[0]
    wrong = dpo(rejected, chosen, *reference[::-1], beta=0.3)[0]
    smooth = dpo(chosen, rejected, *reference, beta=0.3, label_smoothing=0.1)[0]
    torch.testing.assert_close(smooth, 0.9 * right + 0.1 * wrong)
    with pytest.raises(ValueError, match=r"label_smoothing is 0\.5"):
        dpo(*PAIR, beta=0.3, label_smoothing=0.5)


def test_a_pair_that_could_not_be_clearer_stays_finite():
    far = torch.tensor([1e4], dtype=torch.float64)
    for chosen, rejected in ((far, -far), (-far, far)):
        leaf = chosen.clone().requires_grad_()
        loss = dpo(leaf, rejected, torch.zeros(1), torch.zeros(1), beta=1.0)[0].sum()
        assert loss.isfinite()
        assert torch.autograd.grad(loss, leaf)[0].isfinite().all()


def test_ipo_has_a_target_it_does_not_overshoot():
    zero = torch.zeros(1)
    assert ipo(torch.tensor([5.0]), zero, zero, zero, beta=0.1)[0].item() == 0
    with pytest.raises(ValueError, match="beta is 0"):
        ipo(zero, zero, zero, zero, beta=0.0)


def test_kto_weighs_two_kinds_of_samples():
    logprob, reference, desirable = PAIR[0], PAIR[2], torch.tensor([True, False, True])
    point = torch.tensor(0.3, dtype=torch.float64)
    loss, values = kto(logprob, reference, desirable, point, beta=0.5, desirable_weight=2.0, undesirable_weight=3.0)
    ahead = torch.tensor([0.5 * (0.5 - 0.3), 0.5 * (0.3 - 0.5), 0.5 * (0.0 - 0.3)], dtype=torch.float64)
    torch.testing.assert_close(loss, torch.tensor([2.0, 3.0, 2.0]).double() * (1 - ahead.sigmoid()))
    assert values["rewards/chosen"].isnan().tolist() == [False, True, False]
    assert values["rewards/rejected"].isnan().tolist() == [True, False, True]
    assert_gradient(lambda at: kto(at, reference, desirable, point, beta=0.5)[0].sum(), logprob)


def test_the_reference_point_is_not_pushed_and_never_negative():
    logprob = PAIR[0].clone().requires_grad_()
    point = kto_reference_point(logprob - PAIR[2])
    assert not point.requires_grad
    pushed = torch.tensor(0.3, requires_grad=True)
    loss, _ = kto(logprob, PAIR[2], torch.tensor([True, False, True]), pushed, beta=0.5)
    assert torch.autograd.grad(loss.sum(), pushed, allow_unused=True)[0] is None
    torch.testing.assert_close(kto_reference_point(PAIR[0] - PAIR[2]).item(), 1 / 3)
    assert kto_reference_point(PAIR[2] - PAIR[0]) == 0


def test_supervised_tokens():
    logprob, _, _, mask = batch()
    loss = sft(spoil(logprob, mask, -math.inf), mask)
    torch.testing.assert_close(loss[mask], -logprob[mask])
    assert not loss[~mask].any()


def test_simpo_is_the_likelihood_per_token_with_a_margin():
    chosen, rejected = torch.tensor([-0.5, -2.0]), torch.tensor([-1.0, -0.5])
    loss, values = simpo(chosen, rejected, beta=2.0, margin=1.0)
    torch.testing.assert_close(loss, -torch.sigmoid(torch.tensor([0.0, -4.0])).log())
    assert values["rewards/accuracies"].tolist() == [1.0, 0.0]


def test_bco_judges_each_response_by_itself():
    chosen, rejected, reference = torch.tensor([-1.0]), torch.tensor([-4.0]), torch.tensor([-2.0])
    loss = bco(chosen, rejected, reference, reference, beta=0.5, shift=torch.tensor(0.1))
    expected = -torch.sigmoid(torch.tensor(0.5 - 0.1)).log() - torch.sigmoid(torch.tensor(-(-1.0 - 0.1))).log()
    torch.testing.assert_close(loss, expected[None])
