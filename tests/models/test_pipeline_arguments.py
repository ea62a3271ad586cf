"""What a pipeline's own call is given, by its signature; prompts that are cut; schedulers; and few-step models."""

import json
import re
import shutil
from pathlib import Path

import diffusers
import numpy as np
import pytest
import yaml

import burnish
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.rollout import Requests
from tests.support.generators import folder_of
from tests.support.model_runs import changed, refused, run_of
from tests.support.optional import seldom

BARE = Prompt(text="a cat")
WITH_IMAGES = Prompt(text="a cat", images=(Media.array(np.zeros((8, 8, 3), np.uint8)),))


def arguments_of(kind, **rollout):
    from burnish.diffusion.options import RolloutOptions
    from burnish.diffusion.pipeline.arguments import Arguments
    from burnish.models.modular import pipeline_class

    return Arguments(pipeline_class(f"{kind}Pipeline"), RolloutOptions(batch_size=96, **rollout))


def call_of(kind, guidance, prompt, **rollout):
    arguments = arguments_of(kind, **rollout)
    arguments.check()
    arguments.check_prompts([prompt])
    return arguments.of(Requests(prompts=[prompt], height=64, width=32, steps=4), guidance)


PROMPTS = {"bare": BARE, "images": WITH_IMAGES}
PROMPTS["masked"] = Prompt(text="a cat", inputs=(("mask_image", WITH_IMAGES.images[0]),))
REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())["arguments"]


@pytest.mark.parametrize(("kind", "prompt", "rollout", "names"), REFUSED)
def test_what_a_pipeline_does_not_take_is_refused(kind, prompt, rollout, names):
    with pytest.raises(ValueError, match=re.escape(names[0])) as error:
        call_of(kind, 1.0, PROMPTS[prompt], **rollout)
    assert [name for name in names if name not in str(error.value)] == []


def test_images_and_what_is_not_to_be_seen_are_given_by_the_names_of_a_class():
    assert len(call_of("OmniGen", 1.0, WITH_IMAGES)["input_images"]) == 1
    assert call_of("LTX", 1.0, BARE, fps=12.0)["frame_rate"] == 12
    rates = [arguments_of(kind, fps=fps).fps for kind, fps in (("LTX", 12.0), ("LTX", None), ("Wan", 8.0))]
    assert rates == [12, 25, 8]
    unwanted = Prompt(text="a cat", negative="rain")
    assert call_of("HunyuanImage", 1.0, unwanted)["negative_prompt"] == "rain"  # a part of it guides, as it likes
    assert call_of("Ideogram4Modular", 3.0, BARE)["guidance_schedule"] == [3.0] * 4  # a scale for each step
    assert [call_of("ZImage", scale, unwanted).get("negative_prompt") for scale in (1.0, 4.0)] == [None, "rain"]


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


SCHEDULERS = yaml.safe_load(Path(__file__).with_name("schedulers.yaml").read_text())


@pytest.mark.parametrize(("kind", "config"), [*SCHEDULERS["often"], *seldom(*map(tuple, SCHEDULERS["seldom"]))])
def test_steps_of_a_scheduler_are_those_of_its_pipeline(kind, config, with_scheduler, files):
    """Whose own run the steps are compared with when a run begins."""
    size = ["rollout.height=32", "rollout.width=32"]
    run = run_of(files, "sd1.5", f"model.path={with_scheduler(kind, config)}", *size, name="scheduled")
    run.train("steps=1")
    assert run.metrics[-1]["actor/grad_norm"] > 0


@pytest.mark.parametrize(("kind", "config", "names"), SCHEDULERS["refused"])
def test_a_scheduler_that_no_velocity_follows_is_refused(kind, config, names, with_scheduler, files):
    said = refused(files, "sd1.5", f"model.path={with_scheduler(kind, config)}", names=[*names, kind])
    assert ("Loading the model" in said) == ("model.path is" not in names), "what the configuration says is told before"


@pytest.mark.parametrize(("model", "reads"), [("sd1.5", 77), ("flux-dev", 20)])
def test_prompts_that_are_cut_are_said_once_with_the_number_of_tokens(model, reads, files, tmp_path, caplog):
    long = " ".join(f"dog {i}" for i in range(100))
    (tmp_path / "prompts.txt").write_text(f"a cat\n{long}\n{long} too\n{long}\n")
    length = ["rollout.max_sequence_length=20"] * (reads == 20)
    refused(files, model, f"data.train_files={tmp_path / 'prompts.txt'}", "model.lora={targets: [nothing]}", *length)
    (said,) = (one for one in caplog.messages if "more tokens" in one)
    assert "2 prompts" in said
    assert "dog 0 dog 1" in said
    assert f"of which it reads {reads};" in said


# Models of few steps are told from their configuration files, and from nothing else

EULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
DEV, SCHNELL = {"guidance_embeds": True}, {"guidance_embeds": False}
XL = {"_class_name": "StableDiffusionXLPipeline"}
FEW = {
    "FLUX.2-klein-4B": ({"_class_name": "Flux2KleinPipeline", "is_distilled": True}, {}, EULER),
    "FLUX.1-s": ({"_class_name": "FluxPipeline"}, SCHNELL, EULER | {"shift": 1.0}),
    "xl-t": (XL, {}, {"_class_name": "EulerAncestralDiscreteScheduler", "timestep_spacing": "trailing"}),
    "sd-lora": (XL, {}, {"_class_name": "LCMScheduler"}),
    "Z-Image-Turbo": ({"_class_name": "ZImagePipeline"}, {}, EULER),
    "sdxl_lightning_4step": (XL, {}, {"_class_name": "EulerDiscreteScheduler"}),
}  # fmt: skip
MANY = {
    "FLUX.2-klein-base-4B": ({"_class_name": "Flux2KleinPipeline", "is_distilled": False}, {}, EULER),
    "FLUX.1-dev": ({"_class_name": "FluxPipeline"}, DEV, EULER),
    "zero-snr": (XL, {}, {"timestep_spacing": "trailing", "prediction_type": "v_prediction"}),
    "saturbox-admd-art": ({"_class_name": "ZImagePipeline"}, {}, EULER),
}  # fmt: skip


def cautions(path, *more):
    return list(burnish.load("quickstart", f"model.path={path}", *more).cautions())


def test_a_model_of_few_steps_is_told_before_a_run_of_many(tmp_path):
    for name, (index, transformer, scheduler) in (FEW | MANY).items():
        for part, content in (("transformer/config", transformer), ("scheduler/scheduler_config", scheduler)):
            (file := tmp_path / name / f"{part}.json").parent.mkdir(parents=True)
            file.write_text(json.dumps(content))
        (tmp_path / name / "model_index.json").write_text(json.dumps(index))
        found = cautions(tmp_path / name, "rollout.num_inference_steps=28")
        assert len(found) == (name in FEW)
        assert all("rollout.num_inference_steps is 28" in one for one in found)
    assert cautions(folder_of("sd3")) == []
    (found,) = cautions(folder_of("sd3"), "model.lora.path=adapters/sdxl_lightning_4step")
    assert "sdxl_lightning_4step" in found
