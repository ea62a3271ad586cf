"""What must be true of every family: sizes, pictures in and out, gradients, adapters, export."""

from __future__ import annotations

import itertools
import json
import shutil

import diffusers
import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel, SD3Transformer2DModel

from burnish.flow.schedules import schedule
from burnish.models.flow.flux import FLUX, pack, unpack
from burnish.models.flow.loading import load_model
from burnish.models.flow.sd3 import SD3
from burnish.models.lora import add_adapters, lora_layers, merged_state
from burnish.options.flow import LoraOptions, ModelOptions, RolloutOptions
from burnish.utils.errors import UserError
from tests.support.factory import tiny_flux, tiny_pipeline

KINDS = [("sd3", True), ("sd3", False), ("flux", True), ("flux", False)]
TEXT = 12


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    make = {"sd3": tiny_pipeline, "flux": tiny_flux}
    return {kind: make[kind[0]](tmp_path_factory.mktemp(kind[0]), vae=kind[1]) for kind in KINDS}


@pytest.fixture(scope="module", params=KINDS, ids=["sd3 with vae", "sd3", "flux with vae", "flux"])
def path(request, pipelines):
    return pipelines[request.param]


def load(path, **options):
    return load_model(ModelOptions(path=str(path), **options), RolloutOptions(batch_size=96, max_sequence_length=TEXT))


def noise(model, count=2):
    return torch.randn(count, *model.latent_shape(8, 16), generator=torch.Generator().manual_seed(0))


VAE = {
    "latent_channels": 16, "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
}  # fmt: skip


def real_sizes(family):
    """Stable Diffusion 3.5 Medium and FLUX.1-dev as they are, but without weights."""
    with torch.device("meta"):
        if family is SD3:
            network = SD3Transformer2DModel(
                sample_size=128, patch_size=2, in_channels=16, out_channels=16, num_layers=24, attention_head_dim=64,
                num_attention_heads=24, joint_attention_dim=4096, caption_projection_dim=1536,
                pooled_projection_dim=2048, pos_embed_max_size=384, qk_norm="rms_norm",
                dual_attention_layers=tuple(range(13)),
            )  # fmt: skip
        else:
            network = FluxTransformer2DModel(guidance_embeds=True)
        vae = AutoencoderKL(**VAE)
    kind = getattr(diffusers, family.pipeline_class)
    absent = {name: None for name in kind._get_signature_keys(kind)[0] if name not in {"self", "transformer", "vae"}}
    pipeline = kind(**absent | {"transformer": network, "vae": vae, "scheduler": FlowMatchEulerDiscreteScheduler()})
    return family(pipeline, ModelOptions(path=""), RolloutOptions(batch_size=96), compute=torch.float32)


@pytest.mark.parametrize(
    ("family", "billions", "adapted"), [(SD3, 2.2, 24 * 8 - 1), (FLUX, 11.9, 19 * 12 + 38 * 3)], ids=["sd3.5", "flux"]
)
def test_the_real_sizes(family, billions, adapted):
    model = real_sizes(family)
    assert sum(p.numel() for p in model.network.parameters()) / 1e9 == pytest.approx(billions, abs=0.05)
    assert model.latent_shape(512, 512) == (16, 64, 64)
    assert model.latent_shape(1024, 768) == (16, 128, 96)
    assert model.latent_shape(None, None) == (16, 128, 128)
    assert model.image_tokens((16, 64, 64)) == 1024
    assert model.image_tokens((16, 128, 128)) == 4096
    with pytest.raises(UserError, match=r"rollout\.height is 520, .* multiples of 16 pixels; use 512 or 528"):
        model.latent_shape(520, 512)
    linear = [name for name, module in model.network.named_modules() if isinstance(module, torch.nn.Linear)]
    assert sum(any(name.endswith(f".{t}") for t in model.lora_targets) for name in linear) == adapted
    assert all(any(name.endswith(f".{t}") for name in linear) for t in model.lora_targets)


def test_a_velocity_has_the_shape_of_its_latents_and_does_not_see_its_neighbours(path):
    model = load(path)
    x, time = noise(model, 3), torch.tensor([0.1, 0.5, 1.0])
    conditioning = model.encode(["a cat", "dog", ""])
    with torch.no_grad():
        velocity = model.velocity(model.network, x, time, conditioning)
        alone = model.velocity(model.network, x[1:2], time[1:2], conditioning.select([1]))
    assert velocity.shape == x.shape
    assert velocity.dtype == torch.float32
    torch.testing.assert_close(velocity[1:2], alone, rtol=1e-4, atol=1e-5)


def test_half_precision_stays_near_and_comes_back_as_float32(path):
    # a thousandth of what bfloat16 can tell apart: others are rounded before they are embedded, as in diffusers
    x, time = noise(load(path)), torch.tensor([0.25, 0.5])
    velocities = []
    for dtype in ("float32", "bfloat16"):
        model = load(path, dtype=dtype, lora=LoraOptions(rank=2))
        model.embedded_guidance = None if model.embedded_guidance is None else 4.0
        with torch.no_grad():
            velocities.append(model.velocity(model.network, x, time, model.encode(["a cat", "dog"])))
    assert velocities[1].dtype == torch.float32
    error = (velocities[1] - velocities[0]).square().mean().sqrt() / velocities[0].square().mean().sqrt()
    assert 0 < error < 0.05


def test_decoding_is_differentiable_and_gives_the_pictures(path):
    model = load(path)
    latents = noise(model).requires_grad_()
    pixels = model.decode_tensor(latents)
    assert pixels.shape == (2, 3, 8, 16)
    assert 0 <= float(pixels.detach().min()) <= float(pixels.detach().max()) <= 1
    for picture, tensor in zip(model.decode(latents.detach()), pixels.detach(), strict=True):
        assert np.array_equal(picture, (tensor * 255).round().byte().permute(1, 2, 0).numpy())
    weights = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((pixels * weights).sum(), latents)
    direction = torch.randn(latents.shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        up, down = (model.decode_tensor(latents + s * 1e-3 * direction) for s in (1, -1))
    numeric = float(((up - down) * weights).sum()) / 2e-3
    assert float((gradient * direction).sum()) == pytest.approx(numeric, rel=0.05)


def test_recomputing_activations_changes_no_gradient(path):
    gradients = []
    for recompute in (False, True):
        model = load(path, gradient_checkpointing=recompute)
        x = noise(model).requires_grad_()
        velocity = model.velocity(model.network, x, torch.tensor([0.25, 0.75]), model.encode(["a cat", "dog"]))
        gradients.append(torch.autograd.grad(model.decode_tensor(x - velocity).square().sum(), x)[0])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


def test_pictures_become_latents_and_pictures_again(path):
    model = load(path)
    drawn = np.random.default_rng(0).integers(0, 256, (3, 8, 16, 3), dtype=np.uint8)
    if model.pipeline.vae is None:
        drawn = np.repeat(drawn[..., :1], 3, axis=3)  # it draws in grey
        assert np.array_equal(np.stack(model.decode(model.encode_pictures(list(drawn)))), drawn)
    latents = model.encode_pictures(list(drawn))
    assert latents.shape == (3, *model.latent_shape(8, 16))
    torch.testing.assert_close(model.encode_pictures([drawn[1]]), latents[1:2], rtol=1e-5, atol=1e-5)
    if (vae := model.pipeline.vae) is not None:
        with torch.no_grad():
            pixels = torch.from_numpy(drawn).permute(0, 3, 1, 2) / 255 * 2 - 1
            mean = vae.encode(pixels).latent_dist.mean
        torch.testing.assert_close(latents, (mean - vae.config.shift_factor) * vae.config.scaling_factor)


def test_pictures_of_a_wrong_size_are_refused(path):
    model = load(path)
    with pytest.raises(UserError, match=r"the width of a picture is 17, but this model needs multiples of"):
        model.encode_pictures([np.zeros((8, 17, 3), np.uint8)])
    with pytest.raises(UserError, match="must have the same shape"):
        model.encode_pictures([np.zeros((8, 8, 3), np.uint8), np.zeros((8, 16, 3), np.uint8)])


def test_latents_that_nothing_decodes_are_refused(pipelines, tmp_path):
    shutil.copytree(pipelines["flux", True], tmp_path / "copy")
    index = tmp_path / "copy" / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"vae": [None, None]}))
    with pytest.raises(UserError, match="without a VAE its latents are pictures of 1 or 3 channels, but they have 4"):
        load(tmp_path / "copy")


def test_adapters_go_where_the_family_says_unless_the_user_says_otherwise(path):
    for targets, found in ((None, {"sd3": 15, "flux": 15}), (["attn.to_q"], {"sd3": 2, "flux": 2})):
        model = load(path)
        options = LoraOptions(rank=2)
        options.targets = targets
        add_adapters(model.network, options, ["policy"], seed=0, default_targets=model.lora_targets)
        assert len(lora_layers(model.network)) == found[model.name]
    with pytest.raises(UserError, match=r"model\.lora\.targets names no layer"):
        add_adapters(load(path).network, LoraOptions(targets=[]), ["policy"], seed=0)


def moved(model, **given):
    """The model with an adapter that has learned something."""
    options = LoraOptions(rank=2, **given)
    add_adapters(model.network, options, ["policy"], seed=0, default_targets=model.lora_targets)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if "magnitude" in name:
                parameter.mul_(3)
            elif ".lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


PROMPTS = ["a cat", "dog"]
STEPS = 4


def draw(model):
    """Latents of our own Euler steps, as uint8 too."""
    x, conditioning = noise(model), model.encode(PROMPTS)
    times = schedule(
        STEPS, model.scheduler_config, kind=model.placement, tokens=model.image_tokens(model.latent_shape(8, 16))
    )
    with torch.no_grad():
        for t, t_next in itertools.pairwise(times):
            x = x + (t_next - t) * model.velocity(model.network, x, t.expand(len(x)), conditioning)
    return x


def draw_with_diffusers(pipeline, x, flux):
    pipeline.set_progress_bar_config(disable=True)
    rows, columns = x.shape[-2:]
    scale = pipeline.vae_scale_factor
    how = {} if flux else {"guidance_scale": 1.0}
    latents = pipeline(
        prompt=PROMPTS, latents=pack(x) if flux else x, num_inference_steps=STEPS, height=rows * scale,
        width=columns * scale, max_sequence_length=TEXT, output_type="latent", **how,
    ).images  # fmt: skip
    return unpack(latents, rows // 2, columns // 2) if flux else latents


@pytest.mark.parametrize("what", ["lora", "dora", "merged"])
def test_diffusers_alone_draws_the_same_from_what_is_exported(path, tmp_path, what):
    model = moved(load(path), dora=what == "dora", rslora=what == "dora")
    ours, start = draw(model), noise(model)
    absent = dict.fromkeys(model.absent_parts())
    kind = getattr(diffusers, model.pipeline_class)
    if what != "merged":
        model.save_lora(tmp_path / "out", "policy")
        pipeline = kind.from_pretrained(path, **absent)
        before = draw_with_diffusers(pipeline, start, model.name == "flux")
        assert (before - ours).abs().max() > 0.1, "the adapter changes nothing"
        pipeline.load_lora_weights(tmp_path / "out")
    else:
        model.save_pipeline(tmp_path / "out", merged_state(model.network, "policy")[0])
        pipeline = kind.from_pretrained(tmp_path / "out", **absent)
    theirs = draw_with_diffusers(pipeline, start, model.name == "flux")
    for mine, other in zip(model.decode(ours), model.decode(theirs), strict=True):
        assert np.abs(mine.astype(int) - other.astype(int)).max() <= 1
