"""Our Stable Diffusion 3 draws what diffusers' own pipeline draws."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from diffusers.models.attention_processor import JointAttnProcessor2_0

from burnish.algorithms.flow.base import Needs, Recording
from burnish.flow.windows import Window
from burnish.models.flow.loading import load_model
from burnish.models.lora import add_adapters
from burnish.options.flow import LoraOptions, ModelOptions, RolloutOptions
from burnish.tasks.flow.engine import FlowEngine, FlowJob
from burnish.tasks.flow.roles import FlowRoles
from burnish.types.rollout import Prompt
from burnish.utils import random
from burnish.utils.errors import UserError
from burnish.utils.paths import resolve
from tests.support.factory import tiny_pipeline

PROMPTS = [Prompt(text="a cat 42"), Prompt(text="dog", negative="cat")]


def engine(path, rollout, **model):
    roles = FlowRoles(
        load_model(ModelOptions(path=str(path), **model), rollout),
        Needs(), None, guidance=rollout.guidance_scale, micro_batch_size=8, on_policy=True, seed=0,
    )  # fmt: skip
    return FlowEngine(roles, rollout, seed=3)


NOISELESS = [None, *(Recording(kind, 0.0, Window(), "squared_error", False) for kind in ("sde", "cps", "dance"))]


def both(path, rollout, how, *, vae, t5, blanks):
    """Latents and pictures of our engine, and latents and pictures of diffusers' pipeline, from the same noise."""
    sampler = engine(path, rollout)
    job = FlowJob.groups(PROMPTS, 2, purpose="sample", update=0, recording=how)
    parts = list(sampler.sample(job))
    pipeline = StableDiffusion3Pipeline.from_pretrained(
        path, **({} if vae else {"vae": None}), **({} if t5 else {"text_encoder_3": None, "tokenizer_3": None})
    )
    pipeline.set_progress_bar_config(disable=True)
    keys = [(3, "sample", 0, p.uid, s, "start") for p, s in zip(job.prompts, job.sample.tolist(), strict=True)]
    scale = pipeline.vae_scale_factor
    arguments = {
        "prompt": [p.text for p in job.prompts],
        "negative_prompt": [p.negative for p in job.prompts],
        "latents": random.normal(sampler.latent_shape(job.prompts[0]), keys),
        "num_inference_steps": rollout.num_inference_steps,
        "guidance_scale": rollout.guidance_scale,
        "height": sampler.latent_shape(job.prompts[0])[1] * scale,
        "width": sampler.latent_shape(job.prompts[0])[2] * scale,
        "max_sequence_length": blanks,
    }
    theirs = pipeline(**arguments, output_type="latent").images
    decoded = pipeline(**arguments, output_type="np").images if vae else None
    ours = torch.cat([trace.latents for _, trace, _ in parts])
    return ours, np.stack([p for _, _, chunk in parts for p in chunk]), theirs, decoded


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize(("vae", "t5"), [(True, False), (False, False), (True, True)])
def test_same_noise_gives_the_pictures_of_diffusers(tmp_path, vae, t5, guidance):
    path = tiny_pipeline(tmp_path, vae=vae, t5=t5)
    rollout = RolloutOptions(num_inference_steps=5, guidance_scale=guidance, batch_size=3, max_sequence_length=12)
    ours, pictures, theirs, decoded = both(path, rollout, None, vae=vae, t5=t5, blanks=12)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    if vae:
        expected = (decoded * 255).round().astype(int)
        assert np.abs(pictures.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("how", NOISELESS, ids=["ode", "sde", "cps", "dance"])
def test_without_noise_every_transition_draws_what_diffusers_draws_with_the_quickstarts_model(how, guidance):
    rollout = RolloutOptions(batch_size=96, num_inference_steps=8, guidance_scale=guidance, height=16, width=32)
    path = resolve("burnish:quickstart/model")
    ours, _, theirs, _ = both(path, rollout, how, vae=False, t5=False, blanks=0)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_leaving_out_unread_text_changes_neither_velocity_nor_gradient(tmp_path):
    path = tiny_pipeline(tmp_path, vae=False)
    lora = LoraOptions(rank=2)
    x, time = torch.randn(3, 1, 8, 8), torch.tensor([0.2, 0.5, 1.0])
    results = []
    for shorter in (True, False):
        model = load_model(
            ModelOptions(path=str(path), lora=lora), RolloutOptions(batch_size=96, max_sequence_length=3)
        )
        add_adapters(model.network, lora, ["policy"], seed=0, default_targets=model.lora_targets)
        if not shorter:
            model.network.transformer_blocks[-1].attn.set_processor(JointAttnProcessor2_0())
        parameters = {n: p for n, p in model.network.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.add_(0.1)
        velocity = model.velocity(model.network, x, time, model.encode(["a cat", "dog", ""]))
        velocity.square().sum().backward()
        results.append((velocity, {n: p.grad for n, p in parameters.items()}))
    (ours, short), (theirs, whole) = results
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for name, gradient in whole.items():
        expected = torch.zeros_like(gradient) if short[name] is None else short[name]
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4, msg=name)
    assert any(gradient is None for gradient in short.values())


def test_a_prompt_that_is_too_long_is_refused_not_cut(tmp_path):
    sampler = engine(tiny_pipeline(tmp_path), RolloutOptions(batch_size=96, num_inference_steps=2))
    with pytest.raises(UserError, match="has 22 tokens, but this model reads at most 16"):
        list(sampler.sample(FlowJob.groups([Prompt(text="x" * 20)], 1, purpose="sample", update=0)))


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"height": 9}, "rollout.height is 9, but this model needs multiples of 4 pixels; use 8 or 12"),
        ({"width": 64}, "rollout.width is 64, but this model supports at most 32 pixels"),
    ],
)
def test_sizes_that_the_model_cannot_draw_are_refused(tmp_path, rollout, message):
    with pytest.raises(UserError, match=message):
        engine(tiny_pipeline(tmp_path), RolloutOptions(batch_size=96, **rollout)).latent_shape(Prompt(text=""))


def test_a_directory_that_is_no_pipeline_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a directory"):
        load_model(ModelOptions(path=str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match=r"no model_index\.json"):
        load_model(ModelOptions(path=str(tmp_path)))
    (tmp_path / "model_index.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load_model(ModelOptions(path=str(tmp_path)))
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "SonaPipeline"}))
    with pytest.raises(UserError, match=r"a SonaPipeline, which is no pipeline of diffusers [\d.]+; install"):
        load_model(ModelOptions(path=str(tmp_path)))
