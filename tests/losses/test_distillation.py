"""Distillation, which makes a loss of the distance to a teacher: reference numbers."""

from types import SimpleNamespace
from typing import Any

import torch

from burnish.losses.kl import gaussian_kl
from burnish.registry import lookup
from burnish.types.rollout import Steps
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
    student, teacher = c.inputs["noise_pred"], c.inputs["teacher_noise_pred"]
    unread: Any = torch.zeros(len(student))
    part = Steps(
        conditioning=unread, unconditional=unread, state=student, next_state=student, time=unread, time_next=unread,
        logprob=unread, time_max=1.0,
    )  # fmt: skip
    roles: Any = SimpleNamespace(policy=lambda *asked: student, teachers=[lambda *asked: teacher])
    loss = lookup("flow algorithm", "distill")().loss(part, roles)
    c.close(loss.total / len(part), c.expected["loss"])
    total, count = loss.metrics["actor/distill_fm_mse_loss"]
    c.close(total / count, c.expected["metrics"]["actor/distill_fm_mse_loss"])
