"""A second order between stochastic steps: what it gains, and what it must not remember."""

import pytest
import torch

from burnish.flow.multistep import thinned
from burnish.flow.sampling import Plan, denoise
from burnish.flow.schedules import schedule
from tests.support.exact_flows import gaussian_velocity

TIMES = schedule(8, {"shift": 3.0})
START = torch.linspace(-2, 2, 5)[:, None]


def velocity(x, t, rows):
    return torch.tanh(x) + t.view(-1, 1)


def no_noise(step):
    raise AssertionError("noise was drawn")


def test_the_first_and_the_last_step_are_eulers():
    times = TIMES[[0, 4, 8]]
    paths = [
        denoise(velocity, START, Plan(times, "ode", 0.0, torch.zeros(5, 2, dtype=torch.bool), solver=solver), no_noise)
        for solver in ("euler", "dpm2")
    ]
    assert torch.equal(paths[0].latents, paths[1].latents)


def test_second_order_errs_less():
    exact = gaussian_velocity(1.5, 0.5)
    times = schedule(12, {}, kind="shift_once", shift=1.0)
    error = {}
    for solver in ("euler", "dpm2"):
        plan = Plan(times, "ode", 0.0, torch.zeros(5, 12, dtype=torch.bool), solver=solver)
        path = denoise(lambda x, t, rows: exact(x, t[:, None]), START, plan, no_noise)
        error[solver] = float((path.latents - (1.5 + 0.5 * START)).abs().max())
    assert error["dpm2"] < error["euler"] / 2


def test_a_stochastic_step_ends_what_is_remembered():
    """After the window the first deterministic step is Euler's, as if the trajectory began there."""
    recorded = torch.zeros(5, 8, dtype=torch.bool)
    recorded[:, 2:4] = True
    noise = torch.randn(5, 1, generator=torch.Generator().manual_seed(0))
    plan = Plan(times=TIMES, kind="sde", noise=0.5, recorded=recorded, solver="dpm2")
    path = denoise(velocity, START, plan, lambda step: noise)
    later = Plan(TIMES[4:], "ode", 0.0, torch.zeros(5, 4, dtype=torch.bool), solver="dpm2")
    expected = denoise(velocity, path.next_state[:, -1], later, no_noise).latents
    torch.testing.assert_close(path.latents, expected)


@pytest.mark.parametrize(("share", "kept"), [(1.0, 5), (0.6, 3), (0.5, 3), (0.2, 1), (0.01, 1)])
def test_a_share_of_the_later_steps_is_taken(share, kept):
    times = thinned(TIMES, 3, share)
    assert len(times) == 3 + 1 + kept
    assert torch.equal(times[:4], TIMES[:4])
    assert times[-1] == 0
    assert (times.diff() < 0).all()
    assert set(times.tolist()) <= set(TIMES.tolist())
