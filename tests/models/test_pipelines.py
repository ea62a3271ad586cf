"""Pipelines of any class draw, learn and are saved as diffusers alone has them, or are refused with what they do."""

import dataclasses
import filecmp
import gc
import math
import shutil
from pathlib import Path

import diffusers
import pytest
import torch
import yaml

from burnish.diffusion.pipeline.loading import load_teacher
from burnish.diffusion.pipeline.trace import Trace
from burnish.diffusion.steps import transition
from burnish.utils import random
from tests.support import unseen
from tests.support.generators import Generator, folder_of
from tests.support.model_runs import changed, refused, run_of
from tests.support.tiny_run import burnish

THOROUGH = pytest.mark.thorough
TEXTS = ("a red fox", "two apples on the table")
TABLES = yaml.safe_load(Path(__file__).with_name("pipelines.yaml").read_text())


@pytest.mark.parametrize(
    ("name", "guidance"), [("sd3", 3.0), ("flux-dev", 1.0), ("sdxl", 3.0), ("ernie-image", 2.0), ("sd1.5-pag", 3.0)]
)
def test_diffusers_alone_draws_the_same(name, guidance):
    ours, texts = Generator(name, guidance=guidance, steps=5), (*TEXTS, "red dog", "red cat", "red cow")
    asked = ours.asked(*texts)
    x = ours.start(asked)
    drawn = ours.images(asked, ours.draw(asked, x))
    assert (drawn[0] - drawn[1]).abs().max() > 0.01
    torch.testing.assert_close(drawn, ours.alone(texts, x), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("name", "file", "other"), TABLES["settings"])
def test_with_other_settings_diffusers_alone_draws_the_same(name, file, other, tmp_path):
    path = shutil.copytree(folder_of(name), tmp_path / name)
    changed(path / file, **other)
    ours = Generator(path, guidance=5.0, negative="", rollout={"height": 32, "width": 32})
    asked = ours.asked("a red fox")
    x = ours.start(asked)
    images = ours.images(asked, ours.draw(asked, x))
    torch.testing.assert_close(images, ours.alone(["a red fox"], x), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "what"), [("sd3", "dora"), ("pixart-sigma", "lora"), pytest.param("flux", "lora", marks=THOROUGH)]
)
def test_what_is_exported_and_folded_draws_the_same(name, what, tmp_path):
    """Also of a class without adapters of its own, as PixArt."""
    ours, plain = Generator(name, lora={"dora": what == "dora", "rslora": what == "dora"}), Generator(name)
    asked = ours.asked(*TEXTS)
    x = ours.start(asked)
    drawn = ours.draw(asked, x)
    images = ours.images(asked, drawn)
    assert (plain.draw(asked, x) - drawn).abs().max() > 0.05, "the adapter changes nothing"
    ours.model.save_lora(tmp_path / "adapter", "policy")
    plain.model = load_teacher(plain.options, plain.model, None, str(tmp_path / "adapter"), plain.rollout)
    plain.network = plain.model.network
    torch.testing.assert_close(plain.images(asked, plain.draw(asked, x)), images, rtol=0, atol=1e-3)
    if name != "pixart-sigma":  # whose scheduler takes no steps of Euler's
        ours.model.save_pipeline(tmp_path / "merged", ours.merged())
        assert not filecmp.dircmp(folder_of(name) / "tokenizer", tmp_path / "merged" / "tokenizer").diff_files
        for given in ({"path": tmp_path / "merged"}, {"adapter": tmp_path / "adapter"}):
            torch.testing.assert_close(ours.alone(TEXTS, x, **given), images, rtol=0, atol=1e-3)


def heard_and_seen(pipeline, text, video, audio, time):
    """What a network of LTX-2 predicts of frames and sound, by its own call: of each row [1, tokens, 8]."""
    with torch.no_grad():
        words, mask, *_ = pipeline.encode_prompt(text, do_classifier_free_guidance=False, max_sequence_length=16)
        frames, sounds, mask = pipeline.connectors(words, mask, padding_side="left")
    return pipeline.transformer(
        hidden_states=video, audio_hidden_states=audio, encoder_hidden_states=frames, return_dict=False,
        audio_encoder_hidden_states=sounds, timestep=1000 * time, sigma=1000 * time, encoder_attention_mask=mask,
        audio_encoder_attention_mask=mask, num_frames=3, height=8, width=8, fps=24.0, audio_num_frames=4,
    )  # fmt: skip


def test_frames_and_sound_are_one_state_whose_elements_count_alike():
    """Drawn as diffusers alone draws them; density and gradients against the network's own call."""
    ours = Generator("ltx2", lora={})
    asked, pipeline = ours.asked(*TEXTS), ours.model.pipeline
    x, times = ours.start(asked), ours.times(asked)
    clips = ours.model.decode(ours.draw(asked, x), asked)
    for i, (text, clip) in enumerate(zip(TEXTS, clips, strict=True)):
        alone = pipeline(
            prompt=text, height=32, width=32, num_frames=9, num_inference_steps=4, guidance_scale=1.0,
            audio_guidance_scale=1.0, generator=torch.Generator().manual_seed(random.key("row", i)), output_type="np",
            **ours.tiny.call,
        )  # fmt: skip
        assert abs(clip.frames - alone.frames[0] * 255).max() < 0.51
        torch.testing.assert_close(torch.tensor(clip.sound.samples), alone.audio[0].clamp(-1, 1), rtol=0, atol=1e-4)
        assert (clip.sound.rate, clip.fps) == (1280, 24)

    t, after = times[1:3]
    x = x[:1].requires_grad_()
    frames, sound = x[:, :1536].view(1, 192, 8), x[:, 1536:].view(1, 4, 8)
    noise, diffusion = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)), 0.7 * (t / (1 - t)).sqrt()
    std, means = diffusion * (t - after).sqrt(), []
    for state, v in zip((frames, sound), heard_and_seen(pipeline, TEXTS[0], frames, sound, t.view(1)), strict=True):
        drift = v + diffusion**2 / (2 * t) * (state + (1 - t) * v)  # Flow-GRPO, equation 9
        means.append((state + (after - t) * drift).flatten(1))
    landed = torch.cat(means, 1).detach() + std * noise
    errors = [(part - mean).square().sum() for part, mean in zip(landed.split([1536, 32], 1), means, strict=True)]
    expected = -sum(errors) / x.numel() / (2 * std**2)
    step = transition("sde", ours.velocity(asked, x, t.view(1)), x, t, after, noise=0.7, t_max=times[1].item())
    found = (step.logprob(landed) + step.std.log() + 0.5 * math.log(2 * math.pi)).sum()
    torch.testing.assert_close(found, expected)
    learns = [x, *(value for value in ours.network.parameters() if value.requires_grad)]
    gradients = (torch.autograd.grad(value, learns) for value in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("tiny", [False, True])
def test_images_become_states_and_images_again(tiny, tmp_path):
    path = shutil.copytree(folder_of("sd3"), tmp_path / "sd3")
    if tiny:  # without a distribution
        vae = diffusers.AutoencoderTiny(3, 3, (8, 8), (8, 8), "relu", "nearest", 4, 2, (1, 1), (1, 1))
        vae.save_pretrained(path / "vae")
        changed(path / "model_index.json", vae=["diffusers", "AutoencoderTiny"])
    ours = Generator(path, rollout={"height": 32, "width": 32})
    asked = ours.asked(*TEXTS)
    pixels = ours.model.decode(ours.start(asked), asked)
    drawn = ours.images(asked, ours.start(asked)).detach()
    for image, tensor in zip(pixels, drawn, strict=True):
        assert (torch.from_numpy(image) == (tensor * 255).round().byte().permute(1, 2, 0)).all()
    states = ours.model.encode_images(pixels, asked)
    assert states.shape == ours.start(asked).shape
    alone = ours.model.encode_images(pixels[1:], asked.select([1]))
    torch.testing.assert_close(alone, states[1:], rtol=1e-4, atol=1e-4)
    vae = ours.model.pipeline.vae
    scaled = torch.stack([torch.from_numpy(one) for one in pixels]).permute(0, 3, 1, 2) / 255 * 2 - 1
    with torch.no_grad():
        mean = vae.encode(scaled).latents if tiny else vae.encode(scaled).latent_dist.mean
    torch.testing.assert_close(states, (mean - vae.config.shift_factor) * vae.config.scaling_factor)


@pytest.mark.parametrize(("name", "algorithm"), [
    ("z-image-modular", "flow_grpo"), pytest.param("qwen-image-modular", "diffusion_nft", marks=THOROUGH),
])  # fmt: skip
def test_a_modular_pipeline_learns_resumes_and_draws_as_its_blocks_alone_do(name, algorithm, files, tmp_path):
    whole, resumed = (run_of(files, name, f"algorithm={algorithm}", name=one) for one in ("whole", "resumed"))
    for run, steps in ((whole, 2), (resumed, 1), (resumed, 2)):
        run.train(f"steps={steps}")
    assert resumed.metrics[-1] == whole.metrics[-1]
    assert max(line.get("rollout_corr/logprob_abs_diff", 0.0) for line in whole.metrics) < 1e-5
    torch.testing.assert_close(resumed.tensors, whole.tensors, rtol=0, atol=0)
    burnish("export", whole.output, "-o", tmp_path / "trained")
    moved = (tmp_path / "trained").rename(tmp_path / "moved")
    alone = diffusers.ModularPipeline.from_pretrained(moved)
    alone.load_components(dtype=torch.float32)
    alone.update_components(guider=alone.guider.new(guidance_scale=3.0, enabled=True))
    ours = Generator(moved, guidance=3.0, rollout={"height": 32, "width": 32})
    asked = ours.asked("a red fox")
    drawn = ours.images(asked, ours.draw(asked, ours.start(asked)))
    call = {"prompt": "a red fox", "negative_prompt": "grey", "height": 32, "width": 32, "num_inference_steps": 4}
    call |= {"generator": torch.Generator().manual_seed(random.key("row", 0)), "output_type": "pt"}
    torch.testing.assert_close(drawn, alone(**call, output="images"), rtol=0, atol=1e-5)


@pytest.fixture
def unseen_run(files, monkeypatch):
    """A run of a pipeline as if a new version of diffusers had it."""
    unseen.add_to_diffusers(monkeypatch)

    def run(kind, *options, painter=unseen.UnseenPainter):
        name = f"{kind.__name__}{painter.__name__}"
        if not (files / name).exists():
            unseen.write_unseen(files / name, kind, painter)
        usual = ["rollout.height=null", "rollout.width=null", "rollout.guidance_scale=2", "validation.every=0"]
        return run_of(files, name, *usual, *options, name=f"run-{name}")

    return run


def test_a_class_that_nobody_has_seen_is_trained(unseen_run):
    run = unseen_run(unseen.UnseenPipeline, "rollout.call={side: 4}", "optimizer.lr=4e-2", "rollout.n=6")
    run.train("steps=4", "trainer.epochs=1", "trainer.mini_batch_size=null")
    rewards = [line["critic/rewards/mean"] for line in run.metrics if "critic/rewards/mean" in line]
    assert sum(rewards[-2:]) / 2 > rewards[0] + 5, rewards  # of 255
    assert max(line.get("rollout_corr/logprob_abs_diff", 0.0) for line in run.metrics) < 1e-5


@pytest.mark.parametrize("kind", [unseen.SignedPipeline, unseen.PicturesPipeline, unseen.ArraysPipeline])
def test_images_and_times_of_another_range_or_form_are_the_same(kind, unseen_run):
    between = "algorithm=diffusion_nft", "algorithm.times=uniform"  # between those of the schedule
    usual, other = unseen_run(unseen.UnseenPipeline, *between), unseen_run(kind, *between)
    usual.train("steps=1")
    other.train("steps=1")
    for ours, theirs in zip(other.metrics, usual.metrics, strict=True):
        ours, theirs = ({key: value for key, value in one.items() if value is not None} for one in (ours, theirs))
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", TABLES["unseen"])
def test_pipelines_that_step_or_return_otherwise_are_refused(name, unseen_run):
    kind, odd = getattr(unseen, name), name == "OddPainter"
    run = unseen_run(unseen.UnseenPipeline, painter=kind) if odd else unseen_run(kind)
    told = run.train(status=2).message
    assert [word for word in [*TABLES["unseen"][name], "UnseenPipeline" if odd else name] if word not in told] == []


@pytest.mark.parametrize("kind", [unseen.LatePipeline, unseen.BranchingPipeline, unseen.RowsPipeline])
def test_steps_that_depend_on_their_number_or_time_are_trained(kind, unseen_run):
    run = unseen_run(kind, "rollout.num_inference_steps=8")
    run.train("steps=1")
    assert run.metrics[-1]["rollout_corr/logprob_abs_diff"] < 1e-5


OWN = """
import numpy as np, torch
from peft import LoraConfig, inject_adapter_in_model
from diffusers import DDIMPipeline, StableDiffusion3Pipeline
class Bright(StableDiffusion3Pipeline):
    def encode_prompt(self, prompt, *args, **kwargs):
        return super().encode_prompt(f"bright {prompt}", *args, **kwargs)
class Speckled(StableDiffusion3Pipeline):
    def encode_prompt(self, *args, **kwargs):
        embeds, *others = super().encode_prompt(*args, **kwargs)
        return embeds + torch.from_numpy(np.random.randn(*embeds.shape)).float(), *others
class Adds(DDIMPipeline):
    def __init__(self, unet, scheduler):
        super().__init__(unet, scheduler)
        unet.more = unet.conv_in
class Styled(DDIMPipeline):
    def __init__(self, unet, scheduler):
        super().__init__(unet, scheduler)
        inject_adapter_in_model(LoraConfig(target_modules=["conv_in"]), unet, "style")
"""


def test_a_class_of_ones_own_draws_from_the_folder_of_another(files, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    ours, plain = Generator("sd3", family=f"{tmp_path}/own.py:Bright"), Generator("sd3")
    asked, bright = ours.asked("red fox"), plain.asked("bright red fox")
    x = ours.start(asked)
    torch.testing.assert_close(ours.draw(asked, x), plain.draw(bright, x), rtol=0, atol=1e-5)
    speckled = [Generator("sd3", family=f"{tmp_path}/own.py:Speckled").draw(asked, x) for _ in range(2)]
    torch.testing.assert_close(*speckled, rtol=0, atol=0)
    run = run_of(files, "sd3", f"model.family={tmp_path}/own.py:Bright", "model.lora=null", name="own")
    run.train("steps=1", "checkpoint.every=1")
    burnish("export", run.output, "--output", tmp_path / "exported")
    assert '"_class_name": "Bright"' in (tmp_path / "exported" / "model_index.json").read_text()
    for kind, said in (("Adds", "adds weights to its unet (more."), ("Styled", "unet has adapters already (style)")):
        own = f"model.family={tmp_path}/own.py:{kind}", "model.lora=null", "rollout.height=null", "rollout.width=null"
        refused(files, "ddim", *own, names=[said])


@pytest.mark.parametrize(("name", "part", "kind", "scale"), TABLES["several"])
def test_two_frozen_networks_of_half_the_scale_are_one(name, part, kind, scale, tmp_path):
    path = shutil.copytree(folder_of(name), tmp_path / "two")
    shutil.copytree(path / part, path / f"{part}_1")
    changed(path / "model_index.json", **{part: ["diffusers", kind]})
    halves = {"height": 32, "width": 32, "call": {scale: [0.5, 0.5]}}
    one, two = Generator(name), Generator(path, rollout=halves)
    prompt = one.prompt("red fox")
    both = two.model.condition([dataclasses.replace(prompt, images=prompt.images * 2)], **one.size)
    x = one.start(asked := one.asked("red fox"))
    torch.testing.assert_close(two.draw(both, x), one.draw(asked, x), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["animatediff", "hidream", "animatediff-sparse", pytest.param("sdxl-controlnet-union", marks=THOROUGH)]
)
def test_rows_share_a_forward_where_an_argument_has_several_entries_for_each_or_another_axis_for_them(name):
    ours = Generator(name, guidance=3.0)
    ours.asked(TEXTS[0])
    assert ours.model.shares


def test_guidance_that_changes_nothing_is_refused_and_other_such_arguments_are_told(caplog):
    with pytest.raises(ValueError, match="guidance_scale is 3, but a DreamLiteMobilePipeline"):
        Generator("dreamlite-mobile", guidance=3.0).asked(TEXTS[0])
    Generator("sd1.5", guidance=3.0, rollout={"call": {"eta": 0.3, "guidance_rescale": 0.5}}).asked(TEXTS[0])
    assert ["eta=0.3" in told for told in caplog.messages if "as without it" in told] == [True]


def test_guidance_of_teachers_and_of_the_untrained_model_is_refused_where_it_changes_nothing(files):
    teacher = "algorithm.teachers=[{guidance_scale: 3}]"
    refused(files, "dreamlite-mobile", "algorithm=distill", teacher, names=["teachers[0].guidance_scale is 3"])
    refused(files, "flux2", "algorithm=crd", "algorithm.kl_guidance=3", names=["kl_guidance is 3.0"])


@pytest.mark.parametrize("name", ["flux", "wan2.2", "ltx2-hdr"])
def test_what_was_recorded_is_gone_when_it_is_read(name):
    """Its tensors are as large as samples: they may not wait until garbage is collected."""
    ours = Generator(name, steps=2)
    gc.collect()
    gc.disable()
    try:
        asked = ours.asked("a red fox")
        ours.images(asked, ours.draw(asked, ours.start(asked)))
        assert [one for one in gc.get_objects() if isinstance(one, Trace)] == []
    finally:
        gc.enable()
