"""Distances between policies, and distillation, which makes a loss of them."""

import pytest
import torch

from burnish.losses.distillation import distill_fm_mse, distill_kl
from burnish.losses.kl import gaussian_kl, squared_distance
from tests.conformance import case


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


def test_distillation_by_kl():
    c = case("losses", "loss/distill_kl")
    mean = c.inputs["prev_sample_mean"].clone().requires_grad_()
    loss = distill_kl(mean, c.inputs["teacher_prev_sample_mean"], c.inputs["std_dev_t"].flatten()).mean()
    c.close(loss, c.expected["loss"])
    c.close(loss, c.expected["metrics"]["actor/distill_kl_loss"])
    c.close(torch.autograd.grad(loss, mean)[0], c.expected["grad"])


def test_distillation_by_velocity():
    c = case("losses", "loss/distill_fm_mse")
    loss = distill_fm_mse(c.inputs["noise_pred"], c.inputs["teacher_noise_pred"]).mean()
    c.close(loss, c.expected["loss"])
    c.close(loss, c.expected["metrics"]["actor/distill_fm_mse_loss"])


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4, 4)], ids=str)
def test_distances_are_means_over_latents_and_one_per_row(shape):
    value, other = torch.randn(3, *shape), torch.randn(3, *shape)
    each = [(a - b).square().mean() for a, b in zip(value, other, strict=True)]
    torch.testing.assert_close(squared_distance(value, other), torch.stack(each))
    assert (squared_distance(value, value) == 0).all()
    assert gaussian_kl(value[:0], other[:0], torch.ones(0)).shape == (0,)
