"""Frames and sound of a sample learn from rewards of their own: against loops by hand, by the networks of LTX-2."""

from dataclasses import replace

import pytest
import torch

from burnish.registry import lookup
from burnish.types.rollout import Scores
from tests.algorithms.test_samples import Bench
from tests.support.generators import folder_of

CALL = {"max_sequence_length": 16, "stg_scale": 0, "audio_stg_scale": 0, "modality_scale": 1, "audio_modality_scale": 1}
SIZE = {"height": 32, "width": 32, "num_frames": 9, "max_sequence_length": None, "num_inference_steps": 3, "call": CALL}
STREAMS = [slice(0, 1536), slice(1536, 1568)]


def steps_by_hand(bench, batch):
    """Flow-GRPO on the policy that sampled: ratios are 1, and its slope is that of -advantage x log-prob."""
    steps, advantage, total = batch.scored.trace.steps(), batch.advantage.flatten(0, 1), 0.0
    step = bench.algorithm.step(steps, bench.roles.policy)
    for i, there in enumerate(STREAMS):
        error = (steps.next_state - step.mean)[:, there].square().mean(1)
        total = total + (advantage[:, i] * error / (2 * step.std**2)).sum() / 2
    return total


def nft_by_hand(bench, batch):
    """DiffusionNFT with old = policy: each sample is approached or left by how good its own stream is."""
    (part,), total = bench.algorithm.micro_batches(batch, 99), 0.0
    v, t = bench.roles.policy(part.state, part.time, part.conditioning, guidance=1.0), part.time[:, None]
    for i, there in enumerate(STREAMS):
        for sign, share in ((1, part.value[:, i]), (-1, 1 - part.value[:, i])):
            error = (part.state - t * (v.detach() + sign * (v - v.detach())) - part.clean)[:, there]
            total = total + 5 * (share * error.square().mean(1) / error.detach().abs().mean(1)).sum() / 2
    return total


@pytest.mark.parametrize(("name", "by_hand", "options"), [
    ("flow_grpo", steps_by_hand, {"old_logprob": "recompute"}),
    ("diffusion_nft", nft_by_hand, {"kl_coef": 0, "train_timesteps": 2, "advantage_std": "group"}),
])  # fmt: skip
def test_each_stream_learns_by_the_rewards_that_teach_it(name, by_hand, options):
    bench = Bench(folder_of("ltx2"), lookup("flow algorithm", name)(**options), **SIZE)
    values = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    scores = Scores.given(values.tolist(), {"seen": 1.0, "heard": 2.0, "together": 0.5})
    scored = replace(bench.sampled(streams={"audio"}), scores=replace(scores, streams=("video", "audio", None)))
    annotated = bench.workers.compute_logprobs(scored)
    if name == "flow_grpo":  # log-probs of the trainer and of the sampler
        torch.testing.assert_close(annotated.old, scored.trace.stream_logprob, rtol=0, atol=1e-4)
    batch, _ = bench.algorithm.compute_advantages(annotated)
    for i, own in enumerate((values[:, 0], 2 * values[:, 1])):
        reward = (own + 0.5 * values[:, 2]).view(3, 4).double()
        each = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, correction=0, keepdim=True) + 1e-4)
        found = batch.advantage[:, 0, i] if name == "flow_grpo" else 10 * batch.value[:, 0, i] - 5
        torch.testing.assert_close(found, each.flatten().float(), rtol=1e-4, atol=1e-5)
    parts, parameters = bench.algorithm.micro_batches(batch, 5), list(bench.roles.parameters().values())
    losses = sum(bench.algorithm.loss(part, bench.roles).total for part in parts), by_hand(bench, batch)
    torch.testing.assert_close(*(torch.autograd.grad(loss, parameters) for loss in losses), rtol=1e-3, atol=1e-5)
