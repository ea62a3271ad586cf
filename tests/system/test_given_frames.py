"""A model whose clips begin with the picture of their prompt: that frame is no part of what algorithms learn from."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from burnish.algorithms.flow.awm import AWM
from burnish.algorithms.flow.base import Needs, Recording
from burnish.algorithms.flow.crd import CRD
from burnish.algorithms.flow.dgpo import DGPO
from burnish.algorithms.flow.diffusion_dpo import DiffusionDPO
from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.flow.sft import SFT
from burnish.flow.windows import Window
from burnish.models.flow.loading import load_model
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.flow import LoraOptions, ModelOptions, RolloutOptions
from burnish.tasks.flow.engine import FlowEngine, FlowJob
from burnish.tasks.flow.roles import FlowRoles
from burnish.types.media import Media
from burnish.types.rollout import Denoising, Prompt, Scored, Scores

LEARNERS = [
    DiffusionNFT(train_timesteps=2), AWM(kl_coef=0.1, train_timesteps=2), DGPO(kl_coef=0.1, train_timesteps=2),
    CRD(kl_coef=0.1, train_timesteps=2), DiffusionDPO(beta=10.0, sft_coef=0.1), SFT(online=True),
    FlowGRPO(kl_coef=0.1),
]  # fmt: skip


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """Roles of a tiny image-to-video model, and clips that it has drawn from two pictures."""
    folder = tmp_path_factory.mktemp("given") / "model"
    write(describe("wan2.2-5b-i2v"), folder, seed=0)
    rollout = RolloutOptions(
        batch_size=96,
        n=2,
        num_inference_steps=2,
        guidance_scale=1.0,
        max_sequence_length=16,
        height=32,
        width=32,
        num_frames=5,
    )
    lora = LoraOptions(rank=2)
    recording = Recording("sde", 0.7, Window())
    needs = Needs(recording=recording, reference=True, lagged=("old",))
    roles = FlowRoles(
        load_model(ModelOptions(path=str(folder), lora=lora, dtype="float32"), rollout),
        needs, lora, guidance=1.0, micro_batch_size=100, on_policy=True, seed=0,
    )  # fmt: skip
    pictures = [Media.array(np.full((32, 32, 3), shade, np.uint8)) for shade in (30, 220)]
    prompts = [Prompt(text="it moves", images=(picture,)) for picture in pictures]
    job = FlowJob.groups(prompts, 2, purpose="rollout", update=1, recording=recording)
    trace = Denoising.cat([trace for _, trace, _ in FlowEngine(roles, rollout, seed=0).sample(job)])
    reward, none = torch.arange(4.0), torch.zeros(4, dtype=torch.bool)
    scores = Scores(reward=reward, missing=none, components=reward[:, None], names=("r",), notes=[""] * 4)
    return roles, Scored(
        prompts=job.prompts, group=job.group, sample=job.sample, trace=trace, scores=scores, update=1, version=0, seed=0
    )


def gradient(algorithm, roles, scored):
    """Of the loss of an update, by the policy's weights."""
    weights = roles.parameters()
    for value in weights.values():
        value.grad = None
    for part in algorithm.micro_batches(algorithm.credit(algorithm.annotate(scored, roles))[0], 100):
        algorithm.loss(part, roles).total.backward()
    return torch.cat([value.grad.flatten() for value in weights.values()])


@pytest.mark.slow
def test_its_values_change_no_gradient(sampled):
    roles, scored = sampled
    trace = scored.trace
    assert trace.share.tolist() == [0.5] * 4, "one of two frames of latents is given"
    other = torch.where(trace.noised, trace.latents, 100.0)
    changed = replace(scored, trace=replace(trace, latents=other))
    for algorithm in LEARNERS:
        found = gradient(algorithm, roles, scored)
        assert found.abs().max() > 0, algorithm.name
        assert torch.equal(gradient(algorithm, roles, changed), found), algorithm.name
    (part,) = LEARNERS[0].micro_batches(LEARNERS[0].credit(changed)[0], 100)
    assert (part.noisy.masked_select(~trace.noised[:1].expand_as(part.noisy)) == 100.0).all()
    assert (part.target.masked_select(~trace.noised[:1].expand_as(part.noisy)) == 0.0).all()
