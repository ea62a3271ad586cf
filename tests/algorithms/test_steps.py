"""Policy gradients over denoising steps, with a linear velocity in place of a network."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from burnish.registry import lookup
from burnish.rl.objectives import cispo, cpgd, flow_clip, gmpo, gspo, ppo_clip, reinforce, sapo
from burnish.types.rollout import Denoising, Prompt, Scored, Scores
from tests.conformance import case
from tests.support.schedules import plain, schedule

TIMES = schedule(6, shift=3.0)
SAMPLES, STEPS, FIXED, AWAY = 6, 4, 3, 0.05
WEIGHT = torch.tensor([[0.3, -0.2], [0.5, 0.1]])
SURROGATES = {
    "flow_clip": (flow_clip, {"clip": 0.02, "clip_high": 0.03}),
    "clip": (ppo_clip, {"clip": 0.02, "clip_high": 0.03, "dual_clip": 1.01}),
    "gspo": (gspo, {"clip": 0.02, "clip_high": 0.03}), "gmpo": (gmpo, {"clip": 0.02, "clip_high": 0.03}),
    "cispo": (cispo, {"clip": 1.0, "clip_high": 0.01}), "sapo": (sapo, {"tau_pos": 1.0, "tau_neg": 3.0}),
    "cpgd": (cpgd, {"clip": 0.02, "clip_high": 0.03, "drift_coef": 0.5}), "reinforce": (reinforce, {}),
}  # fmt: skip
ALGORITHMS = {
    "sde": ("flow_grpo", {"clip": 0.3, "kl_coef": 0.7, "kl_form": "exact"}),
    "cps": ("flow_grpo", {"clip": 0.3, "transition": "cps", "kl_coef": 0.1}),
    "means": ("dance_grpo", {"kl_coef": 0.1, "kl_form": "means", "timestep_fraction": 0.5}),
    "estimate": ("flow_grpo", {"kl_coef": 0.1, "kl_form": "k3"}),
    "guard": ("grpo_guard", {"clip": 0.3, "kl_coef": 0.1}),
    "dppo, dance": ("flow_dppo", {"transition": "dance", "kl_threshold": 0.05, "kl_measure": "means"}),
}


def made(name="flow_grpo", **options):
    return lookup("flow algorithm", name)(**options)


def linear(weight, fixed=0):
    """A role whose velocity is the weight applied to the last axis, and 0 for elements that are given."""

    def velocity(x, *rest, **more):
        return torch.cat([x[..., :2] @ weight, torch.zeros(*x.shape[:-1], fixed)], -1)

    return velocity


class Roles:
    """A policy that has moved from the one that sampled, and a reference."""

    on_policy, moved, fresh, micro_batch_size, device, clock = False, True, False, 100, torch.device("cpu"), nullcontext

    def __init__(self, weight, fixed=0):
        self.policy, self.reference = linear(weight, fixed), linear(WEIGHT - 2 * AWAY, fixed)

    def distribute(self, run, parts):
        return [run(part) for part in parts]

    def kept(self, run, parts):
        return torch.cat(self.distribute(run, parts))


def trajectory(state, next_state, index, logprob, times=TIMES):
    count, slots = state.shape[:2]
    return Denoising(
        conditioning=plain(count), latents=next_state[:, -1], state=state,
        next_state=next_state, time=times[index].expand(count, -1).contiguous(),
        time_next=times[index + 1].expand(count, -1).contiguous(), logprob=logprob,
        node=torch.arange(count)[:, None].expand(-1, slots).contiguous(), schedule=times,
    )  # fmt: skip


def judged(trace):
    count = len(trace)
    reward, missing = torch.arange(float(count)).sin(), torch.arange(count) == 1
    scores = Scores(reward=reward, missing=missing, components=reward[:, None], names=("r",), notes=[""] * count)
    return Scored(
        prompts=[Prompt(text=str(row)) for row in range(count)], group=torch.arange(count) // 3,
        sample=torch.arange(count) % 3, trace=trace, scores=scores, update=1, version=0, seed=0,
    )  # fmt: skip


def sampled(algorithm):
    draw = torch.Generator().manual_seed(4)
    states = [torch.randn(SAMPLES, 3, 2, generator=draw)]
    logprob = torch.zeros(SAMPLES, STEPS)
    for slot in range(STEPS):
        began = trajectory(states[-1][:, None], states[-1][:, None], torch.tensor([slot]), logprob[:, :1]).steps()
        step = algorithm.step(began, linear(WEIGHT + AWAY))
        states.append(step.sample(torch.randn(SAMPLES, 3, 2, generator=draw)))
        logprob[:, slot] = step.logprob(states[-1], algorithm.density)
    return judged(trajectory(torch.stack(states[:-1], 1), torch.stack(states[1:], 1), torch.arange(STEPS), logprob))


def credited(algorithm, scored, fixed=0):
    return algorithm.compute_advantages(algorithm.compute_logprobs(scored, Roles(WEIGHT + AWAY, fixed)))[0]


def learned(algorithm, batch, size=100, weight=WEIGHT, fixed=0):
    """The loss of a batch in forward passes of that size, its gradient, and means of what it reports."""
    weight, total, sums = weight.clone().requires_grad_(), 0.0, {}
    for part in algorithm.micro_batches(batch, size):
        loss = algorithm.loss(part, Roles(weight, fixed))
        (loss.total / algorithm.size(batch)).backward()
        total += float(loss.total.detach()) / algorithm.size(batch)
        for name, (value, terms) in loss.metrics.items():
            known = sums.get(name, (0.0, 0))
            sums[name] = (known[0] + float(value), known[1] + int(terms))
    return total, weight.grad, {name: value / terms for name, (value, terms) in sums.items()}


@pytest.mark.parametrize("name", SURROGATES)
def test_the_loss_is_the_pure_function_on_complete_samples_however_they_are_cut(name):
    function, options = SURROGATES[name]
    chosen = options if name == "flow_clip" else {"surrogate": {"name": name, **options}}
    algorithm = made(**chosen, timestep_fraction=0.75)
    batch = credited(algorithm, sampled(algorithm))
    assert batch.trained.sum(1).tolist() == [3] * (SAMPLES - 1)
    weight, steps = WEIGHT.clone().requires_grad_(), batch.scored.trace.steps()
    logprob = algorithm.step(steps, linear(weight)).logprob(steps.next_state, algorithm.density).view(batch.old.shape)
    found = function(logprob, batch.old, batch.advantage, batch.trained, **options)
    expected = found.loss[batch.trained].mean()
    expected.backward()
    assert weight.grad.abs().max() > 1e-3
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    for size, given in ((100, batch), (1, batch), (3, batch.select(order))):
        total, slope, metrics = learned(algorithm, given, size)
        assert total == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-6)
        torch.testing.assert_close(slope, weight.grad, rtol=1e-4, atol=1e-5)
        for key, value in found.metrics.items():
            assert metrics[key] == pytest.approx(float(value.detach()[batch.trained].mean()), rel=1e-3, abs=1e-6), key
        if found.ratio is not None:
            assert metrics["actor/ratio_mean"] == pytest.approx(float(found.ratio[batch.trained].mean()), rel=1e-5)


@pytest.mark.parametrize(("name", "options"), ALGORITHMS.values(), ids=ALGORITHMS)
def test_the_gradient_is_that_of_finite_differences(name, options):
    """Elements that are never noised, such as those of a given first frame, change nothing."""
    algorithm = made(name, **options)
    scored = sampled(algorithm)
    batch = credited(algorithm, scored)
    total, slope, metrics = learned(algorithm, batch)
    numeric, size = torch.zeros_like(WEIGHT), 1e-3
    for at in [(i, j) for i in range(2) for j in range(2)]:
        nudge = torch.zeros_like(WEIGHT)
        nudge[at] = size
        ends = [learned(algorithm, batch, weight=WEIGHT + sign * nudge)[0] for sign in (1, -1)]
        numeric[at] = (ends[0] - ends[1]) / (2 * size)
    assert slope.abs().max() > 1e-3
    torch.testing.assert_close(slope, numeric, rtol=2e-2, atol=3e-3 * float(slope.abs().max()) + 1e-3)
    other, other_slope, reported = learned(
        algorithm, credited(algorithm, widened(algorithm, scored), FIXED), fixed=FIXED
    )
    assert other == pytest.approx(total, rel=1e-4, abs=1e-5)
    torch.testing.assert_close(other_slope, slope, rtol=1e-4, atol=1e-4)
    assert reported == pytest.approx(metrics, rel=1e-3, abs=1e-4)


def widened(algorithm, scored):
    def wider(value, more):
        return torch.cat([value, more.expand(*value.shape[:-1], FIXED)], -1)

    trace = scored.trace
    state, noised = wider(trace.state, torch.arange(1.0, 1 + FIXED)), torch.tensor([True] * 2 + [False] * FIXED)
    wide = replace(
        trace, latents=state[:, 0], state=state, next_state=state, noised=noised.expand(SAMPLES, 3, -1).contiguous()
    )
    ends = algorithm.step(wide.steps(), linear(WEIGHT, FIXED)).mean.view(state.shape)  # the same for every policy
    return replace(scored, trace=replace(wide, next_state=wider(trace.next_state, ends[..., 2:])))


@pytest.mark.parametrize("size", [1, 5, 12])
def test_accumulation_of_flow_grpo(size):
    """The published gradient of a linear velocity, for any micro-batches."""
    c = case("flow", "composed/flow_grpo_accumulation")
    given, weight, old = c.inputs, c.inputs["W"].clone().requires_grad_(), c.inputs["old_log_probs"]
    trace = trajectory(
        *(torch.stack(given[name], 1) for name in ("x", "next")), torch.tensor(given["step_indices"]), old,
        schedule(10, shift=3.0),
    )  # fmt: skip
    algorithm = made(noise_level=0.7, clip=given["clip_ratio"], old_logprob="sampler")
    scored = judged(trace)
    scored.scores.missing[:] = False
    batch = replace(credited(algorithm, scored), advantage=given["advantages"][:, :1].expand(old.shape))
    asked, total = Roles(WEIGHT), 0.0
    asked.policy = lambda x, *rest: x @ weight
    for part in algorithm.micro_batches(batch, size):
        assert len(part) <= size
        loss = algorithm.loss(part, asked).total / algorithm.size(batch)
        loss.backward()
        total += loss.item()
    c.close(weight.grad, c.expected["grad_W"])
    c.close(total, c.expected["accumulated_loss"])
