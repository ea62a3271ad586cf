"""The denoising loop and its solvers: what is recorded and shared, orders of convergence, rows on their own."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, FlowMatchHeunDiscreteScheduler

from burnish.diffusion.algorithms.policy_gradient import Window
from burnish.diffusion.steps import Plan, denoise, finished, transition
from tests.support.schedules import gaussian_velocity, schedule

STEPS, GROUPS, MEMBERS, SHAPE = 8, 3, 4, (2, 3)
TIMES = schedule(STEPS, shift=3.0)
GROUP = torch.arange(GROUPS).repeat_interleave(MEMBERS)
SHARES = torch.linspace(0.2, 1.0, 3 * len(GROUP)).view(-1, 3)  # of what is noised, of a sample and of its two streams


class Field:
    """A velocity that differs between prompts, and counts the rows it was asked for."""

    def __init__(self, group: torch.Tensor = GROUP) -> None:
        self.group, self.rows = group, 0

    def __call__(self, x, t, rows):
        assert len(x) == len(t) == len(rows)
        self.rows += len(x)
        prompt = self.group[rows].float().view(-1, 1, 1)
        return torch.tanh(x * (1 + prompt)) + t.view(-1, 1, 1) * 0.5


def normal(keys) -> torch.Tensor:
    seeds = [sum(number * 1009**place for place, number in enumerate(key, 1)) for key in keys]
    return torch.stack([torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


def windows_of(window: Window) -> torch.Tensor:
    chosen = torch.zeros(GROUPS * MEMBERS, STEPS, dtype=torch.bool)
    for row, group in enumerate(GROUP.tolist()):
        chosen[row, window.choose(STEPS, update=0, key=group * 31 + 5)] = True
    return chosen


def node_of(chosen: torch.Tensor) -> torch.Tensor:
    """The members of a group are one state up to the first recorded step, as with shared starting noise."""
    rows = torch.arange(len(chosen))
    parted = torch.cat([torch.zeros(len(rows), 1, dtype=torch.bool), chosen.cumsum(1) > 0], 1)
    return torch.where(parted, rows[:, None], (GROUP * MEMBERS)[:, None])


def noise_for(rows: torch.Tensor):
    return lambda step: normal((1, int(row), step) for row in rows)


def run(plan: Plan, rows: torch.Tensor | None = None, *, shared: bool = False):
    rows = torch.arange(GROUPS * MEMBERS) if rows is None else rows
    start = normal((2, int(GROUP[row] if shared else row)) for row in rows)
    field = Field(GROUP[rows])
    shares = {"share": SHARES[rows, 0], "stream_share": SHARES[rows, 1 : 1 + len(plan.streams)]}
    return finished(denoise(field, start, plan, noise_for(rows), **shares)), field.rows


def plan_of(window: Window, kind="sde", **kwargs) -> Plan:
    return Plan(times=TIMES, kind=kind, noise=0.6, recorded=windows_of(window), **kwargs)


@pytest.mark.parametrize("kind", ["sde", "cps", "dance", "ddim"])
@pytest.mark.parametrize("window", [Window(), Window(kind="random", size=3)], ids=str)
def test_what_is_recorded_can_be_replayed(kind, window):
    density = "squared_error" if kind == "cps" else "gaussian"
    plan = plan_of(window, kind, density=density, interval=3, streams=(("above", 1), ("below", 1)))
    path, _ = run(plan)
    recorded = window.size or len(window.within(STEPS))
    assert path.logprob.shape == (GROUPS * MEMBERS, recorded)
    field = Field()
    for k in range(recorded):
        rows = torch.arange(len(GROUP))
        velocity = field(path.state[:, k], path.time[:, k], rows)
        step = transition(
            kind, velocity, path.state[:, k], path.time[:, k], path.time_next[:, k], noise=0.6, t_max=float(TIMES[1]),
            share=SHARES[:, 0],
        )  # fmt: skip
        landed = path.next_state[:, k]
        assert torch.equal(step.logprob(landed, density), path.logprob[:, k])
        for i, stream in enumerate((slice(1), slice(1, None))):
            apart = replace(step, mean=step.mean[:, stream], share=SHARES[:, 1 + i])
            torch.testing.assert_close(apart.logprob(landed[:, stream], density), path.stream_logprob[:, k, i])
        at = [TIMES.tolist().index(t) for t in path.time[:, k].tolist()]
        drawn = normal((1, row, step_) for row, step_ in enumerate(at))
        torch.testing.assert_close(step.sample(drawn), landed)


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("kind", ["sde", "cps"])
@pytest.mark.parametrize("window", [Window(), Window(kind="random", size=3)], ids=str)
def test_sharing_a_prefix_changes_no_sample(kind, window, interval):
    plan = plan_of(window, kind, interval=interval)
    alone, all_rows = run(plan, shared=True)
    together, rows = run(replace(plan, branch=node_of(plan.recorded)), shared=True)
    for name in ("latents", "state", "next_state", "logprob"):
        torch.testing.assert_close(getattr(together, name), getattr(alone, name), rtol=0, atol=0)
    assert torch.equal(together.time, alone.time)
    assert all_rows == plan.computed.sum()
    first, computed = plan.recorded.float().argmax(1)[::MEMBERS, None], plan.computed[::MEMBERS]
    # the first stochastic step still starts from one state
    assert rows == (computed * torch.where(torch.arange(STEPS) <= first, 1, MEMBERS)).sum()


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("window", [Window(), Window(kind="random", size=3)], ids=str)
def test_batch_composition_changes_no_sample(window, interval):
    whole, _ = run(plan_of(window, interval=interval))
    order = torch.randperm(len(GROUP), generator=torch.Generator().manual_seed(0))
    for rows in (order, order[:5], order[5:6]):
        plan = Plan(times=TIMES, kind="sde", noise=0.6, recorded=windows_of(window)[rows], interval=interval)
        part, _ = run(plan, rows)
        for name in ("latents", "state", "next_state", "time", "logprob", "forecast_error"):
            torch.testing.assert_close(getattr(part, name), getattr(whole, name)[rows], rtol=1e-6, atol=1e-6)


def test_without_stochastic_steps_nothing_is_recorded_and_no_noise_is_drawn():
    nothing = torch.zeros(12, STEPS, dtype=torch.bool)
    plan = Plan(times=TIMES, kind="ode", noise=0.0, recorded=nothing, branch=node_of(nothing))
    path = finished(denoise(Field(), normal((2, int(g)) for g in GROUP), plan, no_noise))
    assert path.state.shape == (12, 0, *SHAPE)
    assert torch.equal(path.latents[0], path.latents[MEMBERS - 1])


LEVELS = schedule(8, shift=3.0)
STARTS = torch.linspace(-2, 2, 5)[:, None]
MEAN, STD = 1.5, 0.5


def velocity(x, t, rows):
    return torch.tanh(x) + t.view(-1, 1)


def no_noise(step):
    raise AssertionError("noise was drawn")


def solve(solver, times, x=STARTS, velocity=velocity, **options):
    plan = Plan(times, "ode", 0.0, torch.zeros(len(x), len(times) - 1, dtype=torch.bool), solver=solver, **options)
    return finished(denoise(velocity, x, plan, no_noise)).latents


@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("heun", 2), ("dpm2m", 2)])
def test_halving_the_steps_divides_the_error_by_a_power_of_two(solver, order):
    """On the way between two noise levels, where the exact path is known."""

    def exact(t):
        return (1 - t) * MEAN + ((1 - t) ** 2 * STD**2 + t**2) ** 0.5 * STARTS

    flow = gaussian_velocity(MEAN, STD)
    errors = []
    for steps in (10, 20, 40):
        times = torch.linspace(0.8, 0.4, steps + 1)
        found = solve(solver, times, exact(times[0]), lambda x, t, rows: flow(x, t[:, None]))
        errors.append(float((found - exact(times[-1])).abs().max()))
    for coarse, fine in itertools.pairwise(errors):
        assert 0.9 * 2**order < coarse / fine < 1.1 * 2**order, errors


def test_solvers_are_those_of_diffusers():
    theirs = FlowMatchHeunDiscreteScheduler(shift=3.0)
    theirs.set_timesteps(6)
    x = STARTS
    for t in theirs.timesteps:
        x = theirs.step(velocity(x, (t / 1000).expand(5), None), t, x).prev_sample
    levels = torch.cat([theirs.sigmas[:1], theirs.sigmas[1:-1:2], theirs.sigmas[-1:]])
    torch.testing.assert_close(solve("heun", levels), x)
    theirs = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    theirs.set_timesteps(6)
    x = STARTS
    for level, t in zip(theirs.sigmas, theirs.timesteps, strict=False):
        x = theirs.step(velocity(x, level.expand(5), None), t, x).prev_sample
    torch.testing.assert_close(solve("dpm2m", theirs.sigmas), x)
    half, raised = (lambda *asked, to=to: velocity(*asked).bfloat16().to(to) for to in (torch.bfloat16, torch.float32))
    for solver in ("euler", "heun", "dpm2m"):  # arithmetic is in float32 whatever the network computes in
        assert torch.equal(*(solve(solver, LEVELS, velocity=network) for network in (half, raised)))


def test_a_stochastic_step_ends_what_is_remembered():
    """After the window the first deterministic step is Euler's, as if the trajectory began there."""
    recorded = torch.zeros(5, 8, dtype=torch.bool)
    recorded[:, 2:4] = True
    noise = torch.randn(5, 1, generator=torch.Generator().manual_seed(0))
    plan = Plan(times=LEVELS, kind="sde", noise=0.5, recorded=recorded, solver="dpm2m")
    path = finished(denoise(velocity, STARTS, plan, lambda step: noise if step in (2, 3) else no_noise(step)))
    torch.testing.assert_close(path.latents, solve("dpm2m", LEVELS[4:], path.next_state[:, -1]))


def test_the_network_runs_at_the_first_two_steps_the_last_and_what_is_recorded():
    for interval, recorded, steps in (
        (1, [], [*range(8)]), (2, [], [0, 1, 3, 5, 7]), (3, [], [0, 1, 4, 7]), (2, [4], [0, 1, 3, 4, 6, 7]),
        (9, [2, 5], [0, 1, 2, 5, 7]),
    ):  # fmt: skip
        chosen = torch.tensor([[i in recorded for i in range(8)]])
        assert Plan(LEVELS, "sde", 0.5, chosen, interval=interval).computed.nonzero()[:, 1].tolist() == steps


def test_a_forecast_follows_the_line_of_clean_samples_and_stays_where_it_was_after_noise():
    clean = {t: 0.5 * i - 1 for i, t in enumerate(LEVELS.tolist())}  # 0 at step 2, 2 at step 6, 2.5 at step 7

    def line(x, t, rows):
        return (x - clean[float(t[0])]) / t.view(-1, 1)

    recorded = torch.zeros(5, 8, dtype=torch.bool)
    recorded[:, [2, 6]] = True
    plan = Plan(LEVELS, "ode", 0.0, recorded, interval=9)  # which forecasts steps 3 to 5
    forecast, exact = (finished(denoise(line, STARTS, one, no_noise)) for one in (plan, replace(plan, interval=1)))
    torch.testing.assert_close(forecast.state, exact.state)
    torch.testing.assert_close(forecast.forecast_error, torch.zeros(5), rtol=0, atol=1e-6)
    noisy = finished(denoise(line, STARTS, replace(plan, kind="sde", noise=0.5), lambda step: torch.ones(5, 1)))
    torch.testing.assert_close(noisy.state[:, 1], LEVELS[6] / LEVELS[3] * noisy.next_state[:, 0])  # to 0, in a line
    error = math.sqrt((2**2 + 0.5**2) / (2**2 + 2.5**2))
    torch.testing.assert_close(noisy.forecast_error, torch.full((5,), error))
    once = replace(plan, kind="sde", noise=0.5, recorded=recorded & (torch.arange(8) == 2), interval=2)
    found = finished(denoise(line, STARTS, once, lambda step: torch.ones(5, 1))).forecast_error
    error = math.sqrt((1 + 1) / (1**2 + 2**2 + 2.5**2))  # at steps 4 and 6: the change over a step with noise is none
    torch.testing.assert_close(found, torch.full((5,), error))


def test_heun_solves_rows_with_and_without_noise_side_by_side():
    recorded = torch.zeros(5, 8, dtype=torch.bool)
    recorded[1, 2] = recorded[3, 4] = recorded[[0, 2, 4], [0, 0, 0]] = True
    noise = torch.randn(5, 1, generator=torch.Generator().manual_seed(0))
    path = finished(denoise(velocity, STARTS, Plan(LEVELS, "sde", 0.5, recorded, solver="heun"), lambda step: noise))
    for row in range(5):
        alone = Plan(LEVELS, "sde", 0.5, recorded[row : row + 1], solver="heun")
        own = finished(denoise(velocity, STARTS[row : row + 1], alone, lambda step, row=row: noise[row : row + 1]))
        torch.testing.assert_close(own.latents[0], path.latents[row])
