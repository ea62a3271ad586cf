"""What pipelines draw, known by their classes alone; and decoding in tiles."""

import diffusers
import pytest
import torch

from burnish.models.flow.loading import load_model
from burnish.models.flow.universal import Universal
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.flow import ModelOptions, RolloutOptions
from burnish.utils.errors import UserError
from tests.support.factory import tiny_pipeline

DRAWN = {
    "QwenImagePipeline": "image", "FluxKontextPipeline": "image", "StableDiffusionXLPipeline": "image",
    "WanPipeline": "clip", "WanVACEPipeline": "clip", "WanVideoToVideoPipeline": "clip", "LTXPipeline": "clip",
    "SanaVideoPipeline": "clip", "SanaImageToVideoPipeline": "clip", "LattePipeline": "clip",
    "StableAudioPipeline": "sound", "AceStepPipeline": "sound", "AudioLDM2Pipeline": "sound",
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_what_a_pipeline_draws_is_known_by_its_class(name: str):
    assert Universal.draws({"_class_name": name}, RolloutOptions(batch_size=96)) == DRAWN[name]


def test_sounds_play_at_the_rate_of_the_network_that_makes_them(tmp_path):
    write(describe("longcat-audio"), tmp_path, seed=0)
    made = load_model(ModelOptions(path=str(tmp_path), device="cpu")).arguments
    sound = made.sample(diffusers.AudioPipelineOutput(torch.zeros(1, 1, 800)), finite=True)
    assert (sound.rate, sound.seconds) == (400, 2.0)


def test_large_pictures_are_decoded_in_tiles_where_that_is_asked_for(tmp_path):
    path = str(tiny_pipeline(tmp_path, vae=True))
    plain, tiled = (load_model(ModelOptions(path=path, vae_tiling=tiling)) for tiling in (False, True))
    assert not plain.pipeline.vae.use_tiling
    assert tiled.pipeline.vae.use_tiling
    small = torch.randn(1, plain.pipeline.vae.config.latent_channels, 8, 8)
    assert torch.equal(plain.decode_tensor(small, None), tiled.decode_tensor(small, None)), "one tile is the picture"


def test_tiles_without_a_vae_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"model.vae_tiling is true, but the StableDiffusion3Pipeline has no VAE"):
        load_model(ModelOptions(path=str(tiny_pipeline(tmp_path, vae=False)), vae_tiling=True))
