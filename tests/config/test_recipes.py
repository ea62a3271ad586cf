"""The recipes that ship: each has the values of its source, says what is missing here, fits its model and its GPUs."""

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

import burnish as package
from tests.support.scorers import with_tiny_scorers
from tests.support.shown import ROOT, recipe_names
from tests.support.tiny_run import burnish

RECIPES = ROOT / "burnish" / "recipes"
SETTINGS = json.loads((Path(__file__).parent / "published_settings.json").read_text())
OPERATIONAL = tuple(SETTINGS["operational"])
PUBLISHED = [name for name in recipe_names() if "/" in name]


@cache
def loaded(recipe: str) -> Any:
    return package.load(recipe)


def value_of(config: Any, option: str) -> Any:
    """A dotted option of a resolved recipe; of a section that is not there, None."""
    for name in option.split("."):
        if isinstance(config, dict):
            config = config[name]
        elif config is not None:
            config = config[int(name)] if name.isdigit() else getattr(config, name)
    return json.loads(json.dumps(config)) if isinstance(config, tuple) else config


def options_in(tree: Any, prefix: str = "") -> list[str]:
    if isinstance(tree, list) and tree and isinstance(tree[0], dict):
        tree = {str(i): one for i, one in enumerate(tree)}
    if not isinstance(tree, dict) or prefix.rstrip(".") in OPERATIONAL:
        return [prefix.rstrip(".")]
    return [name for key, value in tree.items() for name in options_in(value, f"{prefix}{key}.")]


def files_of(recipe: str) -> list[str]:
    return [(RECIPES / name).read_text() for name in (f"{recipe}.yaml", f"{recipe.split('/')[0]}/base.yaml")]


def test_a_recipe_has_the_values_of_its_source_and_says_why_it_deviates():
    assert set(SETTINGS["recipes"]) == set(PUBLISHED)
    for recipe, source in SETTINGS["recipes"].items():
        config, texts = loaded(recipe), files_of(recipe)
        assert source["where"]
        found = {option: value_of(config, option) for option in source["values"]}
        wrong = {option: (found[option], value) for option, value in source["values"].items() if found[option] != value}
        assert not wrong, f"{recipe} differs from {source['where']}: {wrong}"
        comments = " ".join(" ".join(re.findall(r"#(.*)", "\n".join(texts))).split())
        for option, differs in source.get("differs", {}).items():
            assert value_of(config, option) == differs["ours"] != differs["theirs"], (recipe, option)
            assert differs["because"] in comments, f"{recipe} does not say why {option} is {differs['ours']}"
        told = {*source["values"], *source.get("differs", []), *source.get("ours", []), "steps"}
        stated = [one for text in texts for one in options_in(yaml.safe_load(text)) if not one.startswith(OPERATIONAL)]
        unknown = [one for one in stated if not any(one == name or one.startswith(f"{name}.") for name in told)]
        assert not unknown, f"{recipe}: where are these from? {unknown}"


def test_a_recipe_is_explained_where_nothing_of_it_is_there(tmp_path, monkeypatch):
    """What is missing ships with Burnish, is of the hub, or is written by a command, which is named."""
    monkeypatch.chdir(tmp_path)
    for recipe in PUBLISHED[::5]:
        shown, config = burnish("config", recipe).out, loaded(recipe)
        assert "Before burnish train can start here" in shown
        assert f"hf download {config.model.path} --local-dir DIR" in shown
        files = [(config.data.train_files, "data.train_files"), (config.data.val_files, "data.val_files")]
        for path, option in files:
            if isinstance(path, str) and path.startswith("data/"):
                assert f"{option} is {path}" in shown
                assert f"burnish data prepare {path.split('/')[1]}" in shown
        for label in (label for label, reward in config.rewards.items() if reward.name == "function"):
            assert f"rewards.{label}.path is rewards.py:{label}" in shown
            assert f"{label}(images, prompts)" in shown


TINY = {  # what stands in for a recipe's model, by its folder
    "sd35": "sd3", "flux": "flux", "qwen_image": "qwen-image", "qwen_image_edit_plus": "qwen-image-edit-plus",
    "z_image": "z-image", "flux2_klein": "flux2-klein", "flux_kontext": "flux-kontext", "wan21": "wan2.1",
    "wan22": "wan2.2", "ltx": "ltx", "ltx2": "ltx2", "sdxl": "sdxl", "qwen25_vl": "qwen2_5_vl", "qwen3_vl": "qwen3_vl",
    "qwen3_vl_4b": "qwen3_vl", "qwen35": "qwen3_5", "gemma4": "gemma4", "internvl35": "internvl",
    "qwen25_vl_3b": "qwen2_5_vl", "qwen25_vl_72b": "qwen2_5_vl", "qwen25_vl_refcoco": "qwen2_5_vl",
    "qwen25_vl_video": "qwen2_5_vl", "qwen2_audio": "qwen2_audio",
}  # fmt: skip
OFTEN = ("sd35/sft", "qwen25_vl/ppo")
REWARDS = "".join(
    f"def {name}(images, prompts):\n    return [float(image.mean()) for image in images]\n\n\n"
    for name in ("hpsv3", "geneval2", "geneval", "edit_score")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prompts, images, and the functions that a user brings; tiny models join them as they are needed."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "rewards.py").write_text(REWARDS)
    for name in ("black", "white"):
        Image.new("RGB", (8, 8), name).save(folder / f"{name}.png")
    prompt = {"prompt": "the word at", "answer": "at"}
    image, pair = {"image": "white.png"}, {"chosen": "white.png", "rejected": "black.png"}
    for name, record in (("prompts", prompt), ("pictures", prompt | image), ("pairs", prompt | pair)):
        (folder / f"{name}.jsonl").write_text(json.dumps(record))
    return folder


def drawing(recipe: str, published: Any) -> list[str]:
    files = "prompts"
    if not published.online:
        files = "pairs" if published.algorithm.needs().data == "pairs" else "pictures"
    elif recipe.startswith(("qwen_image_edit_plus", "flux_kontext")):
        files = "pictures"
    # from an adapter of the user
    begun = [] if published.model.lora is None or published.model.lora.path is None else ["model.lora.path=null"]
    grown = [f"rollout.n={published.algorithm.needs().tree or 2}"] if published.online else []
    return [
        f"data.train_files={files}.jsonl", f"data.val_files={files}.jsonl", "validation.height=null",
        "validation.width=null", "scoring.probe=false", "validation.n=1",
        *grown, *with_tiny_scorers(published), *begun,
        *(["data.prompt_key=null", "data.images_key=null"] if published.data.prompt_key else []),
    ]  # fmt: skip


def answering(recipe: str, published: Any) -> list[str]:
    name = recipe.partition("/")[0]
    question: dict[str, Any] = {"problem": "<image>Find x.", "images": ["white.png"], "answer": "6 \\sqrt { 2 }"}
    if name == "qwen25_vl_video":
        question = {"prompt": "<video>Who?\nA. a\nB. b", "video": ["white.png", "black.png"], "answer": "B"}
    question |= {"answer": "[1, 2, 5, 6]"} if name == "qwen25_vl_refcoco" else {}
    if name == "qwen2_audio":
        question = {"instruction": "?", "context": {"array": [0.1] * 16000, "sampling_rate": 16000}, "answer": "a cat"}
    Path("questions.jsonl").write_text(json.dumps(question))
    return [
        "data.train_files=questions.jsonl", "data.val_files=questions.jsonl", "rollout.n=2",
        "rollout.max_new_tokens=16", "rewards={repetition: {weight: -1}}",
        *([] if published.rollout.filter_groups is None else ["rollout.filter_groups=null"]),
        *(["algorithm.overlong.buffer=2"] if recipe.endswith("/dapo") else []),
        *(["rollout.engine=burnish", "rollout.vllm=null"] if name == "qwen25_vl_72b" else []),  # the decoder of Burnish
        *([f"algorithm.teachers=[{{path: {TINY[name]}}}]"] if recipe.endswith(("/distill", "/gold")) else []),
        *(["supervised.train_files=questions.jsonl", "data.response_key=answer"] if recipe.endswith("/chord") else []),
        *(["data.epochs=null"] if recipe.startswith("qwen25_vl_3b/") and published.data.epochs else []),
        *(["algorithm.teachers=[{weights: initial, solution: -1}]"] if recipe.endswith("/sdpo") else []),
    ]  # fmt: skip


SIZES: dict[str, list[str]] = {}  # of what tiny models draw, as ``burnish tiny`` says


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.thorough]) for name in PUBLISHED]
)
def test_a_published_recipe_learns_with_a_small_model(recipe, folder, monkeypatch):
    """In the recipe's own precision, with its guidance, window, penalties, critic and adapters."""
    monkeypatch.chdir(folder)
    model, published = TINY[recipe.partition("/")[0]], loaded(recipe)
    if model not in SIZES:
        SIZES[model] = re.findall(r"rollout\.\w+=\d+", burnish("tiny", model, model).out)
    own = (answering if published.task == "image-text-to-text" else drawing)(recipe, published)
    burnish("train", recipe, f"model.path={model}", "force=true", "data.train_batch_size=1", "steps=1", *SIZES[model],
            "optimizer.warmup_steps=0", "trainer.mini_batch_size=null", "scoring.processes=0", *own)  # fmt: skip
    lines = Path("runs", recipe, "metrics.jsonl").read_text().splitlines()
    assert math.isfinite(json.loads(lines[-1])["actor/grad_norm"])
