"""What is told of a policy that moves away: its velocities against the reference's, signal against noise."""

import pytest
import torch

from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.flow.transitions import transition
from burnish.flow.windows import Window
from burnish.tasks.flow.drift import velocity_growth
from burnish.training.step_metrics import signal_metrics
from tests.support.factory import tiny_pipeline
from tests.support.flow_bench import Bench


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("sd3"), vae=False)


@pytest.mark.parametrize("lora", [True, False])
def test_an_untrained_policy_has_not_grown_and_a_scaled_one_has_by_that_much(pipeline, lora):
    bench = Bench(pipeline, DiffusionNFT(train_timesteps=2, kl_coef=0.1), lora=lora)
    scored = bench.collect()
    start = velocity_growth(bench.roles, scored, 8)
    assert start == {"actor/velocity_norm_ratio": pytest.approx(1.0), "actor/velocity_distance": 0.0}
    if lora:
        bench.train(2)
        assert velocity_growth(bench.roles, scored, 8)["actor/velocity_distance"] > 1e-3
        return
    last = bench.roles.model.network.proj_out
    with torch.no_grad():
        last.weight *= 1.5
        last.bias *= 1.5
    grown = velocity_growth(bench.roles, scored, 8)
    assert grown["actor/velocity_norm_ratio"] == pytest.approx(1.5, rel=1e-4)
    assert grown["actor/velocity_distance"] == pytest.approx(0.5, rel=1e-4)


def test_without_a_reference_nothing_is_compared(pipeline):
    bench = Bench(pipeline, FlowGRPO(window=Window(kind="random", size=2)), lora=False)
    assert velocity_growth(bench.roles, bench.collect(), 8) == {}


def test_looking_changes_nothing(pipeline):
    looked, other = (Bench(pipeline, FlowGRPO(window=Window(kind="random", size=2))) for _ in range(2))
    velocity_growth(looked.roles, looked.collect(), 8)
    looked.train(2)
    other.train(2)
    assert torch.equal(looked.weights(), other.weights())


@pytest.mark.parametrize("density", ["gaussian", "squared_error"])
def test_the_power_of_a_score_is_the_norm_of_its_gradient(density):
    generator = torch.Generator().manual_seed(0)
    velocity, x, landed = torch.randn(3, 5, 2, 3, 3, generator=generator).unbind(0)
    step = transition("sde", velocity, x, torch.tensor(0.6), torch.tensor(0.4), noise=0.7, t_max=0.95)
    mean = step.mean.clone().requires_grad_()
    replaced = type(step)(mean, step.std, step.step)
    (gradient,) = torch.autograd.grad(replaced.logprob(landed, density).sum(), mean)
    expected = gradient.square().flatten(1).sum(1)
    torch.testing.assert_close(step.score_power(landed, density), expected)


def powers(mean: float, terms: int) -> dict[str, float]:
    name = "variance_proxy/proxy2_total_power"
    return {f"sum {name}": mean * terms, f"count {name}": terms}


def test_signal_and_noise_are_logged_at_every_update(pipeline):
    metrics = Bench(pipeline, FlowGRPO(window=Window(kind="random", size=2))).train()
    signal, power = metrics["actor/grad_norm"] ** 2, metrics["variance_proxy/proxy2_total_power"]
    assert metrics["variance_proxy/proxy1_signal_strength"] == pytest.approx(signal)
    assert metrics["variance_proxy/proxy3_pure_noise"] == pytest.approx(max(power - signal, 0.0) / 23)  # 12 x 2 terms
    assert metrics["variance_proxy/expected_w"] > 0
    assert signal_metrics(powers(1.0, 8), 2.0)["variance_proxy/proxy3_pure_noise"] == 0.0
    assert signal_metrics(powers(1.0, 1), 0.5)["variance_proxy/proxy3_pure_noise"] == 0.0, "one term has no variance"


def test_noise_of_gradients_is_the_variance_of_their_mean():
    """Closed form: per-term gradients g_i; the variance of their mean is sum |g_i - mean|^2 / (N (N - 1))."""
    terms = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).double()
    power, mean = float(terms.square().sum(1).mean()), terms.mean(0)
    exact = float((terms - mean).square().sum() / (6 * 5))
    assert signal_metrics(powers(power, 6), float(mean.norm()))["variance_proxy/proxy3_pure_noise"] == pytest.approx(
        exact
    )
