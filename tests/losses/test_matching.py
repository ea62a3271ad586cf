"""Losses on pictures that are noised again: reference numbers with gradients, and what must hold for any policy."""

import pytest
import torch

from burnish.advantages.groups import optimality
from burnish.flow.times import diffuse
from burnish.losses.matching import advantage_weighted_matching, awm_logprob, matching_error, negative_aware
from tests.conformance import cases
from tests.support.published_terms import by_name, forward_terms, roles_that_say

WEIGHTINGS = {"Uniform": "uniform", "t": "t", "t**2": "t2", "huber": "huber", "ghuber": "ghuber"}


@pytest.mark.parametrize("c", cases("losses", "loss/diffusion_nft/"), ids=lambda c: c.id)
def test_negative_aware_of_verl_omni(c):
    given, expected = c.inputs, c.expected
    velocity = given["forward_prediction"].clone().requires_grad_()
    part = forward_terms(
        velocity, clean=given["x0"], noisy=given["xt"], time=given["t"].flatten(), value=given["reward_prob"]
    )
    roles = roles_that_say(velocity, given["ref_forward_prediction"], given["old_prediction"])
    total, values = by_name(
        "diffusion_nft", part, roles, beta=given["mix_beta"], adaptive_min=given["adaptive_weight_min"],
        advantage_clip=given["adv_clip_max"], kl_coef=given["ref_kl_coef"],
    )  # fmt: skip
    c.close(total, expected["loss"])
    c.close(torch.autograd.grad(total, velocity)[0], expected["grad_forward_prediction"])
    for name in values.keys() & expected["metrics"].keys():
        c.close(values[name], expected["metrics"][name])
    assert values.keys() >= {"actor/positive_loss", "actor/negative_loss"}


@pytest.mark.parametrize("c", cases("losses", "loss/nft_official"), ids=lambda c: c.id)
def test_negative_aware_of_the_authors(c):
    given = {name: torch.tensor(v) if isinstance(v, list) else v for name, v in c.inputs.items()}
    good = optimality(given["advantages"], given["adv_clip_max"], "continuous")
    c.close(good, c.expected["r"])
    velocity = given["v_new"].clone().requires_grad_()
    part = forward_terms(
        velocity, clean=given["x0"], noisy=diffuse(given["x0"], given["noise"], given["t"]), time=given["t"], value=good
    )
    total, values = by_name(
        "diffusion_nft", part, roles_that_say(velocity, given["v_ref"], given["v_old"]),
        beta=given["nft_beta"], advantage_clip=given["adv_clip_max"], kl_coef=given["kl_beta"],
    )  # fmt: skip
    c.close(values["actor/positive_loss"], torch.tensor(c.expected["positive_loss"]).mean())
    c.close(values["actor/negative_loss"], torch.tensor(c.expected["negative_loss"]).mean())
    c.close(total, c.expected["loss"])
    c.close(torch.autograd.grad(total, velocity)[0], c.expected["grad_v_new"])


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_an_undecided_sample_moves_a_policy_only_towards_or_from_it(beta):
    """Optimality 1 pulls a policy at the old one towards the sample, 0 pushes as hard, 1/2 does neither."""
    torch.manual_seed(0)
    clean, noise, time = torch.randn(1, 2, 3), torch.randn(1, 2, 3), torch.tensor([0.4])
    noisy = 0.6 * clean + 0.4 * noise
    old = torch.randn(1, 2, 3)

    def gradient(good: float) -> torch.Tensor:
        velocity = old.clone().requires_grad_()
        loss, _, _ = negative_aware(velocity, old, clean, noisy, time, torch.tensor([good]), beta=beta)
        return torch.autograd.grad(loss.sum(), velocity)[0]

    assert (gradient(1.0) * (old - (noise - clean))).sum() > 0
    torch.testing.assert_close(gradient(0.0), -gradient(1.0))
    torch.testing.assert_close(gradient(0.5), torch.zeros_like(old), rtol=0, atol=1e-6)


@pytest.mark.parametrize("c", cases("losses", "loss/awm_logprob_"), ids=lambda c: c.id)
def test_logprob_of_advantage_weighted_matching(c):
    given = {name: torch.tensor(v) if isinstance(v, list) else v for name, v in c.inputs.items()}
    got = awm_logprob(
        given["v"], given["noise"] - given["x0"], given["t"],
        weighting=WEIGHTINGS[given["weighting"]], power=given["ghuber_power"],
    )  # fmt: skip
    c.close(got, c.expected["log_prob"])
    c.close(got, c.expected["flow_factory_log_prob"])


@pytest.mark.parametrize("weighting", WEIGHTINGS.values())
def test_a_perfect_prediction_has_logprob_0_and_every_error_less(weighting):
    target, time = torch.randn(6, 4), torch.linspace(0.1, 1, 6)
    options = {"weighting": weighting, "power": 0.25}
    perfect = awm_logprob(target.clone().requires_grad_(), target, time, **options)
    torch.testing.assert_close(perfect.detach(), torch.zeros(6), rtol=0, atol=1e-5)
    scores = [awm_logprob(target + size, target, time, **options) for size in (0.1, 0.5, 2.0)]
    assert (scores[0] < 0).all()
    assert (scores[1] < scores[0]).all()
    assert (scores[2] < scores[1]).all()


def test_huber_is_generalised_at_a_half():
    v, target, time = torch.randn(5, 3), torch.randn(5, 3), torch.rand(5)
    half = awm_logprob(v, target, time, weighting="ghuber", power=0.5)
    torch.testing.assert_close(half, 2 * awm_logprob(v, target, time, weighting="huber"))


def test_at_the_old_policy_it_is_matching_weighted_by_advantage():
    velocity, target = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    time, advantage = torch.rand(4), torch.tensor([1.0, -2.0, 0.5, 0.0])
    found = advantage_weighted_matching(velocity, velocity.detach(), target, time, advantage, clip=1e-4)
    weighted = advantage * (velocity - target).square().mean(1)
    expected = torch.autograd.grad(weighted.sum(), velocity)[0]
    torch.testing.assert_close(torch.autograd.grad(found.loss.sum(), velocity)[0], expected)
    assert (found.ratio == 1).all()


def test_the_matching_error_is_least_at_the_conditional_velocity():
    clean, noise = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    assert (matching_error(noise - clean, noise - clean) == 0).all()
    off = matching_error(noise - clean + 0.5, noise - clean)
    torch.testing.assert_close(off, torch.full((3,), 0.25))


def test_diffused_pictures_move_at_the_conditional_velocity():
    clean, noise = torch.randn(3, 2).double(), torch.randn(3, 2).double()
    time = torch.tensor([0.2, 0.5, 0.9]).double()
    moved = (diffuse(clean, noise, time + 1e-6) - diffuse(clean, noise, time)) / 1e-6
    torch.testing.assert_close(moved, noise - clean, rtol=1e-6, atol=1e-6)
