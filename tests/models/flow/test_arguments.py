"""What a pipeline's own call is given, by its signature."""

from __future__ import annotations

import inspect
import itertools
import json
from types import SimpleNamespace
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from burnish.models.flow.arguments import EMBEDDED, NEEDS_NEGATIVE, Arguments
from burnish.models.flow.loading import load_model
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.flow import ModelOptions, RolloutOptions
from burnish.types.batch import Gathered
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.rollout import Requests
from burnish.utils.errors import UserError


def given(kind: str, guidance: float, negative: str = "blurred", **rollout: Any) -> dict[str, Any]:
    """The arguments for a prompt."""
    arguments = Arguments(getattr(diffusers, kind), RolloutOptions(batch_size=96, **rollout))
    arguments.check()
    row = Requests(prompts=[Prompt(text="a cat", negative=negative)], height=64, width=32, steps=4)
    return arguments.of(row, guidance)


def refusal(kind: str, **rollout: Any) -> str:
    with pytest.raises(UserError) as error:
        Arguments(getattr(diffusers, kind), RolloutOptions(batch_size=96, **rollout)).check()
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "name", "off"),
    [
        ("StableDiffusionXLPipeline", "guidance_scale", 1.0),
        ("WanPipeline", "guidance_scale", 1.0),
        ("Flux2KleinPipeline", "guidance_scale", 1.0),
        ("QwenImagePipeline", "true_cfg_scale", 1.0),
        ("FluxKontextPipeline", "true_cfg_scale", 1.0),
        ("ZImagePipeline", "guidance_scale", 0.0),
        ("Krea2Pipeline", "guidance_scale", 0.0),
    ],
)
def test_guidance_is_given_by_its_name_and_is_off_at_one(kind, name, off):
    assert (given(kind, 4.0)[name], given(kind, 1.0)[name]) == (4.0, off)
    takes = "negative_prompt" in inspect.signature(getattr(diffusers, kind).__call__).parameters
    assert given(kind, 4.0).get("negative_prompt") == ("blurred" if takes else None)
    assert "negative_prompt" not in given(kind, 1.0)


@pytest.mark.parametrize("kind", ["HunyuanVideo15Pipeline", "HunyuanImagePipeline", "MotifVideoPipeline"])
def test_a_guider_that_is_a_part_gets_the_negative_prompt(kind):
    assert given(kind, 1.0)["negative_prompt"] == "blurred"
    assert "negative_prompt" not in given(kind, 1.0, negative="")


@pytest.mark.parametrize(
    ("kind", "name", "listed"),
    [
        ("FluxKontextPipeline", "image", False),
        ("JoyImageEditPlusPipeline", "images", True),
        ("OmniGenPipeline", "input_images", True),
    ],
)
def test_pictures_are_given_by_the_name_that_a_pipeline_has_for_them(kind, name, listed):
    arguments = Arguments(getattr(diffusers, kind), RolloutOptions(batch_size=96))
    prompt = Prompt(text="a cat", images=(Media.array(np.zeros((8, 8, 3), np.uint8)),))
    arguments.check_prompts([prompt])
    shown = arguments.of(Requests(prompts=[prompt], height=8, width=8, steps=4), 1.0)[name]
    assert isinstance(shown, list) == listed


@pytest.mark.parametrize("kind", ["Kandinsky5I2V", "Cosmos2_5_Transfer", "StableAudio", "Wan", "HunyuanVideo",
                                  "QwenImage", "EasyAnimate"])  # fmt: skip
def test_without_a_negative_prompt_a_pipeline_takes_its_own_default_if_it_guides_without_one(kind):
    """The default may be a long text (Kandinsky, Cosmos), zeros (audio), or empty."""
    call = inspect.unwrap(getattr(diffusers, f"{kind}Pipeline").__call__)
    needs = kind.startswith(NEEDS_NEGATIVE) or "and has_neg_prompt" in inspect.getsource(call)
    assert given(f"{kind}Pipeline", 4.0, negative="").get("negative_prompt") == ("" if needs else None)


@pytest.mark.parametrize("kind", ["Flux2Pipeline", "FluxFillPipeline", "SanaSprintPipeline", "FluxKontextPipeline"])
def test_guidance_that_is_an_input_keeps_the_default_of_the_pipeline(kind):
    assert "guidance_scale" not in given(kind, 1.0)
    assert given(kind, 1.0, embedded_guidance=2.5)["guidance_scale"] == 2.5


def test_pipelines_of_embedded_guidance_are_still_called_so():
    names = [name for name in diffusers._import_structure["pipelines"] if name.endswith("Pipeline")]
    for beginning in EMBEDDED:
        assert any(name.startswith(beginning) for name in names), beginning


@pytest.mark.parametrize(
    ("kind", "rollout", "words"),
    [
        ("Flux2Pipeline", {"guidance_scale": 4.0}, "rollout.embedded_guidance"),
        ("WanPipeline", {"embedded_guidance": 4.0}, "rollout.guidance_scale"),
        ("WanPipeline", {"shift": 3.0}, "rollout.shift is 3.0"),
        ("WanPipeline", {"call": {"guidance_scale": 3.0}}, "it takes num_frames"),
        ("ZImagePipeline", {"num_frames": 5}, "takes no num_frames"),
        ("StableDiffusionXLPAGPipeline", {"guidance_scale": 4.0}, "set rollout.call={pag_scale: 0}"),
    ],
)
def test_what_a_pipeline_does_not_take_is_refused(kind, rollout, words):
    assert words in refusal(kind, **rollout)


def test_perturbed_attention_can_be_left_out():
    assert given("StableDiffusionXLPAGPipeline", 4.0, call={"pag_scale": 0.0})["pag_scale"] == 0


def test_what_the_user_gives_comes_before_what_is_made():
    assert given("FluxKontextPipeline", 1.0)["max_area"] == 64 * 32
    assert given("FluxKontextPipeline", 1.0, call={"max_area": 512})["max_area"] == 512


def test_each_step_is_run_by_itself_unless_a_cache_is_asked_for():
    assert given("QwenImage21Pipeline", 1.0)["use_kv_cache"] is False
    assert given("QwenImage21Pipeline", 1.0, call={"use_kv_cache": True})["use_kv_cache"] is True
    assert "use_kv_cache" not in given("QwenImagePipeline", 1.0)


def test_the_attention_of_a_network_is_not_read_while_it_draws():
    assert "self-attention guidance" in refusal("StableDiffusionSAGPipeline")


def test_pictures_whose_channels_come_last_are_turned_round():
    arguments = Arguments(diffusers.StableDiffusionAdapterPipeline, RolloutOptions(batch_size=96))
    picture = torch.rand(1, 3, 8, 16, generator=torch.Generator().manual_seed(0))
    for given in (picture, picture.permute(0, 2, 3, 1).numpy()):
        assert torch.equal(arguments.tensor(SimpleNamespace(images=given)), picture)


def test_what_is_transparent_shows_white():
    red, clear = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 0.25])
    images = torch.stack([red, clear], -1).view(1, 4, 1, 2)
    found = Arguments(diffusers.QwenImage21Pipeline, RolloutOptions(batch_size=96)).tensor(
        SimpleNamespace(images=images)
    )
    assert found[0, :, 0].T.tolist() == [[1.0, 0.0, 0.0], [1.0, 0.75, 0.75]]


def test_a_prompt_is_the_number_of_a_class_where_one_is_taken():
    arguments = Arguments(diffusers.DiTPipeline, RolloutOptions(batch_size=96))
    row = Requests(prompts=[Prompt(text=" 207 ")], height=None, width=None, steps=4)
    assert arguments.of(row, 1.0)["class_labels"] == [207]
    arguments.check_prompts(row.prompts)
    with pytest.raises(UserError, match="is 'a cat', but a DiTPipeline draws from the number of a class"):
        arguments.check_prompts([Prompt(text="a cat")])
    Arguments(diffusers.DiTPipeline, RolloutOptions(batch_size=96, call={"class_labels": [207]})).check_prompts(
        [Prompt(text="a cat")]
    )


@pytest.mark.parametrize("zeros", [True, False])
def test_without_a_negative_prompt_stable_diffusion_xl_is_drawn_as_diffusers_alone_draws_it(zeros, tmp_path):
    """It takes zeros then, unless its model_index.json says otherwise: not what an empty text is encoded to."""
    tiny = describe("sdxl")
    write(tiny, tmp_path, seed=0)
    index = json.loads((tmp_path / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps(index | {"force_zeros_for_empty_prompt": zeros}))
    size = {"height": tiny.height, "width": tiny.width}
    model = load_model(
        ModelOptions(path=str(tmp_path), lora=None),
        RolloutOptions(batch_size=96, num_inference_steps=4, guidance_scale=5.0, **size),
    )
    asked = Requests(prompts=[Prompt(text="a red fox")], steps=4, **size)
    row = Gathered(table=asked, index=torch.tensor([0]))
    job = SimpleNamespace(steps=4)
    x, times = model.first(asked, 3)[None], model.schedule(row, job)
    with torch.no_grad():
        for at, then in itertools.pairwise(times):
            velocity = model.predict(model.network, x, at[None], asked, asked, guidance=5.0)
            x = x + (then - at) * velocity
    ours = model.decode_tensor(x, asked)
    alone = diffusers.StableDiffusionXLPipeline.from_pretrained(tmp_path)
    alone.scheduler = model.pipeline.scheduler
    alone.set_progress_bar_config(disable=True)
    drawn = [
        alone("a red fox", negative_prompt=text, num_inference_steps=4, guidance_scale=5.0, output_type="pt",
              generator=torch.Generator().manual_seed(3), **size).images
        for text in (None, "")
    ]  # fmt: skip
    torch.testing.assert_close(ours, drawn[0], rtol=0, atol=1e-4)
    assert ((drawn[1] - drawn[0]).abs().max() > 1e-3) == zeros


@pytest.mark.parametrize(
    ("kind", "name"),
    [("KandinskyPipeline", "image_embeds"), ("KandinskyV22Pipeline", "image_embeds"),
     ("StableCascadeDecoderPipeline", "image_embeddings")],
)  # fmt: skip
def test_a_stage_that_draws_from_what_another_one_made_is_refused_by_its_signature(kind, name):
    assert f"draws from {name}, which another pipeline makes" in refusal(kind)
