"""The gradient of every policy gradient's loss against finite differences, with a linear velocity for a network."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from burnish.algorithms.flow.flow_dppo import FlowDPPO
from burnish.algorithms.flow.grpo_guard import GRPOGuard
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.batches.steps import StepTerms
from burnish.flow.schedules import schedule
from burnish.types.rollout import Steps
from tests.support.flow_bench import unconditioned

TIMES = schedule(6, {"shift": 3.0})
MANY = 6

ALGORITHMS = {
    "flow_grpo": FlowGRPO(clip=0.3),
    "flow_grpo, kl": FlowGRPO(clip=0.3, kl_coef=0.7, kl_form="exact"),
    "flow_grpo, cps": FlowGRPO(transition="cps", clip=0.3),
    "grpo_guard": GRPOGuard(clip=0.3),
    "grpo_guard, cps": GRPOGuard(transition="cps", clip=0.3, balance=False),
    "flow_dppo": FlowDPPO(kl_threshold=0.05),
    "flow_dppo, dance": FlowDPPO(transition="dance", kl_threshold=0.05, kl_measure="means"),
}


def terms(algorithm, weight):
    """Steps that an older policy took, its log-probs and means, and weights and advantages of either sign."""
    g = torch.Generator().manual_seed(4)
    state, noise = torch.randn(MANY, 3, 2, generator=g), torch.randn(MANY, 3, 2, generator=g)
    steps = Steps(
        conditioning=unconditioned(MANY), unconditional=unconditioned(MANY), state=state, next_state=state,
        time=TIMES[torch.arange(MANY) % 5], time_next=TIMES[torch.arange(MANY) % 5 + 1],
        logprob=torch.zeros(MANY), time_max=float(TIMES[1]),
    )  # fmt: skip
    before = algorithm.step(steps, role(weight + 0.05))
    steps.next_state = before.sample(noise)
    return StepTerms(
        steps=steps,
        index=list(range(MANY)),
        row=list(range(MANY)),
        slot=[0] * MANY,
        advantage=torch.tensor([1.0, -2.0, 0.5, -0.3, 0.0, 1.5]),
        weight=torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0, 0.25]),
        old=before.logprob(steps.next_state, algorithm.density),
        old_mean=before.mean,
        reference_mean=algorithm.step(steps, role(weight - 0.1)).mean,
    )


def role(weight):
    return lambda x, time, conditioning, unconditional: x @ weight


@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradient(name):
    algorithm = ALGORITHMS[name]
    weight = torch.tensor([[0.3, -0.2], [0.5, 0.1]])
    part = terms(algorithm, weight)

    def loss(value):
        return algorithm.loss(part, SimpleNamespace(moved=True, policy=role(value))).total

    value = weight.clone().requires_grad_()
    loss(value).backward()
    numeric, size = torch.zeros_like(weight), 1e-3
    for at in [(i, j) for i in range(2) for j in range(2)]:
        nudge = torch.zeros_like(weight)
        nudge[at] = size
        numeric[at] = (loss(weight + nudge) - loss(weight - nudge)) / (2 * size)
    assert value.grad.abs().max() > 1e-3
    torch.testing.assert_close(value.grad, numeric, rtol=2e-2, atol=3e-3 * float(value.grad.abs().max()) + 1e-3)


def test_on_policy_the_gradient_is_advantage_times_that_of_the_logprob():
    for algorithm in (FlowGRPO(), FlowDPPO()):
        weight = torch.tensor([[0.3, -0.2], [0.5, 0.1]], requires_grad=True)
        part = terms(algorithm, weight.detach())
        algorithm.loss(part, SimpleNamespace(moved=False, policy=role(weight))).total.backward()
        actual, weight.grad = weight.grad, None
        logprob = algorithm.step(part.steps, role(weight)).logprob(part.steps.next_state, algorithm.density)
        (-(part.weight * part.advantage * logprob)).sum().backward()
        torch.testing.assert_close(actual, weight.grad)
