"""Losses: reference numbers with gradients, and what must hold for any policy."""

import pytest
import torch

from burnish.credit import optimality
from burnish.losses import clipped_surrogate, gaussian_kl, negative_aware
from tests.conformance import case, cases


def surrogate_of(given: dict):
    """The published form: advantages clipped to +-5, one clip range."""
    logprob = torch.as_tensor(given["log_prob"]).clone().requires_grad_()
    advantage = torch.as_tensor(given["advantages"])
    limit = given.get("adv_clip_max", 5.0)
    clip = given.get("clip_ratio", given.get("clip_range"))
    loss, values = clipped_surrogate(
        logprob,
        torch.as_tensor(given["old_log_prob"]),
        advantage.clamp(-limit, limit),
        clip_low=clip,
        clip_high=clip,
    )
    return logprob, loss, values


@pytest.mark.parametrize("c", cases("losses", "loss/flow_grpo/"), ids=lambda c: c.id)
def test_clipped_surrogate(c):
    logprob, loss, values = surrogate_of(c.inputs)
    c.close(loss.mean(), c.expected["loss"])
    (gradient,) = torch.autograd.grad(loss.mean(), logprob)
    c.close(gradient, c.expected["grad_log_prob"])
    for name in ("actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_higher", "actor/pg_clipfrac_lower"):
        c.close(values[name].mean(), c.expected["metrics"][name])
    c.close(values["ratio"].mean(), c.expected["metrics"]["actor/ratio_mean"])
    c.close(values["ratio"].std(), c.expected["metrics"]["actor/ratio_std"])


def test_clipped_surrogate_with_published_kl():
    c = case("losses", "loss/flow_grpo_ppo_kl")
    given = c.inputs
    logprob, loss, _ = surrogate_of(given)
    c.close(loss.mean(), c.expected["policy_loss"])
    c.close(torch.autograd.grad(loss.mean(), logprob)[0], c.expected["grad_log_prob"])
    mean, reference = torch.tensor(given["mean"]), torch.tensor(given["mean_ref"])
    kl = gaussian_kl(mean, reference, torch.full((len(mean),), given["std_dev_t"]))
    c.close(kl.mean(), c.expected["kl_loss"])
    c.close(loss.mean() + given["beta"] * kl.mean(), c.expected["loss"])


def test_kl():
    c = case("losses", "loss/kl")
    mean = c.inputs["prev_sample_mean"].clone().requires_grad_()
    kl = gaussian_kl(mean, c.inputs["ref_prev_sample_mean"], c.inputs["std_dev_t"].flatten())
    c.close(kl.mean(), c.expected["loss"])
    c.close(torch.autograd.grad(kl.mean(), mean)[0], c.expected["grad"])


@pytest.mark.parametrize("c", cases("losses", "total_loss/flow_grpo_kl"), ids=lambda c: c.id)
def test_surrogate_and_kl_add_up(c):
    """verl-omni divides by accumulation steps, times sequence-parallel ranks; ours divides once."""
    given = c.inputs
    _, loss, values = surrogate_of(given)
    kl = gaussian_kl(given["prev_sample_mean"], given["ref_prev_sample_mean"], given["std_dev_t"].flatten())
    total = (loss + given["kl_loss_coef"] * kl).mean() / given["gradient_accumulation_steps"] * given["sp_size"]
    c.close(total, c.expected["loss"])
    c.close(values["actor/ppo_kl"].mean(), c.expected["metrics"]["actor/ppo_kl"])
    c.close(kl.mean(), c.expected["metrics"]["actor/kl_loss"])


def test_kl_is_that_of_the_distributions():
    mean, other, std = torch.randn(3, 1), torch.randn(3, 1), torch.tensor([0.3, 1.0, 2.0])
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean[:, 0], std), torch.distributions.Normal(other[:, 0], std)
    )
    torch.testing.assert_close(gaussian_kl(mean, other, std), exact)


@pytest.mark.parametrize("c", cases("losses", "loss/diffusion_nft/"), ids=lambda c: c.id)
def test_negative_aware_of_verl_omni(c):
    given, expected = c.inputs, c.expected
    velocity = given["forward_prediction"].clone().requires_grad_()
    loss, positive, negative = negative_aware(
        velocity,
        given["old_prediction"],
        given["x0"],
        given["xt"],
        given["t"].flatten(),
        given["reward_prob"],
        beta=given["mix_beta"],
        floor=given["adaptive_weight_min"],
    )
    distance = (velocity - given["ref_forward_prediction"]).square().flatten(1).mean(1)
    total = (loss * given["adv_clip_max"] + given["ref_kl_coef"] * distance).mean()
    c.close(total, expected["loss"])
    c.close(torch.autograd.grad(total, velocity)[0], expected["grad_forward_prediction"])
    c.close(positive.mean(), expected["metrics"]["actor/positive_loss"])
    c.close(negative.mean(), expected["metrics"]["actor/negative_loss"])
    c.close(distance.mean(), expected["metrics"]["actor/ref_kl_loss"])


@pytest.mark.parametrize("c", cases("losses", "loss/nft_official"), ids=lambda c: c.id)
def test_negative_aware_of_the_authors(c):
    given = {name: torch.tensor(v) if isinstance(v, list) else v for name, v in c.inputs.items()}
    time = given["t"]
    t = time.view(-1, 1, 1, 1)
    noisy = (1 - t) * given["x0"] + t * given["noise"]
    good = optimality(given["advantages"], given["adv_clip_max"], "continuous")
    velocity = given["v_new"].clone().requires_grad_()
    loss, positive, negative = negative_aware(
        velocity, given["v_old"], given["x0"], noisy, time, good, beta=given["nft_beta"]
    )
    distance = (velocity - given["v_ref"]).square().flatten(1).mean(1)
    total = (loss * given["adv_clip_max"] + given["kl_beta"] * distance).mean()
    c.close(good, c.expected["r"])
    c.close(positive, c.expected["positive_loss"])
    c.close(negative, c.expected["negative_loss"])
    c.close(total, c.expected["loss"])
    c.close(torch.autograd.grad(total, velocity)[0], c.expected["grad_v_new"])


def test_at_ratio_one_the_gradient_is_the_policy_gradient():
    logprob = torch.randn(6, requires_grad=True)
    advantage = torch.randn(6)
    loss, values = clipped_surrogate(logprob, logprob.detach(), advantage, clip_low=1e-4, clip_high=1e-4)
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), logprob)[0], -advantage)
    assert values["actor/pg_clipfrac"].sum() == 0


def test_outside_the_clip_range_only_the_way_back_is_open():
    old = torch.zeros(4)
    logprob = torch.tensor([0.5, 0.5, -0.5, -0.5], requires_grad=True)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss, values = clipped_surrogate(logprob, old, advantage, clip_low=0.1, clip_high=0.2)
    gradient = torch.autograd.grad(loss.sum(), logprob)[0]
    assert (gradient != 0).tolist() == [False, True, True, False]
    assert values["actor/pg_clipfrac_higher"].tolist() == [1, 1, 0, 0]
    assert values["actor/pg_clipfrac_lower"].tolist() == [0, 0, 1, 1]


def test_clip_ranges_are_two():
    old, advantage = torch.zeros(2), torch.tensor([1.0, -1.0])
    loss, _ = clipped_surrogate(torch.tensor([9.0, -9.0]), old, advantage, clip_low=0.1, clip_high=0.3)
    torch.testing.assert_close(loss, torch.tensor([-1.3, 0.9]))


def test_a_wild_ratio_stays_finite():
    logprob = torch.tensor([1e4, -1e4], requires_grad=True)
    loss, _ = clipped_surrogate(logprob, torch.zeros(2), torch.tensor([-1.0, 1.0]), clip_low=0.2, clip_high=0.2)
    assert loss.isfinite().all()
    assert torch.autograd.grad(loss.sum(), logprob)[0].isfinite().all()


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
