"""Our schedules are diffusers', to the last digit of a float."""

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from burnish.flow.schedules import dynamic_shift, schedule, static_shift, stretch_to_terminal

STEPS = [1, 4, 10, 28]


def same(ours, scheduler) -> None:
    torch.testing.assert_close(ours, scheduler.sigmas, rtol=2e-6, atol=2e-7)
    assert ours[-1] == 0
    assert (ours.diff() < 0).all()


def explicit(steps: int) -> np.ndarray:
    return np.linspace(1.0, 1 / steps, steps)


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0])
@pytest.mark.parametrize("steps", STEPS)
def test_static_shift_as_the_scheduler_places_it(steps, shift):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(steps)
    same(schedule(steps, dict(scheduler.config)), scheduler)
    same(schedule(steps, {"shift": 2.0}, shift=shift), scheduler)


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0])
@pytest.mark.parametrize("steps", STEPS)
def test_static_shift_of_sigmas_that_a_pipeline_passes(steps, shift):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(sigmas=explicit(steps))
    same(schedule(steps, dict(scheduler.config), kind="shift_once"), scheduler)
    once = torch.linspace(1, 0, steps + 1)
    torch.testing.assert_close(schedule(steps, {}, kind="shift_once", shift=shift), static_shift(once, shift))


@pytest.mark.parametrize("time_shift_type", ["exponential", "linear"])
@pytest.mark.parametrize("terminal", [None, 0.02, 0.1])
@pytest.mark.parametrize("tokens", [64, 1024, 4096])
@pytest.mark.parametrize("steps", [4, 10, 28])
def test_dynamic_shift(steps, tokens, terminal, time_shift_type):
    """FLUX.1's pipeline passes linspace(1, 1 / steps), Stable Diffusion 3's lets the scheduler choose."""
    scheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, shift=3.0, shift_terminal=terminal, time_shift_type=time_shift_type
    )
    config = dict(scheduler.config)
    mu = calculate_shift(tokens, 256, 4096, 0.5, 1.15)
    scheduler.set_timesteps(sigmas=explicit(steps), mu=mu)
    same(schedule(steps, config, kind="shift_once", tokens=tokens), scheduler)
    scheduler.set_timesteps(steps, mu=mu)
    same(schedule(steps, config, tokens=tokens), scheduler)


def test_a_shift_of_the_run_replaces_dynamic_shifting():
    dynamic = schedule(10, {"use_dynamic_shifting": True}, shift=3.0, tokens=4096)
    torch.testing.assert_close(dynamic, schedule(10, {"shift": 3.0}))


@pytest.mark.parametrize("option", ["use_karras_sigmas", "use_beta_sigmas", "invert_sigmas"])
def test_what_is_not_supported_is_refused_by_name(option):
    with pytest.raises(ValueError, match=option):
        schedule(10, {option: True})


def test_shifts_keep_the_ends_and_have_inverses():
    t = torch.linspace(0.01, 1, 50, dtype=torch.float64)
    assert static_shift(t, 3.0)[-1] == 1
    torch.testing.assert_close(static_shift(static_shift(t, 3.0), 1 / 3), t)
    torch.testing.assert_close(dynamic_shift(dynamic_shift(t, 0.7), -0.7), t)
    torch.testing.assert_close(dynamic_shift(t, float(np.log(3.0))), static_shift(t, 3.0))
    torch.testing.assert_close(dynamic_shift(t, 3.0, "linear"), static_shift(t, 3.0))
    falling = t.flip(0)
    stretched = stretch_to_terminal(falling, 0.2)
    torch.testing.assert_close(stretched[[0, -1]], torch.tensor([1.0, 0.2], dtype=torch.float64))
