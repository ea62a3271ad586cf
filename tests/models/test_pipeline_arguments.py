"""What a pipeline's own call is given, by its signature; prompts that are cut; schedulers; and few-step models."""

from __future__ import annotations

import inspect
import json
import shutil
from types import SimpleNamespace

import diffusers
import numpy as np
import pytest
import torch

import burnish
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support.generators import Generator, arguments_of, call_of, folder_of
from tests.support.model_runs import changed, refused


@pytest.mark.parametrize(
    ("kind", "name", "off"),
    [
        ("StableDiffusionXL", "guidance_scale", 1.0), ("Wan", "guidance_scale", 1.0),
        ("Flux2Klein", "guidance_scale", 1.0), ("QwenImage", "true_cfg_scale", 1.0),
        ("FluxKontext", "true_cfg_scale", 1.0), ("ZImage", "guidance_scale", 0.0), ("Krea2", "guidance_scale", 0.0),
    ],
)  # fmt: skip
def test_guidance_is_given_by_its_name_and_is_off_at_one(kind, name, off):
    prompt = Prompt(text="a cat", negative="blurred")
    guided, plain = (call_of(f"{kind}Pipeline", guidance, prompt) for guidance in (4.0, 1.0))
    assert (guided[name], plain[name]) == (4.0, off)
    takes = "negative_prompt" in inspect.signature(getattr(diffusers, f"{kind}Pipeline").__call__).parameters
    assert guided.get("negative_prompt") == ("blurred" if takes else None)
    assert "negative_prompt" not in plain


BARE = Prompt(text="a cat")
PICTURED = Prompt(text="a cat", images=(Media.array(np.zeros((8, 8, 3), np.uint8)),))


@pytest.mark.parametrize(
    ("kind", "guidance", "prompt", "rollout", "given"),
    [
        # a guider that is a part gets the negative prompt
        ("HunyuanVideo15", 1.0, None, {}, {"negative_prompt": "blurred"}),
        ("HunyuanImage", 1.0, None, {}, {"negative_prompt": "blurred"}),
        ("MotifVideo", 1.0, BARE, {}, {"negative_prompt": None}),
        # without one a pipeline takes its own default, a long text, zeros or nothing, if it guides without one
        ("Kandinsky5I2V", 4.0, PICTURED, {}, {"negative_prompt": None}),
        ("StableAudio", 4.0, BARE, {}, {"negative_prompt": None}),
        ("QwenImage", 4.0, BARE, {}, {"negative_prompt": ""}),
        ("EasyAnimate", 4.0, BARE, {}, {"negative_prompt": ""}),
        # guidance that is an input
        *((kind, 1.0, BARE, {}, {"guidance_scale": None}) for kind in ("Flux2", "SanaSprint", "FluxKontext")),
        *((kind, 1.0, BARE, {"embedded_guidance": 2.5}, {"guidance_scale": 2.5}) for kind in ("Flux2", "SanaSprint")),
        # what the user gives comes before what is made; perturbed attention can be left out
        ("FluxKontext", 1.0, BARE, {}, {"max_area": 64 * 32}),
        ("FluxKontext", 1.0, BARE, {"call": {"max_area": 512}}, {"max_area": 512}),
        ("StableDiffusionXLPAG", 4.0, BARE, {"call": {"pag_scale": 0.0}}, {"pag_scale": 0.0}),
        # each step is run by itself unless a cache is asked for
        ("QwenImage21", 1.0, BARE, {}, {"use_kv_cache": False}),
        ("QwenImage21", 1.0, BARE, {"call": {"use_kv_cache": True}}, {"use_kv_cache": True}),
        ("QwenImage", 1.0, BARE, {}, {"use_kv_cache": None}),
        ("LTX", 1.0, BARE, {"fps": 8.0, "num_frames": 9}, {"frame_rate": 8.0, "num_frames": 9, "height": 64}),
        ("DiT", 1.0, Prompt(text=" 207 "), {}, {"class_labels": [207], "prompt": None}),
        ("DiT", 1.0, BARE, {"call": {"class_labels": [207]}}, {"class_labels": [207]}),
    ],
)  # fmt: skip
def test_arguments_of_a_call(kind, guidance, prompt, rollout, given):
    found = call_of(f"{kind}Pipeline", guidance, prompt, **rollout)
    assert {name: found.get(name) for name in given} == given


@pytest.mark.parametrize(
    ("kind", "name", "listed"),
    [("FluxKontext", "image", False), ("JoyImageEditPlus", "images", True), ("OmniGen", "input_images", True)],
)
def test_pictures_are_given_by_the_name_that_a_pipeline_has_for_them(kind, name, listed):
    assert isinstance(call_of(f"{kind}Pipeline", 1.0, PICTURED)[name], list) == listed


@pytest.mark.parametrize(
    ("kind", "prompt", "rollout", "names"),
    [
        ("Flux2", BARE, {"guidance_scale": 4.0}, ["rollout.guidance_scale is 4", "rollout.embedded_guidance"]),
        ("Wan", BARE, {"embedded_guidance": 4.0}, ["rollout.embedded_guidance is 4", "rollout.guidance_scale"]),
        ("Wan", BARE, {"shift": 3.0}, ["rollout.shift is 3.0"]),
        ("Wan", BARE, {"call": {"guidance_scale": 3.0}}, ["rollout.call", "'guidance_scale'", "num_frames"]),
        ("ZImage", BARE, {"num_frames": 5}, ["rollout.num_frames is 5"]),
        ("StableDiffusionXLPAG", BARE, {"guidance_scale": 4.0}, ["pag_scale: 0"]),
        ("StableDiffusionSAG", BARE, {}, ["StableDiffusionPipeline"]),
        ("Kandinsky", BARE, {}, ["image_embeds"]),
        ("KandinskyV22", BARE, {}, ["image_embeds"]),
        ("StableCascadeDecoder", BARE, {}, ["image_embeddings"]),
        ("DiT", BARE, {}, ["'a cat'", "207"]),
        ("Wan", PICTURED, {}, ["a cat", "picture"]),
        ("WanImageToVideo", BARE, {}, ["a cat", "picture"]),
        ("Wan", Prompt(text="a cat", inputs=(("mask_image", PICTURED.images[0]),)), {}, ["mask_image"]),
    ],
)
def test_what_a_pipeline_does_not_take_is_refused(kind, prompt, rollout, names):
    with pytest.raises(UserError) as error:
        call_of(f"{kind}Pipeline", 1.0, prompt, **rollout)
    if kind != "WanImageToVideo" and not (kind == "Wan" and prompt.images):
        names = [*names, f"{kind}Pipeline"]
    assert [name for name in names if name not in str(error.value)] == []


def test_pipelines_of_embedded_guidance_are_still_called_so():
    from burnish.models.flow.arguments import EMBEDDED

    names = [name for name in diffusers._import_structure["pipelines"] if name.endswith("Pipeline")]
    assert all(any(name.startswith(beginning) for name in names) for beginning in EMBEDDED)


def test_pictures_may_have_their_channels_last_and_what_is_transparent_shows_white():
    arguments = arguments_of("StableDiffusionAdapterPipeline")
    picture = torch.rand(1, 3, 8, 16, generator=torch.Generator().manual_seed(0))
    for given in (picture, picture.permute(0, 2, 3, 1).numpy()):
        assert torch.equal(arguments.tensor(SimpleNamespace(images=given)), picture)
    red, clear = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 0.25])
    images = torch.stack([red, clear], -1).view(1, 4, 1, 2)
    found = arguments_of("QwenImage21Pipeline").tensor(SimpleNamespace(images=images))
    assert found[0, :, 0].T.tolist() == [[1.0, 0.0, 0.0], [1.0, 0.75, 0.75]]


# Schedulers

STABLE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0}
CLIPS = {**STABLE, "clip_sample": True}
SPACED = {**STABLE, "timestep_spacing": "linspace", "clip_sample": False}


@pytest.fixture
def with_scheduler(tmp_path):
    """A tiny pipeline with another scheduler: that of Stable Diffusion, or of Stable Diffusion 3 for flows."""

    def write(kind, config):
        flows = config.get("use_flow_sigmas") or kind.startswith("FlowMatch")
        name = "sd3" if flows else "if" if config.get("clip_sample") else "sd1.5"
        path = shutil.copytree(folder_of(name), tmp_path / kind)
        getattr(diffusers, kind)(**config).save_pretrained(path / "scheduler")
        changed(path / "model_index.json", scheduler=["diffusers", kind])
        return path

    return write


@pytest.mark.parametrize(
    ("kind", "config", "steps"),
    [
        ("DDPMScheduler", {**CLIPS, "clip_sample_range": 0.8, "variance_type": "learned_range"}, 4),
        ("DDPMScheduler", {**STABLE, "clip_sample": False, "thresholding": True}, 4),
        ("DPMSolverMultistepScheduler", {**STABLE, "thresholding": True, "solver_order": 1}, 4),
        ("UniPCMultistepScheduler", {**FLOW, "thresholding": True, "solver_order": 1}, 4),
        ("DDIMScheduler", {**SPACED, "timestep_spacing": "leading"}, 4),
        ("DDIMScheduler", {**SPACED, "timestep_spacing": "trailing"}, 4),
        ("EulerDiscreteScheduler", {**STABLE, "interpolation_type": "log_linear"}, 4),
        # a last step of no length is left out
        ("UniPCMultistepScheduler", {**FLOW, "final_sigmas_type": "sigma_min"}, 3),
        ("DEISMultistepScheduler", {**STABLE, "use_beta_sigmas": True}, 3),
        ("PNDMScheduler", {**STABLE, "set_alpha_to_one": False}, 4),
    ],
)
def test_steps_of_a_scheduler_are_those_of_its_pipeline(kind, config, steps, with_scheduler):
    ours = Generator(with_scheduler(kind, config), rollout={"height": 32, "width": 32})
    asked = ours.asked("a cat")  # compared with the pipeline's own run
    times = ours.times(asked)
    assert len(times) == steps + 1
    assert (times[1:] < times[:-1]).all()
    assert (float(times[-1]) > 0.005) == (steps == 3 or kind in ("EulerDiscreteScheduler", "PNDMScheduler"))
    x = ours.start(asked)
    if config.get("clip_sample") or config.get("thresholding"):
        with torch.no_grad():  # a sample that it clips is clipped in the velocity
            clean = 30 * x - times[0] * ours.velocity(asked, 30 * x, times[:1])
        assert clean.abs().max() < 1.01


@pytest.mark.parametrize(
    ("kind", "config", "names"),
    [
        ("DDIMScheduler", CLIPS, ["clip_sample"]),
        ("DDIMScheduler", {**STABLE, "clip_sample": False, "thresholding": True}, ["thresholding"]),
        ("HeunDiscreteScheduler", CLIPS, ["clip_sample"]),
        ("DDIMScheduler", SPACED, ["250", "999, 666, 333, 0", "timestep_spacing"]),
        ("DPMSolverMultistepScheduler", {**FLOW, "use_exponential_sigmas": True}, ["157", "use_exponential_sigmas"]),
        ("SCMScheduler", {}, ["StableDiffusionPipeline"]),
    ],
)
def test_a_scheduler_that_no_velocity_follows_is_refused(kind, config, names, with_scheduler, files):
    refused(files, "sd3", f"model.path={with_scheduler(kind, config)}", names=[*names, kind])


def test_a_family_leaves_schedulers_that_it_does_not_know_to_the_pipeline_itself(with_scheduler, files):
    for kind, config, named in (
        ("FlowMatchEulerDiscreteScheduler", {"use_beta_sigmas": True}, "use_beta_sigmas"),
        ("UniPCMultistepScheduler", FLOW, "UniPCMultistepScheduler"),
    ):
        path = with_scheduler(kind, config)
        assert Generator(path, rollout={"height": 32, "width": 32}).model.runs_own
        names = ["model.family is sd3", named, "model.family=pipeline"]
        refused(files, "sd3", f"model.path={path}", "model.family=sd3", names=names)


# Prompts that are longer than what text encoders read


def test_prompts_that_are_cut_are_said_once_with_the_number_of_tokens(files, tmp_path, caplog):
    long = " ".join(f"dog {i}" for i in range(100))
    (tmp_path / "prompts.txt").write_text(f"a cat\n{long}\n{long} too\n{long}\n")
    refused(files, "sd1.5", f"data.train_files={tmp_path / 'prompts.txt'}", "rollout.height=9")
    (said,) = (one for one in caplog.messages if "more tokens" in one)
    assert "2 prompts" in said
    assert "dog 0 dog 1" in said


@pytest.mark.parametrize(("length", "reads"), [("null", None), ("20", 20)])
def test_a_prompt_that_t5_would_cut_is_refused(length, reads, files, tmp_path):
    (tmp_path / "prompts.txt").write_text(f"a cat\n{'x' * 700}\n")
    options = [f"data.train_files={tmp_path / 'prompts.txt'}", f"rollout.max_sequence_length={length}"]
    told = refused(files, "flux-dev", *options)
    assert "T5" in told
    assert reads is None or f"at most {reads} " in told
    told = refused(files, "flux-dev", "rollout.max_sequence_length=513")
    assert "rollout.max_sequence_length is 513" in told
    assert "512" in told
    refused(files, "sd3", "rollout.embedded_guidance=2.0", names=["rollout.embedded_guidance is 2.0"])


def test_a_tokenizer_of_another_model_is_refused_before_weights_are_loaded(files, tmp_path):
    for name in ("text_encoder", "text_encoder_2"):
        path = shutil.copytree(folder_of("flux-dev"), tmp_path / name)
        changed(path / name / "config.json", vocab_size=5)
        told = refused(files, "flux-dev", f"model.path={path}")
        assert f"{name} has only 5" in told


def test_texts_whose_words_are_few_tokens_are_not_read_one_by_one():
    from burnish.models.flow.truncation import longer

    class Counting:
        """A token for each word, and two more for a text of several if ``joining``; keeps what it read."""

        def __init__(self, joining=0):
            self.read, self.joining, self.model_max_length = [], joining, 10

        def num_special_tokens_to_add(self):
            return 0

        def __call__(self, texts, add_special_tokens=True):
            self.read += texts
            more = [["+"] * self.joining * (len(text.split()) > 1) for text in texts]
            return SimpleNamespace(input_ids=[text.split() + own for text, own in zip(texts, more, strict=True)])

    tokenizer, long = Counting(), "mountains " * 11
    texts = [f"photographs of {i} mountains" for i in range(5000)]
    assert longer(tokenizer, [*texts, long, "é" * 3, "ééé ééé"], 10) == {long: 11}
    assert len(tokenizer.read) < 1100
    nine = "mountains " * 9
    assert longer(Counting(2), [*texts[:1500], nine], 10) == {nine: 11}, "words are no bound where joints are tokens"


@pytest.mark.parametrize("name", ["sd3", "wan"])
def test_a_recipe_for_another_model_leaves_the_length_of_prompts_to_it(name, files):
    """The tiny model that ships with the quickstart reads none."""
    path, tiny = folder_of(name), Generator(name).rollout
    size = [f"rollout.{key}={value}" for key in ("height", "width", "num_frames") if (value := getattr(tiny, key))]
    few = ["steps=1", "data.train_batch_size=2", "rollout.n=2", "rollout.num_inference_steps=2", "scoring.processes=0"]
    few += ["algorithm.train_timesteps=1"]
    few += ["validation.every=null", "validation.before=false", "validation.reference_guidance=null"]
    rewards = ["rewards.ocr=null", "rewards.border_darkness.weight=1", f"output_dir={files / f'length-{name}'}"]
    assert burnish.train(burnish.load("quickstart", f"model.path={path}", *size, *few, *rewards)).finished


@pytest.mark.parametrize("family", ["auto", "pipeline"])
def test_the_length_that_a_model_states_is_drawn_with_and_exported(family, tmp_path):
    path, options = "burnish:quickstart/model", {"family": family, "rollout": {"height": 16, "width": 32}}
    ours = Generator(path, **options)
    assert ours.model.rollout.max_sequence_length == 0
    assert Generator(path, family=family, rollout={"max_sequence_length": 8}).model.rollout.max_sequence_length == 8
    ours.model.save_pipeline(tmp_path, dict(ours.network.state_dict()))
    assert Generator(tmp_path).model.rollout.max_sequence_length == 0


# Models of few steps are told from their configuration files, and from nothing else

EULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
DEV, SCHNELL = {"guidance_embeds": True}, {"guidance_embeds": False}
XL = {"_class_name": "StableDiffusionXLPipeline"}
TRAILING = {"_class_name": "EulerAncestralDiscreteScheduler", "timestep_spacing": "trailing"}
FEW = {
    "FLUX.2-klein-4B": ({"_class_name": "Flux2KleinPipeline", "is_distilled": True}, {}, EULER),
    "FLUX.1-s": ({"_class_name": "FluxPipeline"}, SCHNELL, EULER | {"shift": 1.0}),
    "sprinting": ({"_class_name": "SanaSprintPipeline"}, {}, {"_class_name": "SCMScheduler"}),
    "xl-t": (XL, {}, TRAILING),
    "sd-lora": (XL, {}, {"_class_name": "LCMScheduler"}),
    "Z-Image-Turbo": ({"_class_name": "ZImagePipeline"}, {}, EULER),
    "renamed": ({"_class_name": "ZImagePipeline"}, {"_name_or_path": "Tongyi-MAI/Z-Image-Turbo"}, EULER),
    "sdxl_lightning_4step": (XL, {}, {"_class_name": "EulerDiscreteScheduler"}),
}  # fmt: skip
MANY = {
    "FLUX.2-klein-base-4B": ({"_class_name": "Flux2KleinPipeline", "is_distilled": False}, {}, EULER),
    "FLUX.1-dev": ({"_class_name": "FluxPipeline"}, DEV, EULER),
    "Chroma1-HD": ({"_class_name": "ChromaPipeline"}, {}, EULER | {"shift": 1.0}),
    "stable-diffusion-xl-base-1.0": (XL, {}, {"timestep_spacing": "leading"}),
    "zero-snr": (XL, {}, {"timestep_spacing": "trailing", "prediction_type": "v_prediction"}),
    "saturbox-admd-art": ({"_class_name": "ZImagePipeline"}, {}, EULER),
}  # fmt: skip


def cautions(path, *more):
    return list(burnish.load("quickstart", f"model.path={path}", *more).cautions())


@pytest.mark.parametrize("name", [*FEW, *MANY])
def test_a_model_of_few_steps_is_told_before_a_run_of_many(name, tmp_path):
    index, transformer, scheduler = (FEW | MANY)[name]
    for part, content in (("transformer/config", transformer), ("scheduler/scheduler_config", scheduler)):
        (file := tmp_path / name / f"{part}.json").parent.mkdir(parents=True)
        file.write_text(json.dumps(content))
    (tmp_path / name / "model_index.json").write_text(json.dumps(index))
    given = ["rollout.num_inference_steps=28"]
    found = cautions(tmp_path / name, *given)
    assert len(found) == (name in FEW)
    assert all("rollout.num_inference_steps is 28" in one for one in found)


def test_an_adapter_may_make_it_one():
    assert cautions(folder_of("sd3")) == []
    (found,) = cautions(folder_of("sd3"), "model.lora.path=adapters/sdxl_lightning_4step")
    assert "sdxl_lightning_4step" in found
    assert "lightning" in found
