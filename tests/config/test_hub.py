"""Models, adapters, tokenizers and scorers of the Hugging Face hub: what is fetched, and which commit a run keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants

import burnish as package
from burnish.config.hub import missing_model, missing_scorers, with_models
from burnish.utils.paths import ASSETS
from tests.support.fake_hub import FakeHub, Files, fake_hub, use
from tests.support.scorers import checkpoint, pictures, prompts, values
from tests.support.tiny_run import TinyRun, burnish

NAME = "makers/quickstart"
MODEL = ASSETS / "quickstart" / "model"


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FILES = files_in(MODEL)
CHANGED = FILES | {"scheduler/scheduler_config.json": FILES["scheduler/scheduler_config.json"] + b"\n"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    monkeypatch.chdir(tmp_path)
    with fake_hub() as made:
        use(monkeypatch, made, str(tmp_path / "cache"))
        yield made


@pytest.fixture
def run(files) -> TinyRun:
    """One update of a generator whose model is on the hub."""
    (files / "numbers.txt").write_text("the number 4\nthe number 7\n")
    shape = "rollout={n: 2, num_inference_steps: 3, height: 16, width: 32, max_sequence_length: 4}"
    return TinyRun(files, "generators", "sd3", f"model.path={NAME}", "algorithm=flow_grpo", shape, "steps=1",
                   "data.train_files={files}/numbers.txt", "data.train_batch_size=1",
                   "trainer={mini_batch_size: null, epochs: 1}", name="hub")  # fmt: skip


def loaded(run: TinyRun, *options: str) -> Any:
    given = {option.partition("=")[0]: option for option in [*run.options, *options]}
    return package.load(str(run.recipe), *given.values())


def recorded(folder: Path) -> Any:
    return yaml.safe_load((folder / "config.yaml").read_text())["model"]


def test_a_run_keeps_the_commit_that_it_began_with(hub, run, tmp_path, monkeypatch):
    first = hub.publish(NAME, FILES)
    assert missing_model(loaded(run)) is not None
    assert (
        "burnish train downloads it" in burnish("config", run.recipe, f"model.path={NAME}", "algorithm=flow_grpo").out
    )
    assert hub.asked == [], "explaining a recipe asks nobody"
    run.train()
    assert missing_model(loaded(run)) is None
    assert recorded(run.output) == recorded(run.output) | {"path": NAME, "revision": first}
    second = hub.publish(NAME, CHANGED)
    assert with_models(loaded(run, "output_dir=other")).model.revision == second, "a new run takes what a branch is at"
    config, steps = run.output / "config.yaml", ["checkpoint.every=1", f"output_dir={run.output}"]
    burnish("train", config, *steps, "steps=2", "model.revision=main")
    assert recorded(run.output)["revision"] == first
    assert "model.revision" in burnish("train", config, *steps, "steps=3", f"model.revision={second}", status=2).message
    checkpoint_ = next((run.output / "checkpoints").glob("0*2"))
    burnish("train", config, "steps=3", f"resume={checkpoint_}", f"output_dir={tmp_path}/branched")
    assert recorded(tmp_path / "branched")["revision"] == first
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    burnish("sample", run.output, "the number 3", "-n", "1", "--output", tmp_path / "samples")
    assert first in burnish("export", run.output, "-o", tmp_path / "exported", "--format", "lora").out
    for written in ("[]", "model: 3", "model: {path: makers/quickstart, revision: [1]}", "model:"):
        config.write_text(written)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        assert with_models(loaded(run)).model.revision == second, "a damaged record is not followed"


def test_offline_the_run_is_refused_before_anything_is_loaded(hub, run, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert f"hf download {NAME} --local-dir DIR" in run.train(status=2).message
    assert not run.output.exists()
    config = loaded(run, f"model.path={MODEL}")
    assert with_models(config) is config, "without names of the hub it is the same"


@pytest.mark.parametrize(("half", "model"), [("generators", "sd3"), ("language", "qwen2")])
def test_adapters_of_the_hub_are_fetched_alone_and_learning_goes_on_from_them(hub, files, half, model, tmp_path):
    algorithm = "algorithm=flow_grpo" if half == "generators" else "algorithm=grpo"
    first = TinyRun(files, half, model, algorithm, "steps=1", name="first")
    first.train()
    burnish("export", first.output, "-o", tmp_path / "adapter", "--format", "lora")
    adapter = {path.name: path.read_bytes() for path in (tmp_path / "adapter").iterdir()}
    commit = hub.publish("me/adapter", adapter | {"notes.md": b"not asked for"})
    weights = []
    for where in ("me/adapter", tmp_path / "adapter"):
        options = [algorithm, "steps=1", f"model.lora.path={where}", "optimizer.lr=1e-9"]
        second = TinyRun(files, half, model, *options, name="second")
        second.train()
        weights.append({name: value for name, value in second.tensors.items() if "lora_B" in name})
    assert recorded(second.output)["lora"]["revision"] is None
    assert any(value.abs().max() > 0 for value in weights[0].values()), "it goes on from what was learned"
    assert all((value == weights[1][name]).all() for name, value in weights[0].items())
    kept = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() or path.is_symlink()}
    assert commit in {path.name for path in (tmp_path / "cache").rglob("*")}
    assert "notes.md" not in kept
    for options in (["model.lora.revision=main"], [f"model.lora.path={tmp_path}/adapter", "model.lora.revision=main"]):
        refused = TinyRun(files, half, model, algorithm, *options, name="refused")
        assert "model.lora.revision" in refused.train(status=2).message


def test_tokenizers_and_teachers_are_pinned_too(hub, files, run):
    TinyRun(files, "language", "qwen2")
    commit = hub.publish("makers/words", files_in(files / "qwen2"))
    words = TinyRun(
        files, "language", "qwen2", "algorithm=grpo", "model.tokenizer=makers/words", "steps=1", name="words"
    )
    words.train()
    assert recorded(words.output)["tokenizer_revision"] == commit
    fetched = [path for path in Path("cache").rglob("*") if path.name == "tokenizer.json"]
    assert fetched
    assert not list(fetched[0].parent.glob("*.safetensors")), "of a tokenizer's repository, its words alone are fetched"
    again = TinyRun(files, "language", "qwen2", "algorithm=grpo", "model.tokenizer_revision=main", name="again").train(
        status=2
    )
    assert "model.tokenizer_revision" in again.message
    own, teacher = hub.publish(NAME, FILES), hub.publish("makers/teacher", CHANGED)
    config = loaded(run, "algorithm=distill", "algorithm.teachers=[{path: makers/teacher}, {guidance_scale: 2.0}]")
    pinned = with_models(config)
    assert pinned.model.revision == own
    assert [one.revision for one in pinned.algorithm.needs().teachers] == [teacher, None]
    assert config.model.revision is None, "what was given stays as it was"
    for wrong, named in (
        ("{path: makers/none}", "path is makers/none"),
        ("{revision: main, guidance_scale: 2.0}", "revision"),
    ):
        with pytest.raises(ValueError, match=rf"algorithm\.teachers\[0\]\.{named}"):
            with_models(loaded(run, "algorithm=distill", f"algorithm.teachers=[{wrong}]"))


# scorers


RELEASE = "HPS_v2.1_compressed.pt"


def scored(**options):
    given = {"path": "makers/pick", "tokenizer": "makers/words"} | options
    return package.load("quickstart", f"rewards={json.dumps({'pickscore': given})}", "output_dir=run")


def test_scorers_are_fetched_without_what_they_do_not_read_and_recorded_by_commits(hub):
    pick, words_ = files_in(checkpoint("pickscore")), files_in(checkpoint("clip"))
    network = hub.publish("makers/pick", pick | {"pytorch_model.bin": b"a pickle", "notes.md": b"words"})
    words = hub.publish("makers/words", words_)
    assert [one.name for one in missing_scorers(scored())] == ["makers/pick", "makers/words"]
    reward = with_models(scored()).rewards["pickscore"]
    assert (reward.revision, reward.tokenizer_revision) == (network, words)
    assert list(missing_scorers(scored())) == []
    assert not {"pytorch_model.bin", "notes.md"} & {one.name for one in reward.folder().iterdir()}
    assert "model.safetensors" not in {one.name for one in reward.vocabulary.iterdir()}
    assert len(values(reward, pictures(), prompts())) == 4
    hub.publish("makers/pick", pick | {"README.txt": b"newer"})
    assert with_models(scored(revision=network)).rewards["pickscore"].revision == network
    hub.publish("makers/hps", {RELEASE: files_in(checkpoint("hpsv2"))[RELEASE], "HPS_v2_compressed.pt": b"another"})
    found = with_models(package.load("quickstart", "rewards={hpsv2: {path: makers/hps, tokenizer: makers/words}}"))
    hps = found.rewards["hpsv2"]
    assert [one.name for one in hps.folder(hps.weights).iterdir()] == [RELEASE], "a published file is fetched alone"
    for options in ({"path": ".", "revision": "main"}, {"tokenizer": ".", "tokenizer_revision": "main"}):
        with pytest.raises(ValueError, match=r"rewards\.pickscore\.(tokenizer_)?revision is main"):
            list(missing_scorers(scored(**options)))


def test_what_is_watched_where_its_weights_are_at_hand_is_left_out_elsewhere(hub):
    def watched(*options):
        given = {
            "name": "pickscore",
            "path": "makers/pick",
            "tokenizer": "makers/words",
            "if_cached": True,
            "weight": 0,
        }
        config = package.load("quickstart", f"rewards.second={json.dumps(given)}", "output_dir=run", *options)
        return set(with_models(config).rewards)

    hub.publish("makers/pick", files_in(checkpoint("pickscore")))
    hub.publish("makers/words", files_in(checkpoint("clip")))
    assert "second" not in watched()
    assert hub.asked == [], "nothing is asked of a network"
    with_models(scored())  # fetches both
    assert "second" in watched()
    assert watched("rewards.first={name: pickscore, path: makers/pick, tokenizer: makers/words}") >= {"first"}
    assert "second" not in watched("rewards.first={name: pickscore, path: makers/pick, tokenizer: makers/words}")
    Path("run").mkdir()
    Path("run/config.yaml").write_text("rewards: {ocr: {weight: 1}}\n")
    assert "second" not in watched(), "the run began without it"
