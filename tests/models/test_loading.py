"""Folders as users have them: in other precisions and variants, damaged, foreign, with code, or no model at all."""

import json
import shutil
import sys
from pathlib import Path

import diffusers
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from burnish.utils import weights
from burnish.utils.hub import MODULAR
from tests.support.generators import folder_of as pipeline_of
from tests.support.language_samples import folder_of
from tests.support.model_runs import changed, refused, run_of
from tests.support.tiny_run import burnish

CODE = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\nclass Own: pass\n"


@pytest.fixture
def told(files):
    """What a run with the model in a folder is refused with."""

    def refusal(folder, *options, names=()):
        draws = any(folder.glob("*model_index.json")) or folder.suffix == ".safetensors"
        options = ["rollout.max_sequence_length=null"] * draws + [*options]
        return refused(files, "sd3" if draws else "llama", f"model.path={folder}", *options, names=names)

    return refusal


@pytest.fixture
def pipeline(tmp_path):
    return shutil.copytree(pipeline_of("sd3"), tmp_path / "pipeline")


@pytest.fixture
def language(tmp_path, monkeypatch):
    folder = shutil.copytree(folder_of("llama"), tmp_path / "model")
    (folder / "own.py").write_text(CODE)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("nobody is there to be asked"))
    return folder


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_beside_a_language_model_is_not_run(language, file, files, caplog, told):
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    changed(language / file, auto_map=own, tokenizer_class="Own")
    if file == "config.json":
        run_of(files, "llama", f"model.path={language}").train("steps=1")
        assert "LlamaForCausalLM" in caplog.text, "the class that is trained is told"
        changed(language / file, model_type="own")
        assert "code" in told(language)
    else:
        told(language)
    assert not (language / "ran").exists()


def test_modules_that_a_pipeline_names_are_not_imported(pipeline, monkeypatch, told):
    (pipeline.parent / "own.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(pipeline.parent))
    changed(pipeline / "model_index.json", tokenizer=["own", "Own"])
    told(pipeline, names=["tokenizer", "'own'"])
    assert "own" not in sys.modules
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("nobody is there to be asked"))
    changed(pipeline / INDEX, tokenizer=["transformers", "AutoTokenizer"])
    own = {"AutoTokenizer": ["own.Own", "own.Own"]}
    changed(pipeline / "tokenizer" / "tokenizer_config.json", tokenizer_class="Own", auto_map=own)
    assert "custom code" in burnish("sample", pipeline, "a cat", status=2).message


INDEX = "model_index.json"
TABLE = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())


@pytest.mark.parametrize(("file", "changes", "names"), TABLE["pipelines"].values(), ids=TABLE["pipelines"])
def test_a_pipeline_that_is_changed_is_refused(file, changes, names, pipeline, told):
    changed(pipeline / file, **changes)
    told(pipeline, names=names)


@pytest.mark.parametrize("content", ["[" * 100_000, "[1]", "\0", '{"a":' * 10_000, "{"])
def test_a_configuration_that_is_none_is_named(content, tmp_path, told):
    for name in ("config.json", INDEX):
        (tmp_path / name).write_text(content)
        assert name in told(tmp_path)


def test_what_is_no_model_is_told_with_the_way_to_one(tmp_path, told):
    for name in ("adapter_config.json", "pytorch_lora_weights.safetensors"):
        (tmp_path / name).touch()
        assert "model.lora.path" in told(tmp_path)
        (tmp_path / name).unlink()
    file = tmp_path / "sdxl.safetensors"
    file.touch()
    assert "from_single_file" in told(file)
    assert "config.json" in told(tmp_path)


@pytest.mark.parametrize(("changes", "said"), TABLE["modular"])
def test_a_modular_pipeline_that_cannot_be_trained_is_refused(changes, said, pipeline, told):
    (pipeline / INDEX).rename(pipeline / MODULAR)
    changed(pipeline / MODULAR, **{"_class_name": "StableDiffusion3ModularPipeline"} | changes)
    for name in changes.keys() & {"guider", "modular_config.json"}:
        (pipeline / name).mkdir()
    told(pipeline, names=[said])


def in_variant(folder, variant):
    """The same folder as it is written in a variant alone, in half precision."""
    file = next(folder.glob("*.safetensors"))
    weights = {name: value.half() for name, value in load_file(file).items()}
    file.unlink()
    save_file(weights, folder / f"{file.stem}.{variant}.safetensors", {"format": "pt"})
    return weights


def test_a_pipeline_in_half_precision_alone_is_loaded_and_trained_in_float32(pipeline, files):
    changed(pipeline / "tokenizer" / "tokenizer_config.json", x=json.loads("[" * 90 + "]" * 90))  # which is read, too
    for part in ("text_encoder", "vae"):
        in_variant(pipeline / part, "fp16")
    expected = in_variant(pipeline / "transformer", "fp16")
    (whole,) = (pipeline / "transformer").glob("*.safetensors")  # in a shard that is named as diffusers once did
    shard = whole.rename(whole.with_name("diffusion_pytorch_model-00001-of-00001.fp16.safetensors"))
    index = {"metadata": {}, "weight_map": dict.fromkeys(expected, shard.name)}
    shard.with_name("diffusion_pytorch_model.safetensors.index.fp16.json").write_text(json.dumps(index))
    run = run_of(files, "sd3", f"model.path={pipeline}", "optimizer.lr=1e-12", name="halves")
    run.train("steps=1", "checkpoint.every=1")
    burnish("export", run.output, "--output", pipeline.parent / "out", "--dtype", "float32")
    (file,) = (pipeline.parent / "out" / "transformer").glob("*.safetensors")
    for name, value in load_file(file).items():
        torch.testing.assert_close(value, expected[name].float(), rtol=0, atol=1e-7)


def few_bits(weights):
    return {
        name.replace("_proj.weight", "_proj.qweight"): value.to(torch.int32) if "_proj" in name else value
        for name, value in weights.items()
    }


def judging(weights):
    kept = {name: value for name, value in weights.items() if "lm_head" not in name}
    return kept | {"score.weight": torch.zeros(1, 8)}


@pytest.mark.parametrize(("change", "named"), [
    (few_bits, "quantized"), (judging, "head that judges"), (lambda own: dict(list(own.items())[:-1]), "download"),
    (lambda own: {f"base_model.model.{name}": value for name, value in own.items()}, "merge_and_unload"),
], ids=["few bits", "judging", "one lacks", "peft"])  # fmt: skip
def test_weights_that_are_not_those_of_the_model_are_told_with_the_way_to_it(change, named, language, told):
    file = next(language.glob("*.safetensors"))
    save_file(change(load_file(file)), file, {"format": "pt"})
    for family in ("auto", "transformers"):
        assert named in told(language, f"model.family={family}")
    file.unlink()
    for method in ("bitsandbytes", "gptq"):
        changed(language / "config.json", quantization_config={"quant_method": method})
        assert method in told(language), "by its configuration alone"


def test_an_ip_adapter_in_a_network_is_not_left_out_silently(tmp_path, told):
    folder = shutil.copytree(pipeline_of("sdxl"), tmp_path / "sdxl")
    file = next((folder / "unet").glob("*.safetensors"))
    name = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.processor.to_k_ip.0.weight"
    save_file(load_file(file) | {name: torch.zeros(2, 2)}, file, {"format": "pt"})
    told(folder, names=["to_k_ip", "unload_ip_adapter"])


@pytest.mark.parametrize(("name", "kind"), [("sd3", "SD3"), ("pixart-sigma", "PixArt")])
def test_tables_of_positions_are_those_of_the_files_or_computed(name, kind, monkeypatch):
    monkeypatch.setattr(weights, "TABLE", 0)
    folder, network = pipeline_of(name) / "transformer", getattr(diffusers, f"{kind}Transformer2DModel")
    ours, plain = weights.load_network(network, folder, dtype=torch.float32), network.from_pretrained(folder)
    torch.testing.assert_close(*(dict(one.named_buffers()) for one in (ours, plain)), rtol=0, atol=0)
