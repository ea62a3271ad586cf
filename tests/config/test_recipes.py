"""The recipes that ship: each has the values of its source, says what is missing here, fits its model and its GPUs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch
import yaml
from PIL import Image
from torch import nn

import burnish as package
from burnish.config.load import find_recipe, hardware_of, recipe_names
from burnish.data.sets import SETS, named_by
from burnish.models.tiny import describe
from burnish.rewards.images.learned import LearnedReward
from burnish.utils.hub_data import hub_data
from burnish.utils.paths import RECIPES, resolve
from tests.support import language_recipe_sources, pipeline_recipe_sources, recipe_sources
from tests.support.recipe_sources import OPERATIONAL
from tests.support.reports import lines_of
from tests.support.scorers import with_tiny_scorers
from tests.support.tiny_run import ROOT, burnish

SOURCES = recipe_sources.SOURCES | pipeline_recipe_sources.SOURCES | language_recipe_sources.SOURCES
PUBLISHED = [name for name in recipe_names() if "/" in name]


def value_of(config: Any, option: str) -> Any:
    """A dotted option of a resolved recipe; of a section that is not there, None."""
    for name in option.split("."):
        if config is None:
            return None
        if isinstance(config, dict):
            config = config[name]
        else:
            config = config[int(name)] if name.isdigit() else getattr(config, name)
    return config


def options_in(tree: Any, prefix: str = "") -> list[str]:
    """Dotted names of what a recipe's file says."""
    if isinstance(tree, list) and tree and isinstance(tree[0], dict):
        tree = {str(i): one for i, one in enumerate(tree)}
    if not isinstance(tree, dict) or prefix.rstrip(".") in OPERATIONAL:
        return [prefix.rstrip(".")]
    return [name for key, value in tree.items() for name in options_in(value, f"{prefix}{key}.")]


def files_of(recipe: str) -> list[str]:
    """The texts of a recipe and of the base that it extends."""
    return [find_recipe(recipe).read_text(), (RECIPES / recipe.split("/")[0] / "base.yaml").read_text()]


def test_a_recipe_has_the_values_of_its_source_and_says_why_it_deviates():
    assert set(SOURCES) == set(PUBLISHED)
    for recipe in PUBLISHED:
        source, config = SOURCES[recipe], package.load(recipe)
        assert source.where
        found = {option: value_of(config, option) for option in source.values}
        wrong = {option: (found[option], value) for option, value in source.values.items() if found[option] != value}
        assert not wrong, f"{recipe} differs from {source.where}: {wrong}"
        comments = " ".join(
            " ".join(line.partition("#")[2] for text in files_of(recipe) for line in text.splitlines()).split()
        )
        for option, (ours, theirs, words) in source.differs.items():
            assert value_of(config, option) == ours != theirs, (recipe, option)
            assert words in comments, f"{recipe} does not say why {option} is {ours} and not {theirs}"
        told = {*source.values, *source.differs, *source.ours, "steps"}
        stated = {
            one
            for text in files_of(recipe)
            for one in options_in(yaml.safe_load(text))
            if not one.startswith(OPERATIONAL)
        }
        unknown = {one for one in stated if not any(one == name or one.startswith(f"{name}.") for name in told)}
        assert not unknown, f"{recipe}: where are these from? {sorted(unknown)}"


def test_a_recipe_says_what_it_is_whose_settings_it_has_and_what_is_to_be_written():
    page = "".join((ROOT / "docs" / name).read_text() for name in ("models.md", "language.md"))
    for recipe in recipe_names():
        text, config = find_recipe(recipe).read_text(), package.load(recipe)
        assert text.startswith("# ")
        assert config.output_dir == f"runs/{recipe}"
        for algorithm in yaml.safe_load(text).get("variants") or {}:
            other = package.load(recipe, f"algorithm={algorithm}")
            assert other.algorithm.name == algorithm
            assert (other.output_dir == config.output_dir) == (algorithm == config.algorithm.name)
        for name in [
            line.partition("rewards.py:")[2].partition('"')[0] for line in text.splitlines() if "rewards.py:" in line
        ]:
            assert f"# yours: def {name}(images, prompts) in ./rewards.py" in text
        if recipe in PUBLISHED:
            assert "arXiv:" in text.splitlines()[0], recipe
            assert any(line.startswith("extends: ") for line in text.splitlines()[:7]), recipe
            assert config.algorithm.name == recipe.partition("/")[2]
            row = next((line for line in page.splitlines() if f"| `{recipe.partition('/')[0]}/*` |" in line), "")
            assert f"| {config.model.path} |" in row, f"docs/models.md says nothing of {recipe}"


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_is_explained_where_nothing_of_it_is_there(recipe, tmp_path, monkeypatch):
    """What is missing ships with Burnish, is of the hub, or is written by a command, which is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("burnish.utils.paths.PathFinder", SimpleNamespace(find_spec=lambda name: None))
    shown, config = burnish("config", recipe).out, package.load(recipe)
    ready = recipe not in PUBLISHED and recipe != "smollm2_sums"
    assert ("Before burnish train can start here" in shown) != ready
    if recipe in PUBLISHED:
        assert f"hf download {config.model.path} --local-dir DIR" in shown
    for option, files in config.prompt_files.items():
        for path in [files] if isinstance(files, str) else files:
            if path.startswith("burnish:"):
                assert resolve(path).exists()
            elif hub_data(path) is None:
                assert f"{option} is {path}" in shown
                assert f"burnish data prepare {named_by(path)}" in shown
                assert named_by(path) in SETS
    for label, reward in config.rewards.items():
        if reward.name == "function":
            assert f"rewards.{label}.path is rewards.py:{label}" in shown
            assert f"{label}(images, prompts)" in shown
        if isinstance(reward, LearnedReward) and not reward.if_cached:
            assert f"rewards.{label}.path is {reward.path}" in shown


def test_a_recipe_of_a_real_model_states_gpus_for_which_it_composes():
    for recipe in recipe_names():
        assert bool(hardware_of(recipe)) == (recipe in PUBLISHED), recipe
        for gpus in {one.gpus for one in hardware_of(recipe)} | (
            {max(8, hardware_of(recipe)[0].gpus)} if recipe in PUBLISHED else set()
        ):
            pools = package.load(recipe, f"gpus={gpus}").pools
            held = pools.train.size + (pools.rollout.size * int(pools.rollout.gpus or 1) if pools.rollout else 0)
            assert held == gpus, recipe


NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("qwen_image", "qwen_image_edit_plus"), ("QwenImageTransformer2DModel", {"num_layers": 1})),
    "z_image": ("ZImageTransformer2DModel", {"n_layers": 1, "n_refiner_layers": 1}),
    "flux2_klein": ("Flux2Transformer2DModel", {"num_layers": 1, "num_single_layers": 1}),
    "flux_kontext": ("FluxTransformer2DModel", {"num_layers": 1, "num_single_layers": 1}),
    **dict.fromkeys(("wan21", "wan22"), ("WanTransformer3DModel", {"num_layers": 1})),
    "ltx": ("LTXVideoTransformer3DModel", {"num_layers": 1}),
    "sdxl": ("UNet2DConditionModel", {
        "block_out_channels": (32, 64), "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    }),
}  # fmt: skip


def test_every_layer_that_gets_adapters_is_a_linear_layer_of_the_model():
    for recipe in PUBLISHED:
        lora = package.load(recipe).model.lora
        if recipe.partition("/")[0] not in NETWORKS or not lora:
            continue
        name, small = NETWORKS[recipe.partition("/")[0]]
        with torch.device("meta"):
            modules = dict(getattr(diffusers, name)(**small).named_modules())
        for target in lora.targets:
            found = [one for path, one in modules.items() if path == target or path.endswith(f".{target}")]
            assert found, f"{recipe}: {name} has no {target}"
            assert all(isinstance(one, nn.Linear) for one in found), f"{recipe}: not every {target} is a linear layer"


TINY = {  # what stands in for a recipe's model, by its folder
    "sd35": "sd3", "flux": "flux", "qwen_image": "qwen-image", "qwen_image_edit_plus": "qwen-image-edit-plus",
    "z_image": "z-image", "flux2_klein": "flux2-klein", "flux_kontext": "flux-kontext", "wan21": "wan2.1",
    "wan22": "wan2.2", "ltx": "ltx", "sdxl": "sdxl", "qwen25_vl": "qwen2_5_vl", "qwen3_vl": "qwen3_vl",
    "qwen3_vl_4b": "qwen3_vl", "qwen35": "qwen3_5", "gemma4": "gemma4", "internvl35": "internvl",
    "qwen25_vl_3b": "qwen2_5_vl", "qwen25_vl_72b": "qwen2_5_vl", "qwen25_vl_refcoco": "qwen2_5_vl",
    "qwen25_vl_video": "qwen2_5_vl", "qwen2_audio": "qwen2_audio",
}  # fmt: skip
ORDINARY = (
    "sd35/flow_grpo",
    "flux/diffusion_nft",
    "sd35/sft",
    "wan22/flow_grpo",
    "qwen25_vl/ppo",
    "qwen25_vl_3b/distill",
)
REWARDS = "".join(
    f"def {name}(images, prompts):\n    return [float(image.mean()) for image in images]\n\n\n"
    for name in ("hpsv3", "geneval2", "geneval", "edit_score")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prompts, pictures, and the functions that a user brings; tiny models join them as they are needed."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "rewards.py").write_text(REWARDS)
    for name in ("black", "white"):
        Image.new("RGB", (8, 8), name).save(folder / f"{name}.png")
    prompt = {"prompt": "the word at", "answer": "at"}
    picture, pair = {"image": "white.png"}, {"chosen": "white.png", "rejected": "black.png"}
    for name, record in (("prompts", prompt), ("pictures", prompt | picture), ("pairs", prompt | pair)):
        (folder / f"{name}.jsonl").write_text(json.dumps(record))
    return folder


def drawing(recipe: str, published: Any) -> list[str]:
    tiny = describe(TINY[recipe.partition("/")[0]])
    files = "prompts"
    if not published.online:
        files = "pairs" if published.algorithm.needs().data == "pairs" else "pictures"
    elif recipe.startswith(("qwen_image_edit_plus", "flux_kontext")):
        files = "pictures"
    # from an adapter of the user
    begun = [] if published.model.lora is None or published.model.lora.path is None else ["model.lora.path=null"]
    return [
        f"data.train_files={files}.jsonl", f"data.val_files={files}.jsonl", f"rollout.height={tiny.height}",
        f"rollout.width={tiny.width}", "validation.height=null", "validation.width=null", "scoring.probe=false",
        "validation.n=1", *(["rollout.n=2"] if published.online else []), *with_tiny_scorers(published), *begun,
        *([] if tiny.num_frames is None else [f"rollout.num_frames={tiny.num_frames}"]),
        *(["data.prompt_key=null", "data.images_key=null"] if published.data.prompt_key else []),
    ]  # fmt: skip


def answering(recipe: str, published: Any) -> list[str]:
    name = recipe.partition("/")[0]
    question: dict[str, Any] = {"problem": "<image>Find x.", "images": ["white.png"], "answer": "6 \\sqrt { 2 }"}
    if name == "qwen25_vl_video":
        question = {"prompt": "<video>Who?\nA. a\nB. b", "video": ["white.png", "black.png"], "answer": "B"}
    if name == "qwen25_vl_refcoco":
        question["answer"] = "[1, 2, 5, 6]"
    if name == "qwen2_audio":
        wave = {"array": [0.1] * 16000, "sampling_rate": 16000}
        question = {"instruction": "What is heard?", "context": wave, "answer": "a cat"}
    Path("questions.jsonl").write_text(json.dumps(question))
    return [
        "data.train_files=questions.jsonl", "data.val_files=questions.jsonl", "rollout.n=2", "rollout.max_new_tokens=4",
        "rewards={repetition: {weight: -1}}",
        *([] if published.rollout.filter_groups is None else ["rollout.filter_groups=null"]),
        *(["algorithm.overlong.buffer=2"] if recipe.endswith("/dapo") else []),
        *(["rollout.engine=burnish", "rollout.vllm=null"] if name == "qwen25_vl_72b" else []),  # the decoder of Burnish
        *([f"algorithm.teachers=[{{path: {TINY[name]}}}]", "data.epochs=null"] if recipe.endswith("/distill") else []),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[] if name in ORDINARY else [pytest.mark.thorough]) for name in PUBLISHED]
)
def test_a_published_recipe_learns_with_a_small_model(recipe, folder, monkeypatch):
    """In the recipe's own precision, with its guidance, window, penalties, critic and adapters."""
    monkeypatch.chdir(folder)
    model, published = TINY[recipe.partition("/")[0]], package.load(recipe)
    if not Path(model).exists():
        burnish("tiny", model, model)
    own = (answering if published.task == "image-text-to-text" else drawing)(recipe, published)
    burnish("train", recipe, f"model.path={model}", "force=true", "data.train_batch_size=1", "steps=1",
            "optimizer.warmup_steps=0", "trainer.mini_batch_size=null", "scoring.processes=0", *own)  # fmt: skip
    update = lines_of(Path("runs", recipe, "metrics.jsonl"))[-1]
    assert math.isfinite(update["actor/grad_norm"])
