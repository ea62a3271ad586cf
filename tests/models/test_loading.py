"""Folders as users have them: in other precisions and variants, damaged, foreign, with code, or no model at all."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.utils.errors import UserError
from tests.support import talkers
from tests.support.generators import Generator
from tests.support.generators import folder_of as pipeline_of
from tests.support.language_samples import folder_of
from tests.support.model_runs import changed, refused
from tests.support.placing import Placed, converted, precision_of

CODE = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\nclass Own: pass\n"
OFTEN = {"z-image", "gemma3", "llama"}


@pytest.fixture
def told(files):
    """What a run with the model in a folder is refused with."""

    def refusal(folder, *options, names=()):
        draws = (folder / "model_index.json").exists() or folder.suffix == ".safetensors"
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
def test_code_beside_a_language_model_is_not_run(language, file):
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    changed(language / file, auto_map=own, tokenizer_class="Own")
    with contextlib.suppress(UserError):
        talkers.load(language)
    assert not (language / "ran").exists()


def test_code_beside_a_known_type_is_told_with_the_class_that_is_trained(language, caplog, told):
    changed(language / "config.json", auto_map={"AutoModelForCausalLM": "own.Own"})
    talkers.load(language)
    assert "LlamaForCausalLM" in caplog.text
    changed(language / "config.json", model_type="own")
    assert "code" in told(language)
    assert not (language / "ran").exists()


def test_modules_that_a_pipeline_names_are_not_imported(pipeline, monkeypatch, told):
    (pipeline.parent / "own.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(pipeline.parent))
    changed(pipeline / "model_index.json", tokenizer=["own", "Own"])
    told(pipeline, names=["tokenizer", "'own'"])
    assert not (pipeline.parent / "ran").exists()
    assert "own" not in sys.modules


INDEX = "model_index.json"
ENCODER = "text_encoder/config.json"
DEEP = json.loads("[" * 90 + "]" * 90)
PIPELINES = {  # file, its changes, and what the message names
    "a part elsewhere": (INDEX, {"../elsewhere": ["diffusers", "AutoencoderKL"]}, ["'../elsewhere'"]),
    "a part at the root": (INDEX, {"/etc": ["diffusers", "AutoencoderKL"]}, ["/etc"]),
    "a pipeline as a part": (INDEX, {"text_encoder": ["diffusers", "DiffusionPipeline"]}, ["text_encoder"]),
    "its own class as a part": (
        INDEX, {"text_encoder": ["stable_diffusion_3", "StableDiffusion3Pipeline"]}, ["text_encoder"],
    ),
    "a class of anything": (INDEX, {"text_encoder": ["transformers", "AutoModel"]}, ["text_encoder/config.json"]),
    "a function": (INDEX, {"text_encoder": ["transformers", "pipeline"]}, ["text_encoder", "version"]),
    "no part of a model": (INDEX, {"text_encoder": ["transformers", "Trainer"]}, ["text_encoder", "version"]),
    "a list of classes": (INDEX, {"text_encoder": ["transformers", ["CLIPTextModel"]]}, ["text_encoder"]),
    "hundreds of parts": (
        INDEX, {f"part_{number}": ["diffusers", "AutoencoderKL"] for number in range(100)}, ["64"],
    ),
    "an abstract pipeline": (INDEX, {"_class_name": "DiffusionPipeline"}, ["DiffusionPipeline"]),
    "a choice of pipelines": (INDEX, {"_class_name": "AutoPipelineForText2Image"}, ["AutoPipelineForText2Image"]),
    "a network": (INDEX, {"_class_name": "UNet2DConditionModel"}, ["UNet2DConditionModel"]),
    "an unknown class": (INDEX, {"_class_name": "SonaPipeline"}, ["SonaPipeline", "diffusers"]),
    "no length of prompts": (INDEX, {"_max_sequence_length": "long"}, ["_max_sequence_length 'long'"]),
    "no text encoder": (INDEX, {"text_encoder": [None, None]}, ["StableDiffusion3Pipeline"]),
    "numbers that no file holds": (ENCODER, {"hidden_size": 16384}, ["e+09"]),
    "layers that no file holds": (ENCODER, {"num_hidden_layers": 5000}, ["num_hidden_layers 5000"]),
    "blocks that no file holds": ("transformer/config.json", {"num_layers": 5000}, ["num_layers 5000"]),
    "an endless table": ("transformer/config.json", {"pos_embed_max_size": 9999}, ["pos_embed_max_size 9999", "1024"]),
    "a token that is none": (ENCODER, {"eos_token_id": 10**30}, ["'a cat'", "OverflowError"]),
    "few bits": (
        "transformer/config.json", {"quantization_config": {"quant_method": "bitsandbytes"}},
        ["transformer", "bitsandbytes"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("file", "changes", "names"), PIPELINES.values(), ids=PIPELINES)
def test_a_pipeline_that_is_changed_is_refused(file, changes, names, pipeline, told):
    changed(pipeline / file, **changes)
    family = "model.family=sd3" if "eos_token_id" in changes else "model.family=auto"
    told(pipeline, family, names=names)


def test_a_deep_configuration_of_a_tokenizer_is_read(pipeline):
    changed(pipeline / "tokenizer" / "tokenizer_config.json", x=DEEP)
    Generator(pipeline)


@pytest.mark.parametrize("content", ["[" * 100_000, "[1]", "7", "\0", '{"a":' * 10_000, "{"])
def test_a_configuration_that_is_none_is_named(content, tmp_path, told):
    for name in ("config.json", INDEX):
        (tmp_path / name).write_text(content)
        assert name in told(tmp_path)


def test_what_is_no_model_is_told_with_the_way_to_one(tmp_path, told, files):
    for name in ("adapter_config.json", "pytorch_lora_weights.safetensors"):
        (tmp_path / name).touch()
        assert "model.lora.path" in told(tmp_path)
        (tmp_path / name).unlink()
    file = tmp_path / "sdxl.safetensors"
    file.touch()
    assert "from_single_file" in told(file)
    assert "config.json" in told(tmp_path)
    (tmp_path / "modular_model_index.json").write_text('{"_class_name": "QwenImageModularPipeline"}')
    assert "modular" in refused(files, "sd3", f"model.path={tmp_path}")


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "awq", "compressed-tensors", "torchao"])
def test_weights_of_few_bits_are_refused_by_their_configuration(method, language, told):
    next(language.glob("*.safetensors")).unlink()
    changed(language / "config.json", quantization_config={"quant_method": method})
    assert method in told(language)


def in_variant(folder, variant):
    """The same folder as it is written in a variant alone, in half precision."""
    file = next(folder.glob("*.safetensors"))
    weights = {name: value.half() for name, value in load_file(file).items()}
    file.unlink()
    save_file(weights, folder / f"{file.stem}.{variant}.safetensors", {"format": "pt"})
    return weights


def test_a_pipeline_in_half_precision_alone_is_loaded(pipeline):
    weights = {part: in_variant(pipeline / part, "fp16") for part in ("transformer", "text_encoder", "vae")}
    # the transformer in a shard, which diffusers once named so
    (file,) = (pipeline / "transformer").glob("*.safetensors")
    shard = file.rename(file.with_name("diffusion_pytorch_model-00001-of-00001.fp16.safetensors"))
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights["transformer"], shard.name)}
    (shard.parent / "diffusion_pytorch_model.safetensors.index.fp16.json").write_text(json.dumps(index))
    parts = Generator(pipeline).model.pipeline
    for part, expected in weights.items():
        found = getattr(parts, part).state_dict()
        assert all(torch.equal(found[name], value.float()) for name, value in expected.items())


def few_bits(weights):
    return {
        name.replace("_proj.weight", "_proj.qweight"): value.to(torch.int32) if "_proj" in name else value
        for name, value in weights.items()
    }


def judging(weights):
    kept = {name: value for name, value in weights.items() if "lm_head" not in name}
    return kept | {"score.weight": torch.zeros(1, 8)}


@pytest.mark.parametrize(("change", "named"), [
    (few_bits, "quantized"), (judging, "head that judges"), (lambda own: dict(list(own.items())[:-1]), "fetch"),
    (lambda own: {f"base_model.model.{name}": value for name, value in own.items()}, "merge_and_unload"),
], ids=["few bits", "judging", "one lacks", "peft"])  # fmt: skip
def test_weights_that_are_not_those_of_the_model_are_told_with_the_way_to_it(change, named, language, told):
    file = next(language.glob("*.safetensors"))
    save_file(change(load_file(file)), file, {"format": "pt"})
    for family in ("auto", "transformers"):
        assert named in told(language, f"model.family={family}")


def test_an_ip_adapter_in_a_network_is_not_left_out_silently(tmp_path, told):
    folder = shutil.copytree(pipeline_of("sdxl"), tmp_path / "sdxl")
    file = next((folder / "unet").glob("*.safetensors"))
    name = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.processor.to_k_ip.0.weight"
    save_file(load_file(file) | {name: torch.zeros(2, 2)}, file, {"format": "pt"})
    told(folder, names=["to_k_ip", "unload_ip_adapter"])


def test_a_family_may_be_named(told):
    assert talkers.load(folder_of("llama"), family="text").name == "text"
    told(folder_of("llama"), "model.family=qwen2_vl", names=["model.family is qwen2_vl", "llama"])
    assert "lama" in told(folder_of("llama"), "model.family=lama")


# Networks whose sequences ranks share


@pytest.mark.parametrize(
    ("model", "options", "names"),
    [
        ("sd3", [], ["StableDiffusion3Pipeline"]),
        ("flux", ["sharding.context_parallel=3"], ["3", "attention heads"]),
        ("flux", ["rollout.max_sequence_length=15"], ["rollout.max_sequence_length", "15 tokens"]),
        ("flux", ["rollout.height=24", "rollout.width=40"], ["24 x 40", "15 tokens"]),
        ("wan2.2", ["rollout.height=16", "rollout.width=48", "rollout.num_frames=1"], ["16 x 48", "3 tok"]),
        ("flux", ["model.attention=flex"], ["model.attention is flex"]),
    ],
)
def test_sequences_that_ranks_can_not_share_are_refused(model, options, names, files):
    size = next((int(one[-1]) for one in options if "context_parallel" in one), 2)
    ranks = ["runtime=ray", f"pools.train.processes={size}", f"sharding.context_parallel={size}"]
    given = [*ranks, *(one for one in options if "context_parallel" not in one)]
    refused(files, model, "model.lora=null", *given, names=["sharding.context_parallel", *names])


# Weights that are mapped and converted when they are placed are those that the libraries would have converted


@pytest.mark.parametrize("name", Placed.names(OFTEN))
def test_networks_are_those_that_the_libraries_convert(name, tmp_path):
    for held, wanted in ((torch.float32, (torch.bfloat16, torch.float16)), (torch.bfloat16, (torch.float32,))):
        placed = Placed(name, tmp_path / str(held), held)
        for dtype in wanted:
            for expected, found in placed.both(dtype):
                assert found.keys() == expected.keys()
                for key, value in expected.items():
                    assert found[key].dtype == value.dtype, (held, dtype, key)
                    assert torch.equal(found[key].nan_to_num(), value.nan_to_num()), (held, dtype, key)


def test_a_network_shares_its_file_until_it_is_placed(tmp_path):
    from burnish.models.placing import as_placed, place, resting, twin

    (network,) = Placed("sd3", tmp_path / "sd3", torch.bfloat16).mapped(torch.float32, "transformer")
    other, before = twin(network), converted(network)
    for own, its in zip(network.parameters(), other.parameters(), strict=True):
        assert own is not its
        assert own.data_ptr() == its.data_ptr()
        assert resting(its) == torch.float32
    with as_placed(network):  # adapters are made for weights as they will be
        assert all(value.dtype == torch.float32 for value in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.named_parameters())
    place(other, "cpu")
    assert all(its.dtype == torch.float32 for its in other.parameters())
    assert all(own.dtype == torch.bfloat16 for own in network.parameters())


def test_a_folder_of_several_precisions_has_none(tmp_path):
    save_file({"a": torch.zeros(2), "n": torch.zeros(1, dtype=torch.int64)}, tmp_path / "model.safetensors")
    assert precision_of(tmp_path) == "F32"
    save_file({"a": torch.zeros(2), "b": torch.zeros(2).bfloat16()}, tmp_path / "model.safetensors")
    assert precision_of(tmp_path) is None
