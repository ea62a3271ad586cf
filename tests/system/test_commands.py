"""What a run leaves behind can be sampled, judged, exported, and is loaded by diffusers alone."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from diffusers import StableDiffusion3Pipeline
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.types.rollout import Prompt
from tests.support.factory import tiny_pipeline
from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun, burnish

PROMPTS = ["a cat", "two dogs"]
REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())
ABSENT = {"vae": None, "text_encoder_3": None, "tokenizer_3": None}


def run_of(folder: Path, kind: str) -> Path:
    """A short run whose weights have moved far; its recipe lies beside it."""
    pipeline = tiny_pipeline(folder, vae=False)
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\nthree\n")
    recipe = {
        "model": {"path": str(pipeline), "lora": None if kind == "full" else {"rank": 4, "alpha": 3.0}},
        "data": {"train_files": str(folder / "prompts.txt"), "train_batch_size": 2},
        "algorithm": {"name": "flow_grpo", "clip": 0.1}, "rewards": {"jpeg_compressibility": {}},
        "rollout": {"n": 4, "num_inference_steps": 4, "max_sequence_length": 3}, "optimizer": {"lr": 0.5},
        "ema": {"decay": 0.5} if kind == "ema" else None, "scoring": {"processes": 0},
        "validation": {"every": 0, "n": 2}, "steps": 3, "output_dir": str(folder / "run"),
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    burnish("train", folder / "recipe.yaml")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("lora"), "lora")


def ours(folder: Path) -> np.ndarray:
    burnish("sample", folder / "run", *PROMPTS, "-n", "2", "-o", folder / "ours", "--seed", "5")
    return np.stack([np.asarray(Image.open(file)) for file in sorted((folder / "ours").glob("*-*.png"))]).astype(int)


def noise() -> object:
    from burnish.utils import random

    keys = [(5, "sample", 0, Prompt(text=text).uid, sample, "start") for text in PROMPTS for sample in range(2)]
    return random.normal((1, 8, 8), keys)


def theirs(pipeline: StableDiffusion3Pipeline) -> np.ndarray:
    pipeline.set_progress_bar_config(disable=True)
    latents = pipeline(
        prompt=[text for text in PROMPTS for _ in range(2)], latents=noise(), num_inference_steps=4, guidance_scale=1.0,
        height=64, width=64, max_sequence_length=3, output_type="latent",
    ).images  # fmt: skip
    grey = ((latents / 2 + 0.5).clamp(0, 1) * 255).round().permute(0, 2, 3, 1)
    return grey.expand(-1, -1, -1, 3).numpy().astype(int)


@pytest.mark.parametrize("kind", ["lora", *seldom("ema", "full")])
def test_diffusers_draws_the_trained_policys_images_from_what_is_exported(tmp_path_factory, trained, kind):
    folder = trained if kind == "lora" else run_of(tmp_path_factory.mktemp(kind), kind)
    images = ours(folder)
    advice = f'from_pretrained("{folder / "merged"}", vae=None, text_encoder_3=None, tokenizer_3=None)'
    assert advice in burnish("export", folder / "run", "--output", folder / "merged").out
    pipeline = StableDiffusion3Pipeline.from_pretrained(folder / "merged", **ABSENT)
    assert np.abs(theirs(pipeline) - images).max() <= 1
    before = StableDiffusion3Pipeline.from_pretrained(folder / "pipeline", **ABSENT)
    assert np.abs(theirs(before) - images).max() > 5, "training changed nothing"
    adapter = ("export", folder / "run", "--output", folder / "adapter", "--format", "lora")
    if kind == "full":
        assert "model.lora is null" in burnish(*adapter, status=2).message
        return
    burnish(*adapter)
    before.load_lora_weights(folder / "adapter")
    assert np.abs(theirs(before) - images).max() <= 1


def judged(folder: Path, target: Path, *options: str) -> dict[str, float]:
    burnish("eval", folder / "run", *options, "-o", target)
    return json.loads((target / "metrics.json").read_text())


def test_eval_repeats_the_runs_own_last_judgement_and_reads_what_it_accepts(trained, tmp_path):
    found = judged(trained, tmp_path / "eval")
    last = json.loads((trained / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    shared = [name for name in found if name.startswith("val-")]
    assert len(shared) > 5
    for name in shared:
        assert found[name] == pytest.approx(last[name], abs=1e-6), name
    for given in ("rollout.num_inference_steps=2", "seed=7"):
        assert judged(trained, tmp_path / given, given) != found


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused(trained, line):
    given = line.replace("{run}", str(trained / "run")).replace("{folder}", str(trained)).split()
    said = burnish(*given, status=2).message
    assert [name for name in REFUSED[line] if name not in said] == []


def test_images_of_an_earlier_call_do_not_stay_among_the_new_ones(trained, tmp_path):
    burnish("sample", trained / "run", *PROMPTS, "-n", "3", "-o", tmp_path)
    (tmp_path / "000-09.png").write_bytes(b"somebody else's")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "001-00.png").unlink()  # by somebody who did not like it
    burnish("sample", trained / "run", "a cat", "-n", "1", "-o", tmp_path)

    names = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert names == ["000-00.png", "000-09.png", "grid.png", "notes.txt", "samples.jsonl"]


def test_a_language_model_answers_as_transformers_alone_does(files, tmp_path):
    greedy = ["validation.temperature=0", "rollout.max_new_tokens=6", "checkpoint.every=1", "steps=1"]
    run = TinyRun(files, "language", "qwen2", "algorithm=grpo", "model.lora=null", *greedy, name="answers")
    run.train()
    asked = ["What is [bold]?", "And 12?"]
    said = burnish("sample", run.output, *asked, "-n", "2", "-o", tmp_path / "said").out
    burnish("export", run.output, "--output", tmp_path / "merged")
    burnish("push", run.output, "--to", "me/answers", "--dry-run", "-o", tmp_path / "card")
    assert re.search("from transformers import .*AutoProcessor", (tmp_path / "card" / "README.md").read_text())
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    records = [json.loads(line) for line in (tmp_path / "said" / "samples.jsonl").read_text().splitlines()]
    assert [record["prompt"] for record in records] == [asked[0], asked[0], asked[1], asked[1]]
    for record in records:
        message = [{"role": "user", "content": record["prompt"]}]
        given = tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**given, max_new_tokens=6, do_sample=False)[0, given["input_ids"].shape[1] :]
        assert record["response"] == tokenizer.decode(out)
        assert record["response"] in said
        assert record["finished"] == (out[-1] == tokenizer.eos_token_id)
    assert [said.count(f"{text}\n") for text in asked] == [1, 1]
    assert f"4 responses in {tmp_path / 'said' / 'samples.jsonl'}" in said
