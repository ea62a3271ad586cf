"""Policy gradients over denoising steps, with a linear velocity in place of a network."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from burnish.batches.steps import StepBatch
from burnish.flow.schedules import schedule
from burnish.losses.kl import kl_estimate
from burnish.losses.policy import Surrogate, flow_clip, log_ratio, masked, ppo_clip
from burnish.losses.surrogates import cispo, cpgd, gmpo, gspo, reinforce, sapo
from burnish.registry import lookup, register
from burnish.types.rollout import Denoising, Steps
from tests.conformance import case
from tests.support.flow_bench import unconditioned

TIMES = schedule(6, {"shift": 3.0})
SAMPLES, STEPS, FIXED = 5, 4, 3
WEIGHT = torch.tensor([[0.3, -0.2], [0.5, 0.1]])
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
ALGORITHMS = {
    "sde": ("flow_grpo", {"clip": 0.3, "kl_coef": 0.7, "kl_form": "exact"}),
    "cps": ("flow_grpo", {"clip": 0.3, "transition": "cps", "kl_coef": 0.1}),
    "means": ("dance_grpo", {"kl_coef": 0.1, "kl_form": "means"}),
    "estimate": ("flow_grpo", {"kl_coef": 0.1, "kl_form": "k3"}),
    "guard": ("grpo_guard", {"clip": 0.3, "kl_coef": 0.1}),
    "guard, cps": ("grpo_guard", {"transition": "cps", "clip": 0.3, "balance": False}),
    "dppo": ("flow_dppo", {"kl_threshold": 0.05}),
    "dppo, dance": ("flow_dppo", {"transition": "dance", "kl_threshold": 0.05, "kl_measure": "means"}),
}
EVERY = pytest.mark.parametrize("name", SURROGATES)


def made(name="flow_grpo", **options):
    return lookup("flow algorithm", name)(**options)


def with_surrogate(name, **more):
    options = SURROGATES[name][1]
    return made(**options, **more) if name == "flow_clip" else made(surrogate={"name": name, **options}, **more)


def linear(weight, fixed=0):
    """A role whose velocity is the weight applied to the last axis, and 0 for elements that are given."""

    def velocity(x, *rest, **more):
        return torch.cat([x[..., :2] @ weight, torch.zeros(*x.shape[:-1], fixed)], -1)

    return velocity


def roles(weight, *, fixed=0, moved=True):
    return SimpleNamespace(moved=moved, fresh=False, policy=linear(weight, fixed))


def step_batch(algorithm, away=0.05):
    """What a policy that is ``away`` sampled, some steps of it trained: all, none, or some of a sample's."""
    draw = torch.Generator().manual_seed(4)
    asked = unconditioned(SAMPLES)
    states, landed, logprob, means, references = [torch.randn(SAMPLES, 3, 2, generator=draw)], [], [], [], []
    for slot in range(STEPS):
        steps = Steps(
            conditioning=asked, unconditional=asked, state=states[-1], next_state=states[-1],
            time=TIMES[slot].expand(SAMPLES), time_next=TIMES[slot + 1].expand(SAMPLES),
            logprob=torch.zeros(SAMPLES), time_max=float(TIMES[1]),
        )  # fmt: skip
        before = algorithm.step(steps, linear(WEIGHT + away))
        landed.append(before.sample(torch.randn(SAMPLES, 3, 2, generator=draw)))
        logprob.append(before.logprob(landed[-1], algorithm.density))
        means.append(before.mean)
        references.append(algorithm.step(steps, linear(WEIGHT - 2 * away)).mean)
        states.append(landed[-1])
    trace = trajectory(
        torch.stack(states[:-1], 1), torch.stack(landed, 1), torch.arange(STEPS), torch.stack(logprob, 1)
    )
    trained = torch.rand(SAMPLES, STEPS, generator=draw) < 0.6
    trained[0], trained[1] = True, False
    return StepBatch(
        trace=trace, advantage=torch.randn(SAMPLES, 1, generator=draw).expand(-1, STEPS).contiguous(),
        weight=0.5 + torch.rand(SAMPLES, STEPS, generator=draw), trained=trained, old=trace.logprob,
        old_mean=torch.stack(means, 1), reference_mean=torch.stack(references, 1),
    )  # fmt: skip


def trajectory(state, next_state, index, logprob, times=TIMES):
    count, slots = state.shape[:2]
    return Denoising(
        conditioning=unconditioned(count), unconditional=unconditioned(count), latents=next_state[:, -1], state=state,
        next_state=next_state, time=times[index].expand(count, -1).contiguous(),
        time_next=times[index + 1].expand(count, -1).contiguous(), logprob=logprob,
        node=torch.arange(count)[:, None].expand(-1, slots).contiguous(), schedule=times,
    )  # fmt: skip


def logprobs(algorithm, batch, weight):
    """Of all recorded steps [B, K] under a policy, from one forward pass."""
    steps = batch.trace.steps()
    return algorithm.step(steps, linear(weight)).logprob(steps.next_state, algorithm.density).view(batch.old.shape)


def learned(algorithm, batch, size, weight=WEIGHT):
    """The loss of a batch in forward passes of that size, its gradient, and means of what it reports."""
    weight, total, sums = weight.clone().requires_grad_(), 0.0, {}
    for part in algorithm.micro_batches(batch, size):
        loss = algorithm.loss(part, roles(weight))
        (loss.total / algorithm.size(batch)).backward()
        total += float(loss.total.detach()) / algorithm.size(batch)
        for name, (value, terms) in loss.metrics.items():
            known = sums.get(name, (0.0, 0))
            sums[name] = (known[0] + float(value), known[1] + int(terms))
    return total, weight.grad, {name: value / terms for name, (value, terms) in sums.items()}


@EVERY
def test_the_loss_is_the_pure_function_on_complete_samples(name):
    """Whatever stands in steps that are not trained is not read."""
    algorithm, (function, options) = with_surrogate(name), SURROGATES[name]
    batch = step_batch(algorithm)
    weight = WEIGHT.clone().requires_grad_()
    found = function(logprobs(algorithm, batch, weight), batch.old, batch.advantage, batch.trained, **options)
    expected = (found.loss * batch.weight)[batch.trained].sum() / batch.trained.sum()
    expected.backward()
    assert algorithm.size(batch) == int(batch.trained.sum())
    for field in ("old", "advantage", "weight"):
        setattr(batch, field, torch.where(batch.trained, getattr(batch, field), torch.nan))
    total, slope, metrics = learned(algorithm, batch, 100)
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
    algorithm = with_surrogate(name, kl_coef=0.1)
    batch = step_batch(algorithm)
    total, slope, metrics = learned(algorithm, batch, 100)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(size))
    for again in (batch, batch.select(order)):
        other, other_slope, reported = learned(algorithm, again, size)
        assert other == pytest.approx(total, rel=1e-4, abs=1e-6)
        torch.testing.assert_close(other_slope, slope, rtol=1e-4, atol=1e-5)
        assert reported == pytest.approx(metrics, rel=1e-3, abs=1e-5)
    parts = list(algorithm.micro_batches(batch, size))
    assert sum(map(len, parts)) == algorithm.size(batch)
    if name in ("gspo", "gmpo"):  # which need all trained steps of a sample at once
        seen = [count for part in parts for count in part.mask(torch.device("cpu")).sum(1).tolist()]
        assert seen == [count for count in batch.trained.sum(1).tolist() if count]


@pytest.mark.parametrize(("name", "options"), ALGORITHMS.values(), ids=ALGORITHMS)
def test_the_gradient_is_that_of_finite_differences(name, options):
    algorithm = made(name, **options)
    batch = step_batch(algorithm)
    _, slope, _ = learned(algorithm, batch, 100)
    numeric, size = torch.zeros_like(WEIGHT), 1e-3
    for at in [(i, j) for i in range(2) for j in range(2)]:
        nudge = torch.zeros_like(WEIGHT)
        nudge[at] = size
        ends = [learned(algorithm, batch, 100, WEIGHT + sign * nudge)[0] for sign in (1, -1)]
        numeric[at] = (ends[0] - ends[1]) / (2 * size)
    assert slope.abs().max() > 1e-3
    torch.testing.assert_close(slope, numeric, rtol=2e-2, atol=3e-3 * float(slope.abs().max()) + 1e-3)


@pytest.mark.parametrize(("name", "options"), ALGORITHMS.values(), ids=ALGORITHMS)
def test_elements_that_are_never_noised_change_no_loss_and_no_gradient(name, options):
    """Such as those of a given first frame."""
    algorithm = made(name, **options)
    (part,) = step_batch(algorithm).micro_batches(1000, by_step=False, whole_samples=False)

    def wider(value, more):
        return torch.cat([value, more.expand(*value.shape[:-1], FIXED)], -1)

    share = torch.full((len(part.steps),), 2 / (2 + FIXED))
    began = replace(part.steps, state=wider(part.steps.state, torch.arange(1.0, 1 + FIXED)), share=share)
    ends = algorithm.step(began, linear(WEIGHT, FIXED)).mean[..., 2:]  # the same for every policy
    wide = replace(
        part, steps=replace(began, next_state=wider(part.steps.next_state, ends)), old_mean=wider(part.old_mean, ends),
        reference_mean=wider(part.reference_mean, ends),
    )  # fmt: skip
    found = []
    for one, fixed in ((wide, FIXED), (part, 0)):
        weight = WEIGHT.clone().requires_grad_()
        loss = algorithm.loss(one, roles(weight, fixed=fixed))
        metrics = [(key, torch.as_tensor(value).detach(), int(n)) for key, (value, n) in loss.metrics.items()]
        found.append((loss.total, torch.autograd.grad(loss.total, weight)[0], dict(m[:2] for m in metrics)))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["flow_grpo", "flow_dppo"])
def test_on_policy_the_gradient_is_advantage_times_that_of_the_logprob(name):
    algorithm = made(name)
    batch = step_batch(algorithm, away=0.0)
    weight = WEIGHT.clone().requires_grad_()
    (part,) = algorithm.micro_batches(batch, 100)
    actual = torch.autograd.grad(algorithm.loss(part, roles(weight, moved=False)).total, weight)[0]
    expected = -(batch.weight * batch.advantage * logprobs(algorithm, batch, weight))[batch.trained].sum()
    torch.testing.assert_close(actual, torch.autograd.grad(expected, weight)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transition", ["sde", "cps"])
def test_a_kl_has_the_form_that_is_asked_for(transition):
    found = {}
    for form in ("published", "exact", "means", "k3", "unbiased"):
        algorithm = made(transition=transition, kl_coef=0.1, kl_form=form)
        batch = step_batch(algorithm)
        found[form] = learned(algorithm, batch, 3)[2]["actor/kl_loss"]
    steps, trained = batch.trace.steps(), batch.trained.flatten()
    step, mean = algorithm.step(steps, linear(WEIGHT)), batch.reference_mean.flatten(0, 1)
    square = (step.mean - mean).square().flatten(1).mean(1)
    length = step.step if transition == "sde" else 1
    expected = {
        "means": square, "exact": square / (2 * step.std**2), "published": square * length / (2 * step.std**2),
    }  # fmt: skip
    ours, theirs = (one.logprob(steps.next_state, algorithm.density) for one in (step, replace(step, mean=mean)))
    for kind in ("k3", "unbiased"):  # the same estimates as of tokens
        old = batch.old.flatten() if kind == "unbiased" else None
        expected[kind] = kl_estimate(ours, theirs, torch.ones_like(trained), kind, old=old)
    assert found == {form: pytest.approx(float(kl[trained].mean()), rel=1e-3) for form, kl in expected.items()}


@pytest.mark.parametrize("size", [1, 5, 12])
@pytest.mark.parametrize("fold", [True, False])
def test_accumulation_of_flow_grpo(size, fold):
    """The published gradient of a linear velocity, for any micro-batches, timesteps folded or not."""
    c = case("flow", "composed/flow_grpo_accumulation")
    given, weight = c.inputs, c.inputs["W"].clone().requires_grad_()
    index, old = torch.tensor(given["step_indices"]), given["old_log_probs"]
    trace = trajectory(
        *(torch.stack(given[name], 1) for name in ("x", "next")), index, old, schedule(10, {"shift": 3.0})
    )
    none = torch.zeros(*old.shape, 0)
    batch = StepBatch(
        trace=trace, advantage=given["advantages"][:, :1].expand(old.shape), weight=torch.ones(old.shape),
        trained=torch.ones(old.shape, dtype=torch.bool), old=old, old_mean=none, reference_mean=none,
    )  # fmt: skip
    algorithm = made(noise_level=0.7, clip=given["clip_ratio"], fold_timesteps=fold)
    asked = SimpleNamespace(moved=True, policy=lambda x, *rest: x @ weight)
    total = 0.0
    for part in algorithm.micro_batches(batch, size):
        assert len(part) <= size
        loss = algorithm.loss(part, asked).total / algorithm.size(batch)
        loss.backward()
        total += loss.item()
    c.close(weight.grad, c.expected["grad_W"])
    c.close(total, c.expected["accumulated_loss"])


def own_clip(logprob, old, advantage, mask, *, clip: float = 0.2) -> Surrogate:
    """PPO's, once more."""
    ratio = log_ratio(logprob, old, mask).exp()
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip))
    return Surrogate(masked(loss, mask), masked(ratio.detach(), mask), {"own/advantage": masked(advantage, mask)})


def own_k2(logprob, reference, mask) -> torch.Tensor:
    """k2, once more."""
    return (logprob - reference).square() / 2


def test_surrogates_and_estimates_of_users_are_as_good_as_ours():
    register("surrogate", "own_clip")(own_clip)
    register("kl estimator", "own_k2")(own_k2)
    for ours, theirs in (
        ({"clip": 0.02}, {"surrogate": {"name": "own_clip", "clip": 0.02}}),
        ({"kl_coef": 0.1, "kl_form": "k2"}, {"kl_coef": 0.1, "kl_form": "own_k2"}),
    ):
        batch = step_batch(made(**ours))
        found, other = (learned(made(**options), batch, 3) for options in (ours, theirs))
        assert found[0] == pytest.approx(other[0], rel=1e-5)
        torch.testing.assert_close(found[1], other[1], rtol=1e-4, atol=1e-6)
        if "surrogate" in theirs:
            assert other[2]["own/advantage"] == pytest.approx(float(batch.advantage[batch.trained].mean()), rel=1e-4)
