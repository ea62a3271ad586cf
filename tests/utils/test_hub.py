"""Models of the Hugging Face hub: what is fetched, what is refused, and who sees the token."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save

from burnish.utils.errors import UserError
from burnish.utils.hub import PIPELINE, HubModel, hub_model, is_hub_id, model_folder
from tests.support.fake_hub import FakeHub, Files, fake_hub, use

NAME, SECRET = "makers/tiny-model", "hf_a_secret"
WEIGHTS = save({"w": torch.zeros(4)})
INDEX = {
    "_class_name": "StableDiffusion3Pipeline",
    "vae": ["diffusers", "AutoencoderKL"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "text_encoder_3": [None, None],
    "../evil": ["diffusers", "AutoencoderKL"],
}
WANTED: Files = {
    PIPELINE: json.dumps(INDEX).encode(),
    "vae/config.json": b"{}",
    "vae/diffusion_pytorch_model-00001-of-00001.safetensors": WEIGHTS,
    "vae/diffusion_pytorch_model.safetensors.index.json": b'{"weight_map": '
    b'{"w": "diffusion_pytorch_model-00001-of-00001.safetensors"}}',
    "tokenizer/vocab.json": b"{}",
    "tokenizer/merges.txt": b"#version: 0.2",
}
UNWANTED: Files = {
    "vae/diffusion_pytorch_model.fp16.safetensors": WEIGHTS,
    "vae/diffusion_pytorch_model.bin": b"a pickle",
    "vae/custom.py": b"import os",
    "text_encoder_3/model.safetensors": WEIGHTS,
    "all_in_one.safetensors": WEIGHTS,
    "README.md": b"# A model",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    with fake_hub() as made:
        use(monkeypatch, made, str(tmp_path / "cache"))
        yield made


def fetch(revision: str | None = None) -> Path:
    return model_folder(NAME, revision, index=PIPELINE)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_only_what_the_pipeline_lists_is_fetched(hub, capsys):
    commit = hub.publish(NAME, WANTED | UNWANTED)
    folder = fetch()
    assert files(folder) == set(WANTED)
    assert folder.name == commit
    assert f"Downloading {NAME} (commit {commit[:8]}): {len(WANTED)} files" in capsys.readouterr().out
    read = {
        path.rpartition(f"{commit}/")[2] for method, path, _ in hub.asked if method == "GET" and "/resolve/" in path
    }
    assert not (read | {path for path, _ in hub.stored}) & set(UNWANTED)


def test_the_token_goes_to_the_hub_alone(hub, capsys):
    hub.publish(NAME, WANTED)
    fetch()
    assert any(authorization == f"Bearer {SECRET}" for _, _, authorization in hub.asked)
    assert hub.stored
    assert all(not authorization for _, authorization in hub.stored)
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err


def test_what_is_in_the_cache_needs_no_network(hub, monkeypatch):
    commit = hub.publish(NAME, WANTED)
    folder = fetch()
    hub.asked.clear()
    assert fetch(commit) == folder
    assert hub.asked == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch() == folder
    assert HubModel(NAME, None, PIPELINE, "model.path").cached() == folder


def test_offline_the_command_that_would_fetch_it_is_shown(hub, monkeypatch):
    hub.publish(NAME, WANTED)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set") as caught:
        fetch("v1.0")
    assert hub.asked == []
    command = str(caught.value).partition("run: ")[2].partition(", and set model.path=DIR")[0]
    words = shlex.split(command)
    assert words == ["hf", "download", NAME, "--local-dir", "DIR", "--revision", "v1.0"]


def test_an_address_where_nobody_answers_is_offline_too(hub, monkeypatch):
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    )
    with pytest.raises(UserError, match="the hub can't be reached; where it can, run: hf download"):
        fetch()


def test_a_branch_that_moved_is_followed_and_a_commit_is_not(hub):
    first = hub.publish(NAME, WANTED)
    assert fetch().name == first
    second = hub.publish(NAME, WANTED | {"vae/config.json": b'{"sample_size": 8}'})
    assert fetch().name == second
    assert fetch(first).name == first


def test_an_interrupted_download_is_not_taken_for_a_model(hub):
    commit = hub.publish(NAME, WANTED)
    hub.broken.add("vae/diffusion_pytorch_model-00001-of-00001.safetensors")
    with pytest.raises(UserError, match="run the same command again"):
        fetch()
    assert HubModel(NAME, commit, PIPELINE, "model.path").cached() is None
    hub.broken.clear()
    assert files(fetch()) == set(WANTED)


def test_pickles_are_refused_before_they_are_fetched(hub):
    hub.publish(NAME, {name: one for name, one in WANTED.items() if "safetensors" not in name} | UNWANTED)
    with pytest.raises(UserError, match=r"diffusion_pytorch_model\.bin, but no weights in safetensors"):
        fetch()
    assert hub.stored == []


@pytest.mark.parametrize(
    ("refusal", "revision", "said"),
    [
        ((401, "RepoNotFound"), None, "neither a directory nor a model of the hub"),
        ((403, "GatedRepo"), None, f"accept its terms at https://huggingface.co/{NAME}, and set HF_TOKEN"),
        ((500, "Oops"), None, "the hub can't be reached"),
        (None, "no-such-branch", "has no revision no-such-branch"),
    ],
)
def test_refusals_of_the_hub_are_explained(hub, refusal, revision, said):
    hub.publish(NAME, WANTED)
    if refusal:
        hub.refusals[NAME] = refusal
    with pytest.raises(UserError, match=said) as caught:
        fetch(revision)
    assert SECRET not in str(caught.value)


def test_a_single_model_is_fetched_for_transformers(hub):
    wanted = {"config.json": b"{}", "model.safetensors": WEIGHTS, "tokenizer.json": b"{}", "chat_template.jinja": b""}
    hub.publish(
        NAME, wanted | {"modeling.py": b"import os", "pytorch_model.bin": b"", "consolidated.safetensors": WEIGHTS}
    )
    assert files(model_folder(NAME, None, index="config.json")) == set(wanted)


def test_another_kind_of_model_is_refused(hub):
    hub.publish(NAME, {"config.json": b"{}"})
    with pytest.raises(UserError, match=r"which has no model_index\.json; give a model that diffusers reads"):
        fetch()


def test_a_directory_of_that_name_comes_first(monkeypatch, tmp_path):
    assert is_hub_id(NAME)
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir(parents=True)
    assert not is_hub_id(NAME)
    assert fetch() == Path(NAME)


@pytest.mark.parametrize(
    "path", ["burnish:quickstart/model", "/a/b", "./a/b", "~/model", "a/b/c", "model", "../b", ".a/b"]
)
def test_these_are_no_names_of_the_hub(path):
    assert not is_hub_id(path)


@pytest.mark.parametrize(("path", "revision", "said"), [
    ("/somewhere", "main", "is no model of the hub; leave it out"),
    (NAME, "../../etc", "give a branch, a tag or a commit"),
    (NAME, "--help", "give a branch, a tag or a commit"),
])  # fmt: skip
def test_revisions_that_make_no_sense_are_refused(path, revision, said):
    with pytest.raises(UserError, match=said):
        hub_model(path, revision, index=PIPELINE)
