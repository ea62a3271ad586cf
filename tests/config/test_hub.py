"""A run whose model is one of the Hugging Face hub: when it is downloaded, and which commit the run keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import constants

from burnish.cli import main
from burnish.config import load
from burnish.config.hub import missing_model, with_models
from burnish.models.adapters import adapter_folder
from burnish.models.flow.adapters import FILE
from burnish.models.language.overlaid import tokenizer_folder
from burnish.tasks import assemble
from burnish.utils.errors import UserError
from burnish.utils.paths import ASSETS
from tests.support.fake_hub import Files
from tests.support.tiny_recipes import (
    language_recipe,
    reward,
    write_language_models,
    write_recipe,
    write_rewards,
)

NAME = "makers/quickstart"
MODEL = ASSETS / "quickstart" / "model"
FILES: Files = {str(path.relative_to(MODEL)): path.read_bytes() for path in MODEL.rglob("*") if path.is_file()}


def changed(files: Files) -> Files:
    return files | {"scheduler/scheduler_config.json": files["scheduler/scheduler_config.json"] + b"\n"}


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """One update of a generator whose model is on the hub."""
    write_rewards(tmp_path)
    (tmp_path / "prompts.txt").write_text("the number 4\nthe number 7\n")
    tree: dict[str, Any] = {
        "model": {"path": NAME, "lora": {"rank": 2}},
        "data": {"train_files": str(tmp_path / "prompts.txt"), "train_batch_size": 1},
        "algorithm": "flow_grpo",
        "rewards": {"brightness": reward(tmp_path, "brightness")},
        "rollout": {"n": 2, "num_inference_steps": 3, "max_sequence_length": 4},
        "scoring": {"processes": 0},
        "steps": 1,
        "output_dir": str(tmp_path / "run"),
    }
    return str(write_recipe(tmp_path / "recipe.yaml", tree))


def recorded(run: str = "run") -> Any:
    return yaml.safe_load((Path(run) / "config.yaml").read_text())["model"]


@pytest.mark.slow
def test_a_run_keeps_the_commit_that_it_began_with(hub, recipe, capsys, monkeypatch):
    first = hub.publish(NAME, FILES)
    assert main(["train", recipe]) == 0
    assert recorded() == recorded() | {"path": NAME, "revision": first}
    second = hub.publish(NAME, changed(FILES))
    assert main(["train", recipe, "steps=2", "model.revision=main"]) == 0
    assert recorded()["revision"] == first
    assert main(["train", recipe, "steps=3", f"model.revision={second}"]) == 2
    assert "model.revision" in capsys.readouterr().err
    checkpoint = next(Path("run/checkpoints").glob("0*2"))
    assert main(["train", recipe, "steps=3", f"resume={checkpoint}", "output_dir=branched"]) == 0
    assert recorded("branched")["revision"] == first
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["sample", "run", "the number 3", "-n", "1"]) == 0
    assert main(["export", "run", "-o", "exported", "--format", "lora"]) == 0
    assert first in capsys.readouterr().out


def test_an_adapter_of_the_hub_is_fetched_alone_and_its_commit_is_kept(hub, recipe, tmp_path):
    from safetensors.torch import load_file

    local = [f"model.path={MODEL}", "model.lora.rank=2"]
    assert main(["train", recipe, *local, "output_dir=first"]) == 0
    assert main(["export", "first", "-o", "adapter", "--format", "lora"]) == 0
    files = {path.name: path.read_bytes() for path in Path("adapter").iterdir()}
    commit = hub.publish("me/adapter", files | {"README.md": b"not asked for"})
    config = with_models(load(recipe, [*local, "model.lora.path=me/adapter", "model.lora.alpha=4"]))
    assert config.model.lora.revision == commit
    folder = adapter_folder(config.model.lora, (FILE,))
    assert [path.name for path in folder.iterdir()] == [FILE]
    assembly = assemble(config)
    given = load_file(folder / FILE)
    ours = [value for name, value in assembly.roles.parameters().items() if "to_q.lora_B" in name]
    assert any(value.abs().max() > 0 for value in ours), "it goes on from what was learned"
    assert {tuple(value.shape) for value in ours} <= {tuple(value.shape) for value in given.values()}
    with pytest.raises(UserError, match="revision is given without"):
        with_models(load(recipe, ["model.lora.revision=main"]))
    with pytest.raises(UserError, match="which is no model of the hub"):
        with_models(load(recipe, [*local, "model.lora.path=./adapter", "model.lora.revision=main"]))


@pytest.mark.slow
def test_a_language_model_goes_on_from_an_adapter_of_the_hub(hub, tmp_path):
    write_language_models(tmp_path, ["qwen2_5_vl"])
    words = str(write_recipe(tmp_path / "words.yaml", language_recipe(tmp_path, "qwen2_5_vl")))
    local = ["algorithm=grpo", "validation.every=0", "model.device=cpu"]
    assert main(["train", words, *local, "output_dir=first"]) == 0
    assert main(["export", "first", "-o", "adapter", "--format", "lora"]) == 0
    files = {path.name: path.read_bytes() for path in Path("adapter").iterdir()}
    commit = hub.publish("me/words", files)
    config = with_models(load(words, [*local, "model.lora.path=me/words", "model.lora.alpha=4"]))
    assert config.model.lora.revision == commit
    learned = assemble(config).roles.parameters()
    there = assemble(load(words, [*local, "model.lora.path=./adapter", "model.lora.alpha=4"])).roles.parameters()
    assert any(value.abs().max() > 0 for name, value in learned.items() if "lora_B" in name)
    assert all(torch.equal(value, there[name]) for name, value in learned.items())


def test_a_tokenizer_of_the_hub_is_fetched_without_weights_and_its_commit_is_kept(hub, tmp_path):
    write_language_models(tmp_path, ["qwen2"])
    files: Files = {path.name: path.read_bytes() for path in (tmp_path / "qwen2").iterdir()}
    commit = hub.publish("makers/words", files)
    tree = language_recipe(tmp_path, "qwen2") | {"algorithm": "grpo"}
    tree["model"] |= {"tokenizer": "makers/words"}
    config = with_models(load(str(write_recipe(tmp_path / "recipe.yaml", tree))))
    assert config.model.tokenizer_revision == commit
    folder = tokenizer_folder(config.model)
    assert (folder.name, (folder / "tokenizer.json").is_file()) == (commit, True)
    assert not list(folder.glob("*.safetensors"))
    tree["model"] |= {"tokenizer": None, "tokenizer_revision": "main"}
    with pytest.raises(UserError, match=r"model\.tokenizer_revision is given without model\.tokenizer"):
        with_models(load(str(write_recipe(tmp_path / "recipe.yaml", tree))))


def test_a_new_run_takes_what_a_branch_is_at(hub, recipe):
    hub.publish(NAME, FILES)
    with_models(load(recipe))
    second = hub.publish(NAME, changed(FILES))
    assert with_models(load(recipe, ["output_dir=other"])).model.revision == second


def test_teachers_are_pinned_too(hub, recipe):
    commit, teacher = hub.publish(NAME, FILES), hub.publish("makers/teacher", changed(FILES))
    distill = ["algorithm=distill", "algorithm.teachers=[{path: makers/teacher}, {guidance_scale: 2.0}]"]
    config = load(recipe, distill)
    pinned = with_models(config)
    assert pinned.model.revision == commit
    assert [one.revision for one in pinned.algorithm.needs().teachers] == [teacher, None]
    assert config.model.revision is None  # what was given stays as it was


def test_what_is_wrong_with_a_teacher_names_its_option(hub, recipe):
    hub.publish(NAME, FILES)
    with pytest.raises(UserError, match=r"algorithm\.teachers\[0\]\.path is makers/teacher, which is neither"):
        with_models(load(recipe, ["algorithm=distill", "algorithm.teachers=[{path: makers/teacher}]"]))
    with pytest.raises(UserError, match=r"algorithm\.teachers\[0\]\.revision is given without"):
        with_models(load(recipe, ["algorithm=distill", "algorithm.teachers=[{revision: main, guidance_scale: 2.0}]"]))


def test_explaining_a_recipe_asks_nobody(hub, recipe, capsys):
    hub.publish(NAME, FILES)
    assert main(["config", recipe]) == 0
    assert "burnish train downloads it from the Hugging Face hub" in capsys.readouterr().out
    assert hub.asked == []
    assert missing_model(load(recipe)) is not None
    with_models(load(recipe))
    assert missing_model(load(recipe)) is None


def test_offline_the_run_is_refused_before_anything_is_loaded(hub, recipe, monkeypatch, capsys):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["train", recipe]) == 2
    assert f"run: hf download {NAME} --local-dir DIR" in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_configuration_without_hub_names_stays_the_same_object(recipe):
    config = load(recipe, [f"model.path={MODEL}"])
    assert with_models(config) is config


@pytest.mark.parametrize("written", ["[]", "model: 3", "model: {path: makers/quickstart, revision: [1]}", "model:"])
def test_a_damaged_record_is_not_followed(hub, recipe, written):
    commit = hub.publish(NAME, FILES)
    Path("run").mkdir()
    Path("run/config.yaml").write_text(written)
    assert with_models(load(recipe)).model.revision == commit
