"""Every surrogate on denoising steps: the pure function on complete samples, however they are cut and ordered."""

import pytest
import torch

from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.losses.policy import flow_clip, ppo_clip
from burnish.losses.surrogates import cispo, cpgd, gmpo, gspo, reinforce, sapo
from tests.support.step_batches import SAMPLES, STEPS, WEIGHT, gradient, logprobs, step_batch

SURROGATES = {
    "flow_clip": (flow_clip, {"clip": 0.02, "clip_high": 0.03}),
    "clip": (ppo_clip, {"clip": 0.02, "clip_high": 0.03, "dual_clip": 1.01}),
    "gspo": (gspo, {"clip": 0.02, "clip_high": 0.03}),
    "gmpo": (gmpo, {"clip": 0.02, "clip_high": 0.03}),
    "cispo": (cispo, {"clip": 1.0, "clip_high": 0.01}),
    "sapo": (sapo, {"tau_pos": 1.0, "tau_neg": 3.0}),
    "cpgd": (cpgd, {"clip": 0.02, "clip_high": 0.03, "drift_coef": 0.5, "drift_clip": 0.05}),
    "reinforce": (reinforce, {}),
}
EVERY = pytest.mark.parametrize("name", SURROGATES)


def made(name: str, **more) -> FlowGRPO:
    options = SURROGATES[name][1]
    if name == "flow_clip":  # flow_grpo's own
        return FlowGRPO(**options, **more)
    return FlowGRPO(surrogate={"name": name, **options}, **more)


@EVERY
def test_the_loss_is_the_pure_function_on_complete_samples(name):
    algorithm, (function, options) = made(name), SURROGATES[name]
    batch = step_batch(algorithm)
    weight = WEIGHT.clone().requires_grad_()
    logprob = logprobs(algorithm, batch, weight)
    found = function(logprob, batch.old, batch.advantage, batch.trained, **options)
    expected = (found.loss * batch.weight)[batch.trained].sum() / batch.trained.sum()
    expected.backward()
    assert algorithm.size(batch) == int(batch.trained.sum())
    total, slope, metrics = gradient(algorithm, batch, 100)
    assert slope.abs().max() > 1e-3
    assert total == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-6)
    torch.testing.assert_close(slope, weight.grad, rtol=1e-4, atol=1e-6)
    for key, value in found.metrics.items():
        assert metrics[key] == pytest.approx(float(value.detach()[batch.trained].mean()), rel=1e-3, abs=1e-6), key
    if found.ratio is not None:
        assert metrics["actor/ratio_mean"] == pytest.approx(float(found.ratio[batch.trained].mean()), rel=1e-5)


@EVERY
@pytest.mark.parametrize("size", [1, 3, 7])
def test_micro_batches_and_order_change_nothing_but_rounding(name, size):
    algorithm = made(name, kl_coef=0.1)
    batch = step_batch(algorithm)
    total, slope, metrics = gradient(algorithm, batch, 100)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(size))
    for again in (batch, batch.select(order)):
        other, other_slope, reported = gradient(algorithm, again, size)
        assert other == pytest.approx(total, rel=1e-4, abs=1e-6)
        torch.testing.assert_close(other_slope, slope, rtol=1e-4, atol=1e-5)
        assert reported == pytest.approx(metrics, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", ["gspo", "gmpo"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_surrogate_of_samples_gets_all_of_their_trained_steps_at_once(name, size):
    algorithm = made(name)
    batch = step_batch(algorithm)
    parts = list(algorithm.micro_batches(batch, size))
    assert sum(map(len, parts)) == algorithm.size(batch)
    seen = [count for part in parts for count in part.mask(torch.device("cpu")).sum(1).tolist()]
    assert seen == [count for count in batch.trained.sum(1).tolist() if count]


@EVERY
def test_steps_that_are_not_trained_are_as_if_they_were_not_there(name):
    """Whatever stands in them: neither their log-probs nor their advantages are read."""
    algorithm = made(name)
    batch = step_batch(algorithm)
    total, slope, _ = gradient(algorithm, batch, 3)
    batch.old = torch.where(batch.trained, batch.old, torch.nan)
    batch.advantage = torch.where(batch.trained, batch.advantage, torch.nan)
    batch.weight = torch.where(batch.trained, batch.weight, torch.nan)
    other, other_slope, _ = gradient(algorithm, batch, 3)
    assert other == total
    assert torch.equal(other_slope, slope)


@EVERY
def test_one_step_of_each_sample_is_a_sample_of_one_action(name):
    """There surrogates of samples are surrogates of steps: each looks at its own log-prob alone."""
    algorithm, (function, options) = made(name), SURROGATES[name]
    batch = step_batch(algorithm)
    batch.trained = torch.arange(STEPS) == torch.tensor([0, 1, 2, 3, 0])[:, None]
    logprob = logprobs(algorithm, batch, WEIGHT)[batch.trained][:, None]
    old, advantage = batch.old[batch.trained][:, None], batch.advantage[batch.trained][:, None]
    found = function(logprob, old, advantage, torch.ones_like(old, dtype=torch.bool), **options)
    expected = (found.loss[:, 0] * batch.weight[batch.trained]).mean()
    assert gradient(algorithm, batch, 2)[0] == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-6)
