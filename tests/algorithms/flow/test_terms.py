"""What algorithms make of transitions and losses, with a linear velocity in place of a network."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from burnish.algorithms.flow.base import Needs
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.batches.levels import NoiseLevels
from burnish.batches.samples import judge
from burnish.batches.steps import StepBatch
from burnish.flow.schedules import schedule
from burnish.tasks.flow.roles import FlowRoles
from burnish.types.rollout import Denoising, Prompt, Scored, Scores
from tests.conformance import case
from tests.support.flow_bench import unconditioned


def trajectory(state, next_state, time, time_next, logprob, times) -> Denoising:
    count = len(state)
    return Denoising(
        conditioning=unconditioned(count),
        unconditional=unconditioned(count),
        latents=next_state[:, -1],
        state=state,
        next_state=next_state,
        time=time,
        time_next=time_next,
        logprob=logprob,
        node=torch.arange(count)[:, None].expand_as(time).contiguous(),
        schedule=times,
    )


@pytest.mark.parametrize("size", [1, 2, 5, 12])
@pytest.mark.parametrize("fold", [True, False])
def test_accumulation_of_flow_grpo(size, fold):
    """The gradient of a linear velocity model, for any micro-batches, timesteps folded or not."""
    c = case("flow", "composed/flow_grpo_accumulation")
    given = c.inputs
    weight = given["W"].clone().requires_grad_()
    times, indices = schedule(10, {"shift": 3.0}), torch.tensor(given["step_indices"])
    batch = len(given["old_log_probs"])
    trace = trajectory(
        torch.stack(given["x"], 1),
        torch.stack(given["next"], 1),
        times[indices].expand(batch, -1),
        times[indices + 1].expand(batch, -1),
        given["old_log_probs"],
        times,
    )
    learned = StepBatch(
        trace=trace,
        advantage=given["advantages"][:, :1].expand(batch, len(indices)),
        weight=torch.ones(batch, len(indices)),
        trained=torch.ones(batch, len(indices), dtype=torch.bool),
        old=given["old_log_probs"],
        old_mean=torch.zeros(batch, len(indices), 0),
        reference_mean=torch.zeros(batch, len(indices), 0),
    )
    algorithm = FlowGRPO(noise_level=0.7, clip=given["clip_ratio"], fold_timesteps=fold)
    roles = SimpleNamespace(moved=True, policy=lambda x, time, conditioning, unconditional: x @ weight)
    total, rows = 0.0, 0
    for part in algorithm.micro_batches(learned, size):
        loss = algorithm.loss(part, roles).total / algorithm.size(learned)
        loss.backward()
        total, rows = total + loss.item(), rows + len(part)
        assert len(part) <= size
    assert rows == algorithm.size(learned) == batch * len(indices)
    c.close(weight.grad, c.expected["grad_W"])
    c.close(total, c.expected["accumulated_loss"])


def test_blending_the_old_policy():
    c = case("credit", "nft/ema_update")
    network = nn.Linear(3, 1, bias=False)
    roles = FlowRoles(
        SimpleNamespace(network=network, device=torch.device("cpu"), runs_own=False), Needs(lagged=("old",)), None,
        guidance=1.0, micro_batch_size=4, on_policy=True, seed=0,
    )  # fmt: skip
    with torch.no_grad():
        roles.parameters("old")["weight"].copy_(torch.tensor([c.inputs["old"]]))
        network.weight.copy_(torch.tensor([c.inputs["current"]]))
    roles.blend("old", c.inputs["decay"])
    c.close(roles.parameters("old")["weight"][0], c.expected["new_old"])
    assert not roles.is_policy("old")
    roles.blend("old", 0.0)
    assert torch.equal(roles.parameters("old")["weight"], network.weight)
    assert roles.is_policy("old")


def scored(count: int = 4, steps: int = 10, update: int = 0) -> Scored:
    trace = trajectory(
        torch.zeros(count, 1, 2), torch.arange(count * 2.0).view(count, 1, 2), torch.ones(count, 1),
        torch.ones(count, 1), torch.zeros(count, 1), schedule(steps, {"shift": 3.0}),
    )  # fmt: skip
    reward = torch.arange(float(count))
    return Scored(
        prompts=[Prompt(text=f"prompt {i // 2}") for i in range(count)],
        group=torch.arange(count) // 2,
        sample=torch.arange(count) % 2,
        trace=trace,
        scores=Scores(
            reward=reward,
            missing=torch.zeros(count, dtype=torch.bool),
            components=reward[:, None],
            names=("r",),
            notes=[""] * count,
        ),
        update=update,
        version=update,
        seed=3,
    )


class TestTimesOfNft:
    """Noise levels to train at; elsewhere they come from a generator seeded alike at every update."""

    def test_they_are_of_the_schedule_without_repetition(self):
        judged = judge(scored(), torch.ones(4), NoiseLevels(count=4))
        times = schedule(10, {"shift": 3.0})
        for row in judged.time:
            assert len(set(row.tolist())) == 4
            assert set(row.tolist()) <= set(times[:-1].tolist())
        every = judge(scored(), torch.ones(4), NoiseLevels(count=10)).time
        assert torch.equal(every.sort(1, descending=True).values, times[:-1].expand(4, -1))

    def test_they_differ_between_samples_and_updates(self):
        first = judge(scored(update=0), torch.ones(4), NoiseLevels(count=4)).time
        second = judge(scored(update=1), torch.ones(4), NoiseLevels(count=4)).time
        assert len({tuple(row.tolist()) for row in first}) == 4
        assert not torch.equal(first, second)

    @pytest.mark.parametrize("kind", ["schedule", "uniform"])
    @pytest.mark.parametrize("size", [1, 3, 5, 16])
    def test_terms_do_not_depend_on_micro_batches_or_on_other_rows(self, kind, size):
        judged = judge(scored(), torch.arange(4) / 4, NoiseLevels(count=4, kind=kind))
        whole = next(judged.terms(16))
        parts = list(judged.terms(size))
        for name in ("noisy", "time", "clean", "value"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
        row = judged.select([2])
        assert torch.equal(next(row.terms(16)).noisy, whole.noisy[8:12])
        t = whole.time[:, None]
        noise = (whole.noisy - (1 - t) * whole.clean) / t
        assert torch.unique(noise).numel() == noise.numel()
