"""Distances of steps; KL estimates against the KL itself, summed over a small vocabulary; their controllers."""

import math

import pytest
import torch

from burnish.losses.kl import AdaptiveKl, FixedKl, gaussian_kl, kl_estimate, squared_distance
from burnish.losses.policy import masked
from tests.conformance import case
from tests.support.token_losses import assert_gradient, batch, spoil


def test_kl():
    c = case("losses", "loss/kl")
    mean = c.inputs["prev_sample_mean"].clone().requires_grad_()
    kl = gaussian_kl(mean, c.inputs["ref_prev_sample_mean"], c.inputs["std_dev_t"].flatten())
    c.close(kl.mean(), c.expected["loss"])
    c.close(torch.autograd.grad(kl.mean(), mean)[0], c.expected["grad"])


def test_kl_is_that_of_the_distributions():
    mean, other, std = torch.randn(3, 1), torch.randn(3, 1), torch.tensor([0.3, 1.0, 2.0])
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean[:, 0], std), torch.distributions.Normal(other[:, 0], std)
    )
    torch.testing.assert_close(gaussian_kl(mean, other, std), exact)


def test_x_based_kl_of_flow_factory():
    c = case("losses", "loss/flow_factory_kl_x-based")
    kl = squared_distance(torch.tensor(c.inputs["a"]), torch.tensor(c.inputs["b"]))
    c.close(kl.mean(), c.expected["kl_div"])
    c.close(c.inputs["kl_beta"] * kl.mean(), c.expected["kl_loss"])


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4, 4)], ids=str)
def test_distances_are_means_over_latents_and_one_per_row(shape):
    value, other = torch.randn(3, *shape), torch.randn(3, *shape)
    each = [(a - b).square().mean() for a, b in zip(value, other, strict=True)]
    torch.testing.assert_close(squared_distance(value, other), torch.stack(each))
    assert (squared_distance(value, value) == 0).all()
    assert gaussian_kl(value[:0], other[:0], torch.ones(0)).shape == (0,)


KINDS = ["k1", "k2", "k3", "k1+", "k3+", "unbiased"]


def distributions():
    torch.manual_seed(0)
    policy, reference, sampler = torch.randn(3, 6, dtype=torch.float64).mul(0.7)
    return policy.requires_grad_(), reference.log_softmax(-1), sampler.log_softmax(-1)


def expected(kind: str, logits, reference, sampler):
    """What the estimate is on average, drawn from the sampler; gradients go through the estimate only."""
    logprob, every = logits.log_softmax(-1)[None], torch.ones(1, 6, dtype=torch.bool)
    old = sampler[None] if kind == "unbiased" else None
    estimate = kl_estimate(logprob, reference[None], every, kind, old=old)
    return (sampler.exp() * estimate[0]).sum()


def exact(logits, reference):
    logprob = logits.log_softmax(-1)
    return (logprob.exp() * (logprob - reference)).sum()


@pytest.mark.parametrize(("kind", "value", "gradient"), [
    ("k1", True, False), ("k2", False, True), ("k3", True, False), ("k1+", True, True), ("k3+", True, True),
    ("unbiased", True, True),
])  # fmt: skip
def test_what_an_estimate_is_good_for(kind, value, gradient):
    """On the policy's own samples: right in value, in gradient, or in both."""
    logits, reference, _ = distributions()
    own = logits.detach().log_softmax(-1)
    estimate, true = expected(kind, logits, reference, own), exact(logits, reference)
    assert torch.allclose(estimate, true) == value
    slopes = [torch.autograd.grad(total, logits)[0] for total in (estimate, true)]
    assert torch.allclose(*slopes, atol=1e-9) == gradient


def test_only_the_unbiased_one_is_right_on_samples_of_another_policy():
    logits, reference, sampler = distributions()
    true = exact(logits, reference)
    (slope,) = torch.autograd.grad(true, logits, retain_graph=True)
    for kind in KINDS:
        estimate = expected(kind, logits, reference, sampler)
        (found,) = torch.autograd.grad(estimate, logits)
        assert torch.allclose(estimate, true) == torch.allclose(found, slope) == (kind == "unbiased")


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "unbiased"])
def test_gradients_are_those_of_the_value(kind):
    logprob, reference, advantage, mask = batch()
    old = advantage if kind == "unbiased" else None
    assert_gradient(lambda at: kl_estimate(at, reference, mask, kind, old=old).sum(), logprob)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -math.inf])
def test_rubbish_in_padding_is_nothing(kind, rubbish):
    logprob, reference, _, mask = batch()
    leaf = spoil(logprob, mask, rubbish).requires_grad_()
    old = spoil(logprob, mask, rubbish) if kind == "unbiased" else None
    kl = kl_estimate(leaf, spoil(reference, mask, rubbish), mask, kind, old=old)
    assert kl.isfinite().all()
    assert not kl[~mask].any()
    assert torch.autograd.grad(kl.sum(), leaf)[0].isfinite().all()


@pytest.mark.parametrize("kind", ["k2", "k3", "k3+", "unbiased"])
def test_low_variance_estimates_are_never_negative(kind):
    logprob, reference, _, mask = batch(spread=3.0)
    assert (kl_estimate(logprob, reference, mask, kind, old=logprob if kind == "unbiased" else None) >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_at_the_reference_has_no_distance(kind):
    logprob, _, _, mask = batch()
    kl = kl_estimate(logprob, logprob, mask, kind, old=logprob if kind == "unbiased" else None)
    torch.testing.assert_close(kl, masked(torch.zeros_like(kl), mask))


@pytest.mark.parametrize("kind", ["k3", "k3+"])
def test_k3_counts_no_further_than_ten(kind):
    """Values and gradients below that bound are those of the formula; above it verl's clamp is followed."""
    logprob = torch.tensor([[-1.0, -3.0, -9.0, -0.1]], requires_grad=True)
    reference, mask = torch.tensor([[-1.5, -1.0, -1.0, -30.0]]), torch.ones(1, 4, dtype=torch.bool)
    kl = kl_estimate(logprob, reference, mask, kind)
    d = (logprob - reference).detach().clamp(-20, 20)
    torch.testing.assert_close(kl.detach(), ((-d).exp() - 1 + d).clamp(max=10))
    assert kl[0, 2] == kl[0, 3] == 10
    (slope,) = torch.autograd.grad(kl.sum(), logprob)
    beyond = d[:, 2:] if kind == "k3+" else torch.zeros(1, 2)
    torch.testing.assert_close(slope[0, 2], beyond[0, 0])


def test_old_log_probs_are_asked_for_where_they_are_read():
    logprob, reference, _, mask = batch()
    with pytest.raises(ValueError, match="unbiased and old is missing"):
        kl_estimate(logprob, reference, mask, "unbiased")
    with pytest.raises(ValueError, match="k3 and old is given"):
        kl_estimate(logprob, reference, mask, "k3", old=logprob)


def test_the_coefficient_follows_the_target():
    control = AdaptiveKl(0.1, target=0.5, horizon=1000)
    for _ in range(20):
        control.update(5.0, 256)
    risen = control.coef
    assert risen == pytest.approx(0.1 * (1 + 0.2 * 0.256) ** 20)
    control.update(0.5, 256)
    assert control.coef == risen
    control.update(0.0, 256)
    assert control.coef < risen


def test_a_kl_that_is_no_number_says_nothing():
    control = AdaptiveKl(0.1, target=0.5, horizon=1000)
    for bad in (math.nan, math.inf):
        control.update(bad, 256)
    assert control.coef == 0.1


def test_a_horizon_that_would_turn_the_coefficient_round_is_refused():
    with pytest.raises(ValueError, match="set it above 200"):
        AdaptiveKl(0.1, target=0.5, horizon=200).update(0.0, 1000)
    with pytest.raises(ValueError, match="above 0"):
        AdaptiveKl(0.1, target=0.0, horizon=200)


def test_controllers_go_on_where_they_were():
    control = AdaptiveKl(0.1, target=0.5, horizon=1000)
    control.update(5.0, 256)
    other = AdaptiveKl(0.1, target=0.5, horizon=1000)
    other.load_state_dict(control.state_dict())
    assert other.coef == control.coef != 0.1
    fixed = FixedKl(0.1)
    fixed.update(5.0, 256)
    assert fixed.state_dict() == {"coef": 0.1}
