"""Folders and files that are no model as they are: what they are is said, with the way to one."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.config import load
from burnish.models.flow.loading import load_model, read_index
from burnish.models.language.loading import check_files, load_language_model, read_config
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.flow import ModelOptions
from burnish.options.language import LanguageModelOptions
from burnish.utils.errors import UserError
from tests.support.language_samples import folder_of


@pytest.mark.parametrize("name", ["adapter_config.json", "pytorch_lora_weights.safetensors"])
def test_an_adapter_is_told_where_it_belongs(tmp_path, name):
    (tmp_path / name).touch()
    for read, options in ((read_config, LanguageModelOptions), (read_index, ModelOptions)):
        with pytest.raises(UserError, match=r"model\.lora\.path"):
            read(options(path=str(tmp_path)))


def test_a_single_file_is_told_how_it_becomes_a_folder(tmp_path):
    file = tmp_path / "sdxl.safetensors"
    file.touch()
    with pytest.raises(UserError, match=r"from_single_file.*save_pretrained"):
        read_index(ModelOptions(path=str(file)))
    with pytest.raises(UserError, match=r"config\.json"):
        read_config(LanguageModelOptions(path=str(file)))


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "awq", "compressed-tensors", "torchao"])
def test_weights_of_few_bits_are_refused_by_their_configuration(tmp_path, method):
    config = json.loads((folder_of("llama") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": method}}))
    with pytest.raises(UserError, match=f"{method}.*model that it was made from"):
        check_files(LanguageModelOptions(path=str(tmp_path)))


def test_a_network_of_a_pipeline_in_few_bits_is_refused_before_it_is_loaded(tmp_path):
    write(describe("sd3"), tmp_path, seed=0)
    config = tmp_path / "transformer" / "config.json"
    stated = {"quantization_config": {"quant_method": "bitsandbytes"}}
    config.write_text(json.dumps(json.loads(config.read_text()) | stated))
    with pytest.raises(UserError, match=r"transformer holds a network, whose weights are quantized \(bitsandbytes"):
        load("quickstart", [f"model.path={tmp_path}"]).check_model(tmp_path)


def in_variant(folder, variant):
    """The same folder as it is written in a variant alone, in half precision."""
    file = next(folder.glob("*.safetensors"))
    weights = {name: value.half() for name, value in load_file(file).items()}
    file.unlink()
    save_file(weights, folder / f"{file.stem}.{variant}.safetensors", {"format": "pt"})
    return weights


def test_a_pipeline_in_half_precision_alone_is_loaded(tmp_path):
    write(describe("sd3"), tmp_path, seed=0)
    weights = {part: in_variant(tmp_path / part, "fp16") for part in ("transformer", "text_encoder", "vae")}
    # the transformer in a shard, which diffusers once named so
    (file,) = (tmp_path / "transformer").glob("*.safetensors")
    shard = file.rename(file.with_name("diffusion_pytorch_model-00001-of-00001.fp16.safetensors"))
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights["transformer"], shard.name)}
    (shard.parent / "diffusion_pytorch_model.safetensors.index.fp16.json").write_text(json.dumps(index))
    options = [f"model.path={tmp_path}", "rollout.height=null", "rollout.width=null"]
    load("quickstart", options).check_model(tmp_path)
    model = load_model(ModelOptions(path=str(tmp_path), lora=None))
    for part, expected in weights.items():
        found = getattr(model.pipeline, part).state_dict()
        assert all(torch.equal(found[name], value.float()) for name, value in expected.items())


def language_folder(folder, tmp_path, change):
    """A copy whose weights are changed: their dictionary."""
    target = shutil.copytree(folder, tmp_path / "model")
    file = next(target.glob("*.safetensors"))
    save_file(change(load_file(file)), file, {"format": "pt"})
    return target


def few_bits(weights):
    return {
        name.replace("_proj.weight", "_proj.qweight"): value.to(torch.int32) if "_proj" in name else value
        for name, value in weights.items()
    }


def judging(weights):
    return {name: value for name, value in weights.items() if "lm_head" not in name} | {
        "score.weight": torch.zeros(1, 8)
    }


@pytest.mark.parametrize(("change", "said"), [
    (few_bits, "its weights are quantized: give the model that it was made from"),
    (judging, "a head that judges texts"),
    (lambda weights: {f"base_model.model.{name}": value for name, value in weights.items()}, "merge_and_unload"),
    (lambda weights: dict(list(weights.items())[:-1]), "fetch the model again"),
], ids=["few bits", "judging", "peft", "one lacks"])  # fmt: skip
def test_weights_that_are_not_those_of_the_model_are_told_with_the_way_to_it(change, said, tmp_path):
    folder = language_folder(folder_of("llama"), tmp_path, change)
    for family in ("auto", "transformers"):
        with pytest.raises(UserError, match=said):
            load_language_model(LanguageModelOptions(path=str(folder), family=family, device="cpu"))


def test_an_ip_adapter_in_a_network_is_not_left_out_silently(tmp_path):
    write(describe("sdxl"), tmp_path, seed=0)
    file = next((tmp_path / "unet").glob("*.safetensors"))
    name = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.processor.to_k_ip.0.weight"
    save_file(load_file(file) | {name: torch.zeros(2, 2)}, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"to_k_ip.*IP-adapter.*unload_ip_adapter"):
        load_model(ModelOptions(path=str(tmp_path)))
