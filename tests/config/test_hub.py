"""Models, adapters, tokenizers and scorers of the Hugging Face hub: what is fetched, and which commit a run keeps."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants

from tests.support.fake_hub import Files
from tests.support.scorers import checkpoint
from tests.support.shown import ROOT
from tests.support.tiny_run import TinyRun, burnish

NAME = "makers/quickstart"
MODEL = ROOT / "burnish" / "assets" / "quickstart" / "model"


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FILES = files_in(MODEL)
CHANGED = FILES | {"scheduler/scheduler_config.json": FILES["scheduler/scheduler_config.json"] + b"\n"}


@pytest.fixture
def run(files) -> TinyRun:
    """One update of a generator whose model is on the hub."""
    (files / "numbers.txt").write_text("the number 4\nthe number 7\n")
    shape = "rollout={n: 2, num_inference_steps: 3, height: 16, width: 32, max_sequence_length: 4}"
    return TinyRun(files, "generators", "sd3", f"model.path={NAME}", "algorithm=flow_grpo", shape, "steps=1",
                   "data.train_files={files}/numbers.txt", "data.train_batch_size=1",
                   "trainer={mini_batch_size: null, epochs: 1}", name="hub")  # fmt: skip


def recorded(folder: Path) -> Any:
    return yaml.safe_load((folder / "config.yaml").read_text())["model"]


def in_cache(name: str) -> bool:
    return any(path.name == name for path in Path("cache").rglob("*"))


def test_a_run_keeps_the_commit_that_it_began_with(hub, run, files, tmp_path, monkeypatch):
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        assert f"hf download {NAME} --local-dir DIR" in run.train(status=2).message
    first = hub.publish(NAME, FILES)
    explained = burnish("config", run.recipe, f"model.path={NAME}", "algorithm=flow_grpo").out
    assert "burnish train downloads it" in explained
    assert hub.asked == [], "explaining a recipe asks nobody"
    run.train()
    assert recorded(run.output) == recorded(run.output) | {"path": f"{NAME}@{first}"}
    second = hub.publish(NAME, CHANGED)
    config, steps = run.output / "config.yaml", ["checkpoint.every=1", f"output_dir={run.output}"]
    burnish("train", config, *steps, "steps=2", f"model.path={NAME}@main")
    assert recorded(run.output)["path"] == f"{NAME}@{first}"
    assert "model.path" in burnish("train", config, *steps, "steps=3", f"model.path={NAME}@{second}", status=2).message
    newest = next((run.output / "checkpoints").glob("0*2"))
    burnish("train", config, "steps=3", f"resume={newest}", f"output_dir={tmp_path}/branched")
    assert recorded(tmp_path / "branched")["path"] == f"{NAME}@{first}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert first in burnish("export", run.output, "-o", tmp_path / "exported", "--format", "lora").out
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    new = TinyRun(files, "generators", "sd3", *run.options[:-1], "optimizer.lr=1e-3", name="new")
    new.train()
    assert recorded(new.output)["path"] == f"{NAME}@{second}", "a new run takes what a branch is at"


def test_adapters_of_the_hub_are_fetched_alone_and_learning_goes_on_from_them(hub, files, tmp_path):
    first = TinyRun(files, "language", "qwen2", "algorithm=grpo", "steps=1", name="first")
    first.train()
    burnish("export", first.output, "-o", tmp_path / "adapter", "--format", "lora")
    adapter = {path.name: path.read_bytes() for path in (tmp_path / "adapter").iterdir()}
    commit = hub.publish("me/adapter", adapter | {"notes.md": b"not asked for"})
    weights = []
    for where in ("me/adapter", tmp_path / "adapter"):
        options = ["algorithm=grpo", "steps=1", f"model.lora.path={where}", "optimizer.lr=1e-9"]
        second = TinyRun(files, "language", "qwen2", *options, name="second")
        second.train()
        weights.append({name: value for name, value in second.tensors.items() if "lora_B" in name})
    assert any(value.abs().max() > 0 for value in weights[0].values()), "it goes on from what was learned"
    assert all((value == weights[1][name]).all() for name, value in weights[0].items())
    assert in_cache(commit)
    assert not in_cache("notes.md")


def test_tokenizers_and_teachers_are_pinned_too(hub, files, run, tmp_path):
    TinyRun(files, "language", "qwen2")
    commit = hub.publish("makers/words", files_in(files / "qwen2"))
    own = ["algorithm=grpo", "model.tokenizer=makers/words", "steps=1"]
    words = TinyRun(files, "language", "qwen2", *own, name="words")
    words.train()
    assert recorded(words.output)["tokenizer"] == f"makers/words@{commit}"
    assert not in_cache("model.safetensors"), "of a tokenizer's repository, its words alone are fetched"
    hub.publish(NAME, FILES)
    teacher = hub.publish("makers/teacher", CHANGED)
    run.options[1] = "algorithm=distill"
    run.train("algorithm.teachers=[{path: makers/teacher}, {guidance_scale: 2.0}]")
    told = yaml.safe_load((run.output / "config.yaml").read_text())["algorithm"]["teachers"]
    assert [one.get("path") for one in told] == [f"makers/teacher@{teacher}", None]


def test_scorers_are_fetched_without_what_they_do_not_read_and_recorded_by_commits(hub, run):
    """One that is only watched where its weights are at hand is left out elsewhere, and asks nobody."""
    run.options[0] = f"model.path={MODEL}"
    second = {"name": "pickscore", "path": "makers/pick", "tokenizer": "makers/words", "weight": 0}

    def rewards(number: int, **options: Any) -> Any:
        run.options[-1] = f"output_dir={run.output}{number}"
        run.train(f"rewards.second={json.dumps(second | options)}")
        return yaml.safe_load(Path(f"{run.output}{number}", "config.yaml").read_text())["rewards"]

    assert "second" not in rewards(0, if_cached=True)
    assert hub.asked == [], "nothing is asked of a network"
    pick = files_in(checkpoint("pickscore"))
    network = hub.publish("makers/pick", pick | {"pytorch_model.bin": b"a pickle", "notes.md": b"words"})
    words = hub.publish("makers/words", files_in(checkpoint("clip")))
    told = rewards(1)["second"]
    assert (told["path"], told["tokenizer"]) == (f"makers/pick@{network}", f"makers/words@{words}")
    assert not any(map(in_cache, ("pytorch_model.bin", "notes.md")))
    assert "second" in rewards(2, if_cached=True)
