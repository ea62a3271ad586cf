"""Our FLUX.1 draws what diffusers' own pipeline draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline

from burnish.algorithms.flow.base import Needs
from burnish.flow.schedules import schedule
from burnish.models.flow.flux import pack, positions, unpack
from burnish.models.flow.loading import load_model
from burnish.options.flow import ModelOptions, RolloutOptions
from burnish.tasks.flow.engine import FlowEngine, FlowJob
from burnish.tasks.flow.roles import FlowRoles
from burnish.types.rollout import Prompt
from burnish.utils import random
from burnish.utils.errors import UserError
from tests.support.factory import tiny_flux

PROMPTS = [Prompt(text="a cat 42"), Prompt(text="dog", negative="cat")]
TEXT = 20  # tokens of T5
STEPS = 5


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    """Directories by (vae, guidance embedding)."""
    kinds = [(vae, guidance) for vae in (True, False) for guidance in (True, False)]
    return {kind: tiny_flux(tmp_path_factory.mktemp("flux"), vae=kind[0], guidance=kind[1]) for kind in kinds}


def load(path, *, embedded_guidance=None):
    return load_model(
        ModelOptions(path=str(path)),
        RolloutOptions(batch_size=96, max_sequence_length=TEXT, embedded_guidance=embedded_guidance),
    )  # fmt: skip


def ours(path, *, guidance, embedded_guidance):
    """Latents, pictures, and the noise that they began from."""
    model = load(path, embedded_guidance=embedded_guidance)
    roles = FlowRoles(model, Needs(), None, guidance=guidance, micro_batch_size=8, on_policy=True, seed=0)
    rollout = RolloutOptions(
        num_inference_steps=STEPS, guidance_scale=guidance, batch_size=3, height=16, width=24, schedule=model.placement
    )
    sampler = FlowEngine(roles, rollout, seed=3)
    job = FlowJob.groups(PROMPTS, 2, purpose="sample", update=0)
    parts = list(sampler.sample(job))
    keys = [(3, "sample", 0, p.uid, s, "start") for p, s in zip(job.prompts, job.sample.tolist(), strict=True)]
    latents = torch.cat([trace.latents for _, trace, _ in parts])
    return (
        latents,
        np.stack([p for _, _, chunk in parts for p in chunk]),
        random.normal(sampler.latent_shape(Prompt(text="")), keys),
    )


def theirs(path, noise, *, vae, guidance, embedded_guidance):
    pipeline = FluxPipeline.from_pretrained(path, **({} if vae else {"vae": None}))
    pipeline.set_progress_bar_config(disable=True)
    rows, columns = noise.shape[-2:]
    arguments = {
        "prompt": [p.text for p in PROMPTS for _ in range(2)],
        "negative_prompt": [p.negative for p in PROMPTS for _ in range(2)],
        "latents": FluxPipeline._pack_latents(noise, *noise.shape),
        "num_inference_steps": STEPS,
        "true_cfg_scale": guidance,
        "height": rows * pipeline.vae_scale_factor,
        "width": columns * pipeline.vae_scale_factor,
        "max_sequence_length": TEXT,
    }
    if embedded_guidance is not None:
        arguments["guidance_scale"] = embedded_guidance
    decoded = pipeline(**arguments, output_type="np").images if vae else None
    packed = pipeline(**arguments, output_type="latent").images
    return unpack(packed, rows // 2, columns // 2), decoded


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize(
    ("vae", "embeds", "embedded_guidance"), [(True, True, None), (False, True, 1.5), (True, False, None)]
)
def test_same_noise_gives_the_pictures_of_diffusers(pipelines, vae, embeds, embedded_guidance, guidance):
    path, how = pipelines[vae, embeds], {"guidance": guidance, "embedded_guidance": embedded_guidance}
    latents, pictures, noise = ours(path, **how)
    expected, decoded = theirs(path, noise, vae=vae, **how)
    torch.testing.assert_close(latents, expected, rtol=1e-4, atol=1e-4)
    if vae:
        assert np.abs(pictures.astype(int) - (decoded * 255).round().astype(int)).max() <= 1


def test_packing_is_that_of_diffusers_and_loses_nothing():
    latents = torch.randn(2, 3, 4, 6)
    packed = pack(latents)
    assert torch.equal(packed, FluxPipeline._pack_latents(latents, *latents.shape))
    assert torch.equal(unpack(packed, 2, 3), latents)
    assert torch.equal(positions(2, 3), FluxPipeline._prepare_latent_image_ids(1, 2, 3, "cpu", torch.float32))


def test_the_network_reacts_to_the_guidance_that_it_is_told(pipelines):
    x, time = torch.randn(2, 1, 4, 4), torch.tensor([0.3, 0.9])

    def velocity(embedded_guidance):
        model = load(pipelines[False, True], embedded_guidance=embedded_guidance)
        return model.velocity(model.network, x, time, model.encode(["a cat", "dog"]))

    assert torch.equal(velocity(None), velocity(3.5))
    assert not torch.allclose(velocity(1.0), velocity(3.5), atol=1e-3)


def test_guidance_cannot_be_embedded_where_there_is_no_embedding(pipelines):
    assert load(pipelines[False, False]).embedded_guidance is None
    with pytest.raises(UserError, match=r"^rollout\.embedded_guidance is 2\.0, but this FluxPipeline has no guidance"):
        load(pipelines[False, False], embedded_guidance=2.0)


def test_dev_shifts_by_the_number_of_image_tokens_and_schnell_does_not(pipelines):
    for embeds in (True, False):
        config = load(pipelines[False, embeds]).scheduler_config
        few, many = (schedule(4, config, kind="shift_once", tokens=tokens) for tokens in (1024, 4096))
        assert torch.equal(few, many) != embeds
    torch.testing.assert_close(many, torch.linspace(1, 0, 5))


def test_prompts_are_measured_by_t5_alone(pipelines):
    model = load(pipelines[False, True])
    model.check_texts(["x" * 18])  # more than CLIP's 16 tokens: it reads the beginning, as in diffusers' pipeline
    with pytest.raises(UserError, match=r"at most 20 tokens of the T5 tokenizer \(rollout\.max_sequence_length\)"):
        model.check_texts(["x" * 20])
    with pytest.raises(UserError, match="max_sequence_length is 513, but a FluxPipeline reads at most 512"):
        load_model(
            ModelOptions(path=str(pipelines[False, True])), RolloutOptions(batch_size=96, max_sequence_length=513)
        )


def test_without_a_text_encoder_it_is_refused(pipelines, tmp_path):
    import json
    import shutil

    shutil.copytree(pipelines[False, True], tmp_path / "copy")
    index = tmp_path / "copy" / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"text_encoder_2": [None, None]}))
    with pytest.raises(UserError, match="can't be loaded as a FluxPipeline"):
        load(tmp_path / "copy")
