"""What a run leaves behind can be sampled, judged, exported, and is loaded by diffusers alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from PIL import Image

from burnish.cli import main
from burnish.commands.opening import remove_earlier
from burnish.tasks.flow.engine import FlowJob
from burnish.types.rollout import Prompt
from burnish.utils import random
from burnish.utils.paths import MARK
from tests.support.factory import tiny_pipeline

pytestmark = pytest.mark.slow
PROMPTS = ["a cat", "two dogs"]
ABSENT = {"vae": None, "text_encoder_3": None, "tokenizer_3": None}


@pytest.fixture(scope="module", params=["lora", "full", "ema"])
def trained(request, tmp_path_factory):
    """A short run whose weights have moved far."""
    folder = tmp_path_factory.mktemp(request.param)
    pipeline = tiny_pipeline(folder, vae=False)
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\nthree\n")
    recipe = {
        "model": {"path": str(pipeline), "lora": None if request.param == "full" else {"rank": 4, "alpha": 3.0}},
        "data": {"train_files": str(folder / "prompts.txt"), "train_batch_size": 2},
        "algorithm": {"name": "flow_grpo", "clip": 0.1},
        "rewards": {"jpeg_compressibility": {}},
        "rollout": {"n": 4, "num_inference_steps": 4, "max_sequence_length": 3},
        "optimizer": {"lr": 0.5},
        "ema": {"decay": 0.5} if request.param == "ema" else None,
        "scoring": {"processes": 0},
        "validation": {"every": 0, "n": 2},
        "steps": 3,
        "output_dir": str(folder / "run"),
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    assert main(["train", str(folder / "recipe.yaml")]) == 0
    return request.param, folder


def ours(folder, source):
    """Pictures of the trained policy from our own engine, and the noise that they began from."""
    assert main(["sample", str(source), *PROMPTS, "-n", "2", "-o", str(folder / "ours"), "--seed", "5"]) == 0
    files = sorted((folder / "ours").glob("*-*.png"))
    job = FlowJob.groups([Prompt(text=text) for text in PROMPTS], 2, purpose="sample", update=0)
    keys = [(5, "sample", 0, p.uid, s, "start") for p, s in zip(job.prompts, job.sample.tolist(), strict=True)]
    return np.stack([np.asarray(Image.open(file)) for file in files]).astype(int), random.normal((1, 8, 8), keys)


def theirs(pipeline, noise):
    pipeline.set_progress_bar_config(disable=True)
    latents = pipeline(
        prompt=[text for text in PROMPTS for _ in range(2)], latents=noise, num_inference_steps=4, guidance_scale=1.0,
        height=64, width=64, max_sequence_length=3, output_type="latent",
    ).images  # fmt: skip
    grey = ((latents / 2 + 0.5).clamp(0, 1) * 255).round().permute(0, 2, 3, 1)
    return grey.expand(-1, -1, -1, 3).numpy().astype(int)


def test_diffusers_draws_the_trained_policys_pictures_from_the_merged_model(trained, capsys):
    _, folder = trained
    pictures, noise = ours(folder, folder / "run")
    capsys.readouterr()
    assert main(["export", str(folder / "run"), "--output", str(folder / "merged")]) == 0
    advice = f'from_pretrained("{folder / "merged"}", vae=None, text_encoder_3=None, tokenizer_3=None)'
    assert advice in capsys.readouterr().out
    pipeline = StableDiffusion3Pipeline.from_pretrained(folder / "merged", **ABSENT)
    assert np.abs(theirs(pipeline, noise) - pictures).max() <= 1
    before = StableDiffusion3Pipeline.from_pretrained(folder / "pipeline", **ABSENT)
    assert np.abs(theirs(before, noise) - pictures).max() > 5, "training changed nothing"


def test_diffusers_draws_them_with_the_exported_adapter(trained, capsys):
    kind, folder = trained
    if kind == "full":
        assert main(["export", str(folder / "run"), "--output", str(folder / "lora"), "--format", "lora"]) == 2
        assert "model.lora is null" in capsys.readouterr().err
        return
    pictures, noise = ours(folder, folder / "run")
    assert main(["export", str(folder / "run"), "--output", str(folder / "lora"), "--format", "lora"]) == 0
    pipeline = StableDiffusion3Pipeline.from_pretrained(folder / "pipeline", **ABSENT)
    pipeline.load_lora_weights(folder / "lora")
    assert np.abs(theirs(pipeline, noise) - pictures).max() <= 1


def test_eval_repeats_the_runs_own_last_judgement(trained):
    _, folder = trained
    target = folder / "eval"
    assert main(["eval", str(folder / "run"), "--output", str(target)]) == 0
    judged = json.loads((target / "metrics.json").read_text())
    last = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    shared = [name for name in judged if name.startswith("val-")]
    assert len(shared) > 5
    for name in shared:
        assert judged[name] == pytest.approx(last[name], abs=1e-6), name


def test_export_overwrites_nothing(trained, capsys):
    _, folder = trained
    assert main(["export", str(folder / "run"), "--output", str(folder)]) == 2
    assert "give a new folder" in capsys.readouterr().err


def test_a_checkpoint_of_another_model_is_refused(trained, tmp_path, capsys):
    _, folder = trained
    other = tiny_pipeline(tmp_path, vae=False, seed=1)
    command = ["train", str(folder / "recipe.yaml"), f"model.path={other}", f"output_dir={tmp_path / 'run'}",
               f"resume={folder / 'run' / 'checkpoints' / '00000003'}", "steps=4"]  # fmt: skip
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "weights" in message
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    "given", ["steps=100", "optimizer.lr=1", "rollout.n=2", "checkpoint.every=3", "algorithm.clip=1"]
)
def test_eval_refuses_what_it_never_reads(trained, given, capsys):
    _, folder = trained
    assert main(["eval", str(folder / "run"), given]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{given.partition('=')[0]} is given, but eval never reads it" in said


def test_eval_reads_what_it_accepts(trained, tmp_path):
    kind, folder = trained
    if kind == "full":
        pytest.skip("all weights have moved so far that every picture is the same")
    results = {}
    for given in ("validation.n=2", "validation.n=3", "rollout.num_inference_steps=2", "seed=7"):
        assert main(["eval", str(folder / "run"), given, "-o", str(tmp_path / given)]) == 0
        judged = json.loads((tmp_path / given / "metrics.json").read_text())
        results[given] = next(value for name, value in judged.items() if name.startswith("val-core/"))
    assert len(set(results.values())) == len(results)


def test_eval_refuses_an_option_that_validation_has_of_its_own(trained, capsys):
    _, folder = trained
    given = ["validation.num_inference_steps=3", "rollout.num_inference_steps=2"]
    assert main(["eval", str(folder / "run"), *given]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "rollout.num_inference_steps is given, but eval samples with validation.num_inference_steps" in said


def test_sample_draws_as_asked(trained, tmp_path):
    kind, folder = trained
    if kind == "full":
        pytest.skip("all weights have moved so far that every picture is the same")
    given = {"plain": [], "steps": ["--steps", "4"], "solver": ["--solver", "heun"], "flat": ["--height", "4"]}
    for name, options in given.items():
        assert main(["sample", str(folder / "run"), "a cat", "-n", "1", "-o", str(tmp_path / name), *options]) == 0
    plain, steps, solver, flat = (np.asarray(Image.open(tmp_path / name / "000-00.png")).astype(int) for name in given)
    assert (plain == steps).all(), "the run's own number"
    assert (plain != solver).any()
    assert flat.shape == (4, 8, 3)


def test_pictures_of_an_earlier_call_do_not_stay_among_the_new_ones(trained, tmp_path):
    _, folder = trained
    assert main(["sample", str(folder / "run"), *PROMPTS, "-n", "3", "-o", str(tmp_path)]) == 0
    (tmp_path / "000-09.png").write_bytes(b"somebody else's")
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["sample", str(folder / "run"), "a cat", "-n", "1", "-o", str(tmp_path)]) == 0
    left = sorted(path.name for path in tmp_path.iterdir() if path.name != MARK)
    assert left == ["000-00.png", "000-09.png", "grid.png", "notes.txt", "samples.jsonl"]
    remove_earlier(tmp_path)  # as a model that answers does
    left = sorted(path.name for path in tmp_path.iterdir() if path.name != MARK)
    assert left == ["000-09.png", "notes.txt", "samples.jsonl"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("runs/nothing", ["runs/nothing does not exist", "folder of a run", "burnish recipes"]),
        ("quikstart", ["recipe is quikstart", "did you mean quickstart"]),
        ("{folder}/pipeline", ["not a run", "model.path="]),
        ("{folder}", ["neither a run", "give one of these"]),
    ],
)
def test_what_eval_can_not_judge(trained, source, words, capsys):
    _, folder = trained
    assert main(["eval", source.replace("{folder}", str(folder))]) == 2
    said = " ".join(capsys.readouterr().err.split())
    for word in words:
        assert word in said
