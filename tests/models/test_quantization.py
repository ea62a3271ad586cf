"""Frozen weights in fewer bits: what they take, what they compute, and what learns on them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from burnish.options.flow import PipelineQuantizationOptions
from tests.support.generators import Generator
from tests.support.model_runs import refused, run_of
from tests.support.placing import in_few_bits
from tests.support.tiny_run import burnish

LIBRARIES = {"nf4": "bitsandbytes", "int8": "torchao", "fp8": "torchao", "fp8_cast": "diffusers"}
CHANGED = {"nf4": 0.2, "int8": 0.02, "fp8": 0.05, "fp8_cast": 0.05}  # relative, of velocities
ALL = [
    pytest.param(one, marks=pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed"))
    for one, library in LIBRARIES.items()
]
LOW = "model.dtype=bfloat16"
FEWER = "model.quantization.weights"


def generator(precision=None, **more):
    fewer = PipelineQuantizationOptions(**{"weights": precision} | more) if precision or more else None
    return Generator("sd3", lora={}, dtype="bfloat16", quantization=fewer)


@pytest.mark.parametrize("precision", ALL)
def test_a_generator_computes_nearly_the_same(precision):
    plain, ours = generator(), generator(precision)
    layers = [module for module in ours.network.modules() if hasattr(module, "lora_A")]
    assert all(in_few_bits(layer.get_base_layer()) for layer in layers)
    asked = plain.asked("a cat")
    x = plain.start(asked)
    with torch.no_grad():
        near, found = (one.velocity(asked, x, torch.tensor([0.5])) for one in (plain, ours))
    assert 0 < float((found - near).norm() / near.norm()) < 2 * CHANGED[precision]
    reading = generator(text_encoders=precision)
    assert in_few_bits(reading.model.pipeline.text_encoder.text_model.encoder.layers[0].mlp.fc1)
    tokens = [one.model.encode(["a"]).tokens.float() for one in (plain, reading)]
    assert 0 < float((tokens[1] - tokens[0]).norm() / tokens[0].norm()) < 2 * CHANGED[precision]


@pytest.mark.parametrize("precision", ALL)
@pytest.mark.parametrize("model", ["sd3", "llama"])
def test_a_run_learns_on_them_and_exports_adapters_alone(model, precision, files):
    run = run_of(files, model, f"{FEWER}={precision}", LOW, name=f"{model}-{precision}")
    run.train("steps=2", "checkpoint.every=2")
    bound = 1e-5 if model == "sd3" else 0.02
    assert all(line.get("rollout_corr/logprob_abs_diff", 0) < bound for line in run.metrics[:2])
    trained = {name: value for name, value in run.tensors.items() if ".optimizer." not in name}
    assert trained
    assert all(".lora_" in name for name in trained)
    still = [name for name, value in trained.items() if not value.any() and "add_" not in name]
    assert not still, "an adapter got no gradient"  # the text that leaves the last block is not read
    adapter, merged = files / f"{model}-adapter-{precision}", files / f"{model}-merged-{precision}"
    burnish("export", run.output, "--output", adapter, "--format", "lora")
    (file,) = adapter.glob("*.safetensors")
    assert all(".lora_" in name for name in load_file(file))
    burnish("export", run.output, "--output", merged, "--dtype", "float32")
    if model == "llama":
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(files / model), adapter)
        return
    pipe = StableDiffusion3Pipeline.from_pretrained(files / model)
    pipe.load_lora_weights(adapter)
    pipe.fuse_lora()
    name = "transformer_blocks.0.attn.to_q"
    found = StableDiffusion3Pipeline.from_pretrained(merged).transformer.get_submodule(name).weight
    # into the weights on disk, rounded to bfloat16, not into those in fp8
    torch.testing.assert_close(found, pipe.transformer.get_submodule(name).base_layer.weight, rtol=4e-3, atol=1e-3)


def test_layers_can_stay_as_they_are(files):
    ours = generator("fp8_cast", exclude=["attn.to_q", "transformer_blocks.1.*"])
    layers = {name: layer for name, layer in ours.network.named_modules() if hasattr(layer, "lora_A")}
    plain = {name for name, layer in layers.items() if not in_few_bits(layer.get_base_layer())}
    assert plain == {name for name in layers if name.endswith("attn.to_q") or "blocks.1." in name}
    for excluded in ("nose", "*"):
        given = f"model.quantization={{weights: fp8_cast, exclude: ['{excluded}']}}"
        told = refused(files, "sd3", given, LOW)
        assert "model.quantization.exclude" in told
        assert excluded == "*" or "'nose'" in told


RAY = ["runtime=ray", "pools.train.processes=2"]
CUDA = "model.device=cuda"


@pytest.mark.parametrize(
    ("model", "options", "names"),
    [
        ("sd3", ["model.lora=null"], ["weights is fp8_cast", "model.lora is null"]),
        ("sd3", ["model.lora={rank: 2, dora: true}"], ["weights is fp8_cast", "model.lora.dora is true"]),
        ("sd3", ["rollout.merge_lora=true"], ["rollout.merge_lora is true"]),
        ("sd3", [f"{FEWER}=null"], ["model.quantization"]),
        ("sd3", ["model.quantization={text_encoders: fp8_cast, exclude: [a]}"], ["exclude"]),
        ("sd3", ["model.offload=true"], ["model.offload is true", "cpu"]),
        ("sd3", ["optimizer.offload=true"], ["optimizer.offload is true", "cpu"]),
        ("sd3", ["model.offload=true", CUDA, "algorithm=draft"], ["draft"]),
        ("llama", [*RAY, "model.compile=true"], ["model.compile is true"]),
        ("sd3", [CUDA, "sharding.offload=true"], ["quantised"]),
        ("llama", [*RAY, "sharding.gather=compute"], ["sharding.gather", "2 processes of pools.train"]),
        ("llama", ["runtime=ray", "pools.rollout.processes=1"], ["pool"]),
        ("llama", ["rollout={engine: vllm, vllm: {python: /x}, n: 4, max_new_tokens: 5}"], ["vLLM"]),
    ],
)
def test_what_they_cannot_do_is_refused_before_weights_are_loaded(model, options, names, files):
    fewer = [] if any("quantization" in one for one in options) else [f"{FEWER}=fp8_cast"]
    refused(files, model, *fewer, LOW, *options, names=names)


@pytest.mark.parametrize("library", ["bitsandbytes", "torchao"])
def test_a_missing_library_is_named_with_what_installs_it(library, files, monkeypatch):
    monkeypatch.setattr("burnish.utils.installed.find_spec", lambda name: None)
    precision = next(one for one, needed in LIBRARIES.items() if needed == library)
    refused(files, "sd3", f"{FEWER}={precision}", LOW, names=(precision, library, "burnish[quantization]"))
