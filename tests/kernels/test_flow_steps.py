"""Noise levels, transitions and windows: closed forms, marginals, diffusers' own numbers."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from diffusers import DDIMScheduler

from burnish.config.checks import problems
from burnish.diffusion.algorithms.policy_gradient import Window
from burnish.diffusion.steps import stratify, thinned, transition
from burnish.utils.errors import ConfigError
from tests.support.schedules import gaussian_velocity, schedule


def test_a_share_of_the_later_steps_is_rounded_up_and_evenly_spaced():
    for steps, share, kept in ((10, 0.3, [4, 7, 10]), (11, 0.7, [2, 4, 5, 7, 8, 10, 11]), (4, 1e-12, [4])):
        assert thinned(torch.arange(steps + 1), 1, share).tolist() == [0, 1, *kept]


def draws(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_one_draw_of_each_part():
    draw = stratify(draws(64))
    assert (draw * 64).floor().tolist() == list(range(64))
    together = stratify(torch.rand(3, 5))
    assert ((together * 5).floor() == torch.arange(5)).all()


KINDS = ["sde", "cps", "dance", "ddim", "ode"]
NOISY = ["sde", "cps", "dance", "ddim"]
SHAPES = [(5,), (2, 3, 2, 2)]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("t", [1.0, 0.6])
def test_without_noise_every_kind_is_eulers_step(kind, shape, t):
    x, v = draw(3, *shape), draw(3, *shape, seed=1)
    step = transition(kind, v, x, torch.tensor(t), torch.tensor(0.4), noise=0.0, t_max=0.96)
    torch.testing.assert_close(step.mean, x + (0.4 - t) * v, rtol=1e-5, atol=1e-6)
    assert (step.std == 0).all()
    torch.testing.assert_close(step.sample(draw(3, *shape, seed=2)), step.mean)


@pytest.mark.parametrize("kind", NOISY)
def test_rows_know_nothing_of_each_other(kind):
    x, v, noise = draw(4, 3, 2), draw(4, 3, 2, seed=1), torch.tensor([0.1, 0.5, 0.7, 0.9])
    t, t_next = torch.tensor([1.0, 0.9, 0.5, 0.2]), torch.tensor([0.9, 0.7, 0.3, 0.0])
    whole = transition(kind, v, x, t, t_next, noise=noise, t_max=0.9)
    landed = whole.sample(draw(4, 3, 2, seed=2))
    for i in range(4):
        row = slice(i, i + 1)
        alone = transition(kind, v[row], x[row], t[i], t_next[i], noise=noise[i], t_max=0.9)
        torch.testing.assert_close(alone.mean, whole.mean[row], rtol=0, atol=0)
        torch.testing.assert_close(alone.std, whole.std[row], rtol=0, atol=0)
        torch.testing.assert_close(alone.logprob(landed[row]), whole.logprob(landed)[row], equal_nan=True)
    halves = v.bfloat16(), x.bfloat16()
    half, raised = (
        transition(kind, *of, t, t_next, noise=noise, t_max=0.9) for of in (halves, [h.float() for h in halves])
    )
    torch.testing.assert_close(half.mean, raised.mean, rtol=0, atol=0)


def walk(kind: str, noise: float, steps: int, mean: float, std: float, stop: float, count: int = 40_000):
    """States after walking from t = 1 to the first time <= stop, and that time."""
    times = schedule(steps, once=True)
    velocity, g = gaussian_velocity(mean, std), torch.Generator().manual_seed(7)
    x = torch.randn(count, 1, generator=g)
    for t, t_next in pairwise(times):
        step = transition(kind, velocity(x, t), x, t, t_next, noise=noise, t_max=float(times[1]))
        x = step.sample(torch.randn(count, 1, generator=g))
        if t_next <= stop + 1e-6:
            return x, float(t_next)
    raise AssertionError("the schedule ends at 0")


@pytest.mark.parametrize(("kind", "noise"), [("sde", 0.7), ("dance", 0.3), ("cps", 0.6), ("ddim", 1.0)])
def test_noise_keeps_the_marginals(kind, noise):
    """Statistical: 40,000 walkers know mean and spread to 0.5 % of the spread; 400 steps add up to 1 %.

    CPS draws noise afresh but puts the predicted x_0 in place of a draw of it: it keeps the amount of noise
    and loses spread of the data (a tenth of it at t = 0.2 here); it is exact where the data is a point.
    """
    mean, std = 1.5, 0.02 if kind == "cps" else 0.5
    x, t = walk(kind, noise, 400, mean, std, stop=0.2)
    exact_std = math.sqrt((1 - t) ** 2 * std**2 + t**2)
    assert abs(float(x.mean()) - (1 - t) * mean) < 0.02 * exact_std
    assert abs(float(x.std()) / exact_std - 1) < 0.02


@pytest.mark.parametrize("kind", NOISY)
def test_log_prob_is_the_mean_of_normal_log_densities(kind):
    x, v, z = draw(3, 2, 4), draw(3, 2, 4, seed=1), draw(3, 2, 4, seed=2)
    step = transition(kind, v, x, torch.tensor(0.8), torch.tensor(0.7), noise=0.6, t_max=0.95)
    landed = step.sample(z)
    normal = torch.distributions.Normal(step.mean, step.std.view(-1, 1, 1))
    torch.testing.assert_close(step.logprob(landed), normal.log_prob(landed).flatten(1).mean(1))
    torch.testing.assert_close(
        step.logprob(landed, "squared_error"), -(step.std**2) * z.square().flatten(1).mean(1), rtol=1e-4, atol=1e-6
    )
    step = replace(step, mean=step.mean.requires_grad_(), share=torch.tensor([0.5, 1.0, 0.25]))
    for density in ("gaussian", "squared_error"):
        (score,) = torch.autograd.grad(step.logprob(landed, density).sum(), step.mean)
        torch.testing.assert_close(step.score_power(landed, density), score.square().flatten(1).sum(1))


@pytest.mark.parametrize("eta", [0.3, 1.0])
@pytest.mark.parametrize("index", [0, 3, 8])
def test_ddim_is_that_of_diffusers_after_the_change_of_variables(eta, index):
    """Of a model that predicts noise, x = a x_0 + s eps: with x / (a + s) and t = s / (a + s) it is a flow."""
    ddim = DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False, timestep_spacing="leading", steps_offset=1)
    ddim.set_timesteps(10)
    now = int(ddim.timesteps[index])
    kept = ddim.alphas_cumprod[[now, now - 100]].double()
    a, s = kept.sqrt(), (1 - kept).sqrt()
    x, eps, z = draw(2, 3, 4).double(), draw(2, 3, 4, seed=1).double(), draw(2, 3, 4, seed=2).double()
    landed = ddim.step(eps, now, x, eta=eta, variance_noise=z).prev_sample

    t, t_next = (s / (a + s)).float()
    velocity = eps - (x - s[0] * eps) / a[0]
    step = transition("ddim", velocity.float(), (x / (a + s)[0]).float(), t, t_next, noise=eta, t_max=1.0)
    torch.testing.assert_close(step.sample(z.float()), (landed / (a + s)[1]).float(), rtol=1e-4, atol=1e-5)


WINDOWS = [
    Window(start=2), Window(kind="fixed", size=2, start=1), Window(kind="random", size=3, start=2, stop=7),
    Window(kind="random", size=3, scattered=True), Window(kind="progressive", size=3, every=2, stride=2, stop=8),
]  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("steps", [9, 10, 28])
def test_window(window, steps):
    for update in range(40):
        chosen = window.choose(steps, update=update, key=update * 7 + 1)
        assert len(chosen) == (window.size or len(window.within(steps)))
        assert chosen == sorted(set(chosen))
        assert set(chosen) <= set(window.within(steps))
        assert steps - 1 not in chosen
        assert window.choose(steps, update=update, key=update * 7 + 1) == chosen


UNREAD = yaml.safe_load(Path(__file__).with_name("unread_windows.yaml").read_text())


@pytest.mark.parametrize("options", UNREAD, ids=str)
def test_an_option_that_is_never_read_is_refused(options):
    with pytest.raises(ValueError, match="size" if len(options) == 1 else [*options][-1]):
        raise ConfigError(problems(Window(**options), ()))


def test_deterministic_steps_may_include_the_last_and_windows_must_fit():
    assert Window(kind="last", size=3).choose(8, update=0, key=0, stochastic=False) == [5, 6, 7]
    assert Window(kind="last", size=3).choose(8, update=0, key=0) == [4, 5, 6]
    assert Window(kind="all").choose(4, update=0, key=0, stochastic=False) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="only the first 4"):
        Window(kind="all", stop=5).within(4, stochastic=False)
    for options in ({"stop": 10}, {"kind": "fixed", "size": 10}, {"kind": "random", "size": 3, "start": 5, "stop": 7}):
        with pytest.raises(ValueError, match="window"):
            Window(**options).choose(10, update=0, key=0)


@pytest.mark.parametrize(
    ("interval", "rounded"), [("exponential", math.ceil), ("linear", math.floor)], ids=["exponential", "linear"]
)
def test_a_falling_interval_is_rounded_as_by_the_authors(interval, rounded):
    """MixGRPO's code takes the ceiling of every exp(-0.1 max(step - 13, 0)), and the floor where it falls linearly."""
    window = Window(kind="progressive", size=4, stride=1, every=25, interval=interval, decay=0.1, decay_after=13)
    expected = []
    for step in range(21):  # 25 denoising steps, of which the last is never stochastic: 21 places for a window of 4
        beyond = max(step - 13, 0)
        exact = 25 * math.exp(-0.1 * beyond) if interval == "exponential" else 25 * (10 - beyond) / 10
        expected += [step] * rounded(exact)
    assert [window.choose(25, update=update, key=0)[0] for update in range(len(expected))] == expected
