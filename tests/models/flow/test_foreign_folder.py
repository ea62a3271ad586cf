"""Folders of models from strangers: what they bring as code is neither run nor asked about."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys

import pytest

from burnish.models.flow.base import Drawing
from burnish.models.flow.loading import load_model, read_index
from burnish.models.language.loading import load_language_model
from burnish.options.flow import ModelOptions
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support.factory import tiny_pipeline
from tests.support.language_samples import folder_of

CODE = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\nclass Own: pass\n"


def change(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def language(tmp_path, monkeypatch):
    folder = shutil.copytree(folder_of("llama"), tmp_path / "model")
    (folder / "own.py").write_text(CODE)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("nobody is there to be asked"))
    return folder


def load(folder):
    load_language_model(ModelOptions(path=str(folder), device="cpu"))


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_beside_a_language_model_is_not_run(language, file):
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    change(language / file, auto_map=own, tokenizer_class="Own")
    with contextlib.suppress(UserError):
        load(language)
    assert not (language / "ran").exists()


def test_code_beside_a_known_type_is_told_with_the_class_that_is_trained(language, caplog):
    change(language / "config.json", auto_map={"AutoModelForCausalLM": "own.Own"})
    load(language)
    assert "is not run: it is trained as the LlamaForCausalLM of transformers" in caplog.text
    change(language / "config.json", model_type="own")
    with pytest.raises(UserError, match="the code that it brings"):
        load(language)


@pytest.mark.parametrize("content", ["[" * 100_000, "[1]", "7", "\0", '{"a":' * 10_000])
def test_a_configuration_that_is_none_is_told_in_words(language, tmp_path, content):
    (language / "config.json").write_text(content)
    (tmp_path / "model_index.json").write_text(content)
    for read in (lambda: load(language), lambda: read_index(ModelOptions(path=str(tmp_path)))):
        with pytest.raises(UserError, match=r"config\.json|model_index\.json"):
            read()


def test_modules_that_a_pipeline_names_are_not_imported(tmp_path, monkeypatch):
    folder = tiny_pipeline(tmp_path, vae=False)
    (tmp_path / "own.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    change(folder / "model_index.json", tokenizer=["own", "Own"])
    with pytest.raises(UserError, match="takes tokenizer from 'own'; parts must be of diffusers or transformers"):
        load_model(ModelOptions(path=str(folder)))
    assert not (tmp_path / "ran").exists()
    assert "own" not in sys.modules


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "a/b"])
def test_parts_outside_of_a_pipeline_s_folder_are_refused(tmp_path, name):
    folder = tiny_pipeline(tmp_path, vae=False)
    change(folder / "model_index.json", **{name: ["diffusers", "AutoencoderKL"]})
    with pytest.raises(UserError, match="not a valid name of a part"):
        read_index(ModelOptions(path=str(folder)))


def test_a_modular_pipeline_is_refused_by_name(tmp_path):
    (tmp_path / "modular_model_index.json").write_text('{"_class_name": "QwenImageModularPipeline"}')
    with pytest.raises(UserError, match="is a modular pipeline, whose blocks compute without gradients"):
        read_index(ModelOptions(path=str(tmp_path)))


@pytest.mark.parametrize(
    ("part", "why"),
    [
        # diffusers would read the folder's own model_index.json, and import what that names
        (["diffusers", "DiffusionPipeline"], "for text_encoder, which is a pipeline itself"),
        (["diffusers", "StableDiffusion3Pipeline"], "which is a pipeline itself"),
        (["transformers", "AutoModel"], "which may be any network; name its class, as text_encoder/config.json"),
        (["transformers", "pipeline"], "which version .* doesn't have"),
        (["transformers", "Trainer"], "which version .* doesn't have"),
        (["diffusers", "utils"], "which version .* doesn't have"),
        (["stable_diffusion_3", "StableDiffusion3Pipeline"], "which is a pipeline itself"),
        (["transformers", ["CLIPTextModel"]], "which version .* doesn't have"),
    ],
)
def test_parts_of_classes_that_load_anything_are_refused(tmp_path, part, why):
    folder = tiny_pipeline(tmp_path, vae=False)
    change(folder / "model_index.json", text_encoder=part)
    with pytest.raises(UserError, match=rf"model_index\.json has .* {why}"):
        load_model(ModelOptions(path=str(folder)))


def test_thousands_of_parts_are_not_looked_for(tmp_path):
    named = {f"part_{number}": ["diffusers", "AutoencoderKL"] for number in range(100)}
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"} | named))
    with pytest.raises(UserError, match="lists 100 parts, more than 64"):
        read_index(ModelOptions(path=str(tmp_path)))


@pytest.mark.parametrize("name", ["DiffusionPipeline", "AutoPipelineForText2Image", "UNet2DConditionModel"])
def test_a_class_that_draws_nothing_is_no_pipeline(tmp_path, name):
    folder = tiny_pipeline(tmp_path, vae=False)
    change(folder / "model_index.json", _class_name=name)
    with pytest.raises(UserError, match=f"holds a {name}, which is no pipeline of diffusers"):
        load_model(ModelOptions(path=str(folder)))


@pytest.mark.parametrize(
    ("file", "changes", "why"),
    [
        ("text_encoder/config.json", {"hidden_size": 16384}, r"holds .* numbers, but a CLIPText\w+ has 2.15e\+09 by"),
        ("text_encoder/config.json", {"num_hidden_layers": 5000}, "num_hidden_layers 5000, but its files of weights"),
        ("transformer/config.json", {"num_layers": 5000}, r"num_layers 5000, but its files of weights hold \d+ tens"),
        ("transformer/config.json", {"pos_embed_max_size": 9999}, "pos_embed_max_size 9999; it must be at most 1024"),
        ("tokenizer/tokenizer_config.json", {"x": json.loads("[" * 90 + "]" * 90)}, ""),
    ],
)
def test_networks_that_no_file_could_fill_are_not_made(tmp_path, file, changes, why):
    folder = tiny_pipeline(tmp_path, vae=False)
    change(folder / file, **changes)
    with pytest.raises(UserError, match=why) if why else contextlib.nullcontext():
        load_model(ModelOptions(path=str(folder), device="cpu"))


def test_what_text_encoders_raise_is_told_with_the_prompt(tmp_path):
    folder = tiny_pipeline(tmp_path, vae=False)
    change(folder / "text_encoder" / "config.json", eos_token_id=10**30)
    model = load_model(ModelOptions(path=str(folder), device="cpu"))
    drawing = Drawing(height=8, width=8, steps=1)
    with pytest.raises(UserError, match=r"embeds no prompt: reading 'a cat' ended with OverflowError: .*; restore"):
        model.condition([Prompt(text="a cat")], drawing)
