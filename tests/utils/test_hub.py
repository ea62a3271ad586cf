"""Models and data sets of the Hugging Face hub: what is fetched, what is refused, and who sees the token."""

import io
import json
import shlex
import time

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save

from burnish.utils.errors import UserError
from burnish.utils.hub import MODULAR, PIPELINE, HubModel, model_folder
from tests.support.fake_hub import TOKEN, fake_hub, use_for_data
from tests.support.records import GENERATOR, LANGUAGE, image_file, prompts, questions, read, refused, shade
from tests.support.tiny_run import burnish

NAME = "makers/tiny-model"
WEIGHTS = save({"w": torch.zeros(4)})
INDEX = {
    "_class_name": "StableDiffusion3Pipeline", "vae": ["diffusers", "AutoencoderKL"],
    "tokenizer": ["transformers", "CLIPTokenizer"], "text_encoder_3": [None, None],
    "../evil": ["diffusers", "AutoencoderKL"],
}  # fmt: skip
SHARD = "diffusion_pytorch_model-00001-of-00001.safetensors"
WANTED = {
    PIPELINE: json.dumps(INDEX).encode(), "vae/config.json": b"{}", f"vae/{SHARD}": WEIGHTS,
    "vae/diffusion_pytorch_model.safetensors.index.json": json.dumps({"weight_map": {"w": SHARD}}).encode(),
    "tokenizer/vocab.json": b"{}", "tokenizer/merges.txt": b"#version: 0.2",
    **{f"vae/model{of}.safetensors": WEIGHTS for of in ("-1-of-61", "-00163-of-000163", ".safetensors-00001-of-00014")},
}  # fmt: skip
UNWANTED = {
    "vae/diffusion_pytorch_model.fp16.safetensors": WEIGHTS, "vae/diffusion_pytorch_model.bin": b"a pickle",
    "vae/custom.py": b"import os", "text_encoder_3/model.safetensors": WEIGHTS, "all_in_one.safetensors": WEIGHTS,
    "README.md": b"# A model", "vae/model-00001-of-00002.fp16.safetensors": WEIGHTS,
}  # fmt: skip


def test_a_folder_at_an_address_is_fetched_once_and_then_what_changed_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "cache"))
    for name, content in (WANTED | UNWANTED).items():
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_bytes(content)
    address = (tmp_path / "there").as_uri()
    found = model_folder(address, index=PIPELINE)
    kept = {path.relative_to(found).as_posix() for path in found.rglob("[!.]*") if path.is_file()}
    assert kept == {*WANTED, "text_encoder_3/model.safetensors"}  # no pickles, no code, nothing in other precisions
    (tmp_path / "there" / "tokenizer" / "merges.txt").unlink()
    (tmp_path / "there" / "vae" / "config.json").write_bytes(b'{"a": 1}')
    (found / "vae" / SHARD).write_bytes(b"not fetched again")
    assert model_folder(address, index=PIPELINE) == found
    assert "1 file," in capsys.readouterr().out.splitlines()[-1]
    assert not (found / "tokenizer" / "merges.txt").exists()
    assert [(found / "vae" / name).read_bytes() for name in ("config.json", SHARD)] == [
        b'{"a": 1}',
        b"not fetched again",
    ]
    for wrong, says in (("file:///nowhere", "no model"), ("s3://me:word@b/c", "password"), ("no://b", "Protocol")):
        with pytest.raises(UserError, match=f"model.path .*{says}"):
            model_folder(wrong, index=PIPELINE)


def fetch(revision=None):
    return model_folder(NAME if revision is None else f"{NAME}@{revision}", index=PIPELINE)


def said(*options):
    """What a command says that is to train this model and can't have it."""
    told = burnish("train", "quickstart", *(options or [f"model.path={NAME}"]), status=2)
    assert TOKEN not in told.err + told.out
    return told.message


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("index", [PIPELINE, MODULAR])
def test_only_what_the_pipeline_lists_is_fetched_and_the_token_goes_to_the_hub_alone(index, hub, capsys):
    loaded = {"tokenizer": [None, None, {"repo": NAME, "type_hint": INDEX["tokenizer"]}], "vae": [*INDEX["vae"], {}]}
    content = json.dumps(INDEX | loaded if index == MODULAR else INDEX).encode()
    wanted = {name: one for name, one in WANTED.items() if name != PIPELINE} | {index: content}
    commit = hub.publish(NAME, wanted | UNWANTED)
    folder = fetch()
    assert files(folder) == set(wanted)
    assert folder.name == commit
    printed = capsys.readouterr()
    assert f"{NAME} (commit {commit[:8]}): {len(WANTED)} files" in printed.out
    assert TOKEN not in printed.out + printed.err
    got = {path.rpartition(f"{commit}/")[2] for method, path, _ in hub.asked if method == "GET" and "/resolve/" in path}
    assert not (got | {path for path, _ in hub.stored}) & set(UNWANTED)
    assert any(authorization == f"Bearer {TOKEN}" for _, _, authorization in hub.asked)
    assert hub.stored
    assert all(not authorization for _, authorization in hub.stored)


def test_what_is_in_the_cache_needs_no_network_and_a_branch_that_moved_is_followed(hub, monkeypatch):
    first = hub.publish(NAME, WANTED)
    folder = fetch()
    hub.asked.clear()
    assert fetch(first) == folder
    assert hub.asked == []
    second = hub.publish(NAME, WANTED | {"vae/config.json": b'{"sample_size": 8}'})
    assert (fetch().name, fetch(first).name) == (second, first)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch().name == second
    assert HubModel(NAME, None, PIPELINE, "model.path").cached() == fetch()


def test_offline_the_command_that_would_fetch_it_is_shown(hub, monkeypatch):
    hub.publish(NAME, WANTED)
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        told = said(f"model.path={NAME}@v1.0")
        assert hub.asked == []
    words = shlex.split(told.partition("run: ")[2].partition(", and set model.path=DIR")[0])
    assert words == ["hf", "download", NAME, "--local-dir", "DIR", "--revision", "v1.0"]
    address = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    assert "hf download" in said(), "nobody answers there"


def test_an_interrupted_download_is_not_taken_for_a_model(hub, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # before the hub is asked again
    commit = hub.publish(NAME, WANTED)
    hub.broken.update(name for name, content in WANTED.items() if content == WEIGHTS)  # one file of the cache
    with pytest.raises(ValueError, match="again"):
        fetch()
    assert HubModel(NAME, commit, PIPELINE, "model.path").cached() is None
    hub.broken.clear()
    assert files(fetch()) == set(WANTED)


def test_what_the_hub_refuses_or_does_not_have_is_named(hub):
    hub.publish(NAME, {name: one for name, one in WANTED.items() if "safetensors" not in name} | UNWANTED)
    assert "diffusion_pytorch_model.bin" in said(), "a pickle is not fetched"
    assert hub.stored == []
    assert "no-such-branch" in said(f"model.path={NAME}@no-such-branch")
    for refusal, words in (
        ((401, "RepoNotFound"), "neither a directory nor a model"), ((500, "Oops"), "Server error '500"),
        ((403, "GatedRepo"), f"https://huggingface.co/{NAME}"),
    ):  # fmt: skip
        hub.refusals[NAME] = refusal
        assert words in said()
    hub.refusals.clear()
    hub.publish(NAME, {"config.json": b"{}"})
    assert PIPELINE in said()
    for revision in ("../../etc", "--help"):
        assert revision in said(f"model.path={NAME}@{revision}")
    assert "model.path" in burnish("train", "quickstart", "model.path=/tmp@main", status=2).message


SHAPES = "someone/shapes"


def table(rows):
    from datasets import Dataset

    written = io.BytesIO()
    Dataset.from_list(rows).to_parquet(written)
    return written.getvalue()


def asked(answer):
    shown = [{"bytes": image_file(10), "path": None}]
    return {"images": shown, "problem": "<image>Find x.", "answer": answer, "text": f"a triangle of side {answer}"}


@pytest.fixture
def data_hub(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    with fake_hub() as found:
        found.publish(SHAPES, {
            f"data/{split}-00000-of-00001.parquet": table([asked(answer) for answer in answers])
            for split, answers in (("train", "123"), ("test", "4"))
        })  # fmt: skip
        use_for_data(monkeypatch, found, str(tmp_path / "cache"))
        yield found


def test_a_split_of_a_data_set_is_read_as_a_file_s_records(data_hub):
    found = questions(f"{SHAPES}@train", "data.prompt_key=problem")
    assert [question.answer for question in found] == ["1", "2", "3"]
    assert {shade(question.images[0]) for question in found} == {10}
    assert found[1].where == f"{SHAPES}@train, row 2"
    parts = {"train": "123", "test": "4", "train[:2]": "12", "train[1:]": "23", "train[:34%]": "1"}
    for part, sides in parts.items():
        assert [prompt.text[-1] for prompt in prompts(f"{SHAPES}@{part}", "data.prompt_key=text")] == list(sides)
    data_hub.commits.clear()
    assert len(questions(f"{SHAPES}@train", "data.prompt_key=problem")) == 3, "what was downloaded is found again"


def test_images_and_pairs_of_the_hub_are_learned_from_as_those_of_files_are(data_hub):
    chosen, rejected = ({"bytes": image_file(level, 8, 8), "path": None} for level in (1, 2))
    rows = [{"prompt": "a cube", "chosen": chosen, "rejected": rejected}]
    data_hub.publish("someone/pairs", {"data/train-00000-of-00001.parquet": table(rows)})
    sized = ["rollout.height=8", "rollout.width=8", "algorithm.online=false"]
    (pair,) = read(GENERATOR, "someone/pairs@train", "algorithm=diffusion_dpo", *sized)
    (imitated,) = read(GENERATOR, "someone/pairs@train", "algorithm=sft", *sized)
    assert [shade(media) for media in pair.images] == [1, 2]
    assert imitated.images == pair.images[:1]
    assert pair.where == "someone/pairs@train, row 1"


def test_what_the_hub_lacks_and_what_is_no_data_set_is_named(data_hub, tmp_path):
    for path, words in (
        (f"{SHAPES}@validation", "split"), (f"{SHAPES}:hard@train", f"{SHAPES}:hard@train"),
        ("someone/absent@train", "hf download someone/absent --repo-type"), ("a/b", "no such file"),
        ("a/b@", "a/b@"), ("../a@train", "no such file"), (f"{SHAPES}@train[1]", "[1]"),
    ):  # fmt: skip
        assert words in refused(LANGUAGE, path)[0]
    given = ["data.train_files=someone/absent@train", f"output_dir={tmp_path / 'run'}"]
    assert "someone/absent@train" in burnish("train", "vlm_quickstart", *given, status=2).message
