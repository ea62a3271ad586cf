"""Distillation, which makes a loss of the distance to a teacher: reference numbers."""

import torch

from burnish.losses.kl import gaussian_kl, squared_distance
from tests.conformance import case


def test_distillation_by_kl():
    c = case("losses", "loss/distill_kl")
    mean = c.inputs["prev_sample_mean"].clone().requires_grad_()
    loss = gaussian_kl(mean, c.inputs["teacher_prev_sample_mean"], c.inputs["std_dev_t"].flatten()).mean()
    c.close(loss, c.expected["loss"])
    c.close(loss, c.expected["metrics"]["actor/distill_kl_loss"])
    c.close(torch.autograd.grad(loss, mean)[0], c.expected["grad"])


def test_distillation_by_velocity():
    c = case("losses", "loss/distill_fm_mse")
    loss = squared_distance(c.inputs["noise_pred"], c.inputs["teacher_noise_pred"]).mean()
    c.close(loss, c.expected["loss"])
    c.close(loss, c.expected["metrics"]["actor/distill_fm_mse_loss"])
