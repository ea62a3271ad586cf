"""Frozen weights in fewer bits: what they take, what they compute, and what learns on them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from safetensors.torch import load_file

from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.language.policy_gradient import GRPO
from burnish.cli import main
from burnish.config import load
from burnish.config.machine import machine_complaints
from burnish.models.flow.loading import load_model
from burnish.models.lora import lora_layers, merging_rounds
from burnish.options.flow import ModelOptions, PipelineQuantizationOptions, RolloutOptions
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.weights import is_quantized
from tests.support.factory import tiny_pipeline
from tests.support.flow_bench import WINDOW
from tests.support.flow_bench import Bench as FlowBench
from tests.support.forwards import from_sampler, learned, repeated, sampled
from tests.support.language_samples import encode_all
from tests.support.runs import state_of
from tests.support.tiny_language import SEEING
from tests.support.tiny_recipes import flow_recipe, language_recipe, write_language_models, write_recipe, write_rewards
from tests.support.token_batches import PROMPTS
from tests.support.token_batches import Bench as LanguageBench

LIBRARIES = {"nf4": "bitsandbytes", "int8": "torchao", "fp8": "torchao", "fp8_cast": "diffusers"}
CHANGED = {"nf4": 0.2, "int8": 0.02, "fp8": 0.05, "fp8_cast": 0.05}  # relative, of what is sampled
ALL = [
    pytest.param(one, marks=pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed"))
    for one, library in LIBRARIES.items()
]


@pytest.fixture(scope="module")
def sd3(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("sd3"), vae=False, t5=True)


def generator(path, precision, **more):
    return FlowBench(
        path, FlowGRPO(window=WINDOW), length=16, height=8, width=8, device="cpu",
        options_of_model={"quantization": PipelineQuantizationOptions(weights=precision, **more)}, dtype="bfloat16",
    )  # fmt: skip


def talker(precision, family):
    return LanguageBench(
        GRPO(), lora=True, family=family, dtype="bfloat16", prompts=PROMPTS if family in SEEING else PROMPTS[:1],
        quantization=PipelineQuantizationOptions(weights=precision),
    )  # fmt: skip


def unmoved(bench):
    """Names of trained weights that an update leaves as they are."""
    before = {name: value.clone() for name, value in bench.roles.parameters().items()}
    bench.train()
    return [name for name, value in bench.roles.parameters().items() if torch.equal(value, before[name])]


@pytest.mark.parametrize("precision", ALL)
def test_a_generator_learns_on_them_and_samples_with_what_it_learns(precision, sd3):
    plain = FlowBench(sd3, FlowGRPO(window=WINDOW), length=16, height=8, width=8, device="cpu", dtype="bfloat16")
    bench = generator(sd3, precision)
    bases = [layer.get_base_layer() for layer in lora_layers(bench.roles.model.network)]
    assert all(is_quantized(base.weight) for base in bases)
    assert merging_rounds(bench.roles.model.network), "nothing is merged into them"
    for one in (plain, bench):
        learned(one.roles.parameters().values())

    steps = bench.collect().trace.steps()
    assert torch.equal(repeated(bench, steps), steps.logprob), "the trainer is not the policy that sampled"
    near = plain.collect().trace.steps()
    assert 0 < float((steps.next_state - near.next_state).norm() / near.next_state.norm()) < CHANGED[precision]
    assert unmoved(bench) == unmoved(plain), "an adapter got no gradient"


@pytest.mark.parametrize("precision", ALL)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama"])
def test_a_language_model_learns_on_them_and_samples_with_what_it_learns(precision, family):
    bench = talker(precision, family)
    model, network = bench.roles.model, bench.roles.model.network
    assert all(is_quantized(layer.get_base_layer().weight) for layer in lora_layers(network))
    assert not is_quantized(network.get_output_embeddings().weight)
    learned(network.parameters())
    assert max(from_sampler(model, sampled(model, encode_all(model, family)))) < 0.02
    assert not unmoved(bench), "an adapter got no gradient"


@pytest.mark.parametrize("precision", ALL)
def test_text_encoders_too(precision, sd3):
    def encode(**more):
        model = load_model(
            ModelOptions(path=str(sd3), device="cpu", **more), RolloutOptions(batch_size=96, max_sequence_length=16)
        )
        return model, model.encode(["a"])

    _, plain = encode()
    model, found = encode(quantization=PipelineQuantizationOptions(text_encoders=precision))
    assert 0 < float((found.tokens - plain.tokens).norm() / plain.tokens.norm()) < 2 * CHANGED[precision]
    encoder = model.pipeline.text_encoder_3.encoder.block[0].layer
    assert is_quantized(encoder[0].SelfAttention.q.weight)
    assert not is_quantized(encoder[-1].DenseReluDense.wo.weight), "its forward pass reads the type of this one"


def test_layers_can_stay_as_they_are(sd3):
    bench = generator(sd3, "fp8_cast", exclude=["attn.to_q", "transformer_blocks.1.*"])
    layers = {name: layer for name, layer in bench.roles.model.network.named_modules() if hasattr(layer, "lora_A")}
    plain = {name for name, layer in layers.items() if not is_quantized(layer.get_base_layer().weight)}
    assert plain == {name for name in layers if name.endswith("attn.to_q") or ".1.attn" in f".{name}"}
    with pytest.raises(UserError, match=r"model.quantization.exclude has 'nose', which matches none .* called like"):
        generator(sd3, "fp8_cast", exclude=["nose"])
    with pytest.raises(UserError, match=r"model.quantization.exclude leaves no layer"):
        generator(sd3, "fp8_cast", exclude=["*"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    write_rewards(place)
    write_language_models(place, ["llama"])
    tiny_pipeline(place / "sd3", vae=False)
    (place / "prompts.txt").write_text("a\nb\n")
    write_recipe(place / "flow.yaml", flow_recipe(place, "sd3"))
    write_recipe(place / "language.yaml", language_recipe(place, "llama"))
    return place


LACKS = {"vae": None, "text_encoder_3": None, "tokenizer_3": None}
FEWER = {"model.quantization.weights": "fp8_cast", "model.dtype": "bfloat16", "model.device": "cpu"}


def given(task, *options):
    """Arguments for a recipe; later ones replace earlier ones."""
    every = FEWER | {"algorithm": "flow_grpo" if task == "flow" else "grpo"}
    every |= dict(one.split("=", 1) for one in options)
    if "model.quantization" in every:
        del every["model.quantization.weights"]
    return [f"{name}={value}" for name, value in every.items()]


@pytest.mark.parametrize("task", ["flow", "language"])
def test_a_run_keeps_and_exports_adapters_alone(task, folder, capsys):
    run = folder / f"run-{task}"
    assert main(["train", str(folder / f"{task}.yaml"), *given(task, f"output_dir={run}")]) == 0
    trained = [name for name in state_of(run) if ".roles.policy." in name]
    assert trained
    assert all(".lora_" in name for name in trained)
    assert main(["export", str(run), "--output", str(folder / f"lora-{task}"), "--format", "lora"]) == 0
    (file,) = (folder / f"lora-{task}").glob("*.safetensors")
    assert all(".lora_" in name for name in load_file(file))
    assert main(["export", str(run), "--output", str(folder / f"merged-{task}"), "--dtype", "float32"]) == 0
    if task == "flow":
        pipe = StableDiffusion3Pipeline.from_pretrained(folder / "sd3" / "pipeline", **LACKS)
        pipe.load_lora_weights(folder / "lora-flow")
        merged = StableDiffusion3Pipeline.from_pretrained(folder / "merged-flow", **LACKS).transformer
        pipe.fuse_lora()
        name = "transformer_blocks.0.attn.to_q"
        ours = merged.get_submodule(name).weight
        # into the weights on disk, rounded to bfloat16, not into those in fp8
        torch.testing.assert_close(ours, pipe.transformer.get_submodule(name).base_layer.weight, rtol=4e-3, atol=1e-3)
    else:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        plain = AutoModelForCausalLM.from_pretrained(folder / "llama")
        PeftModel.from_pretrained(plain, folder / "lora-language")


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("flow", ["model.lora=null"], r"weights is fp8_cast, but model.lora is null, and all weights are trained"),
        ("flow", ["model.lora.dora=true"], r"weights is fp8_cast and model.lora.dora is true"),
        ("flow", ["rollout.merge_lora=true"], r"rollout.merge_lora is true, but nothing can be added"),
        ("flow", ["model.quantization.weights=null"], r"names no weights to quantise"),
        ("flow", ["model.quantization={text_encoders: fp8_cast, exclude: [a]}"], r"exclude is never read when"),
        ("flow", ["model.offload=true"], r"model.offload is true, but model.device is cpu"),
        ("flow", ["optimizer.offload=true"], r"optimizer.offload is true, but model.device is cpu"),
        (
            "flow",
            ["model.offload=true", "model.device=cuda", "algorithm=draft"],
            r"draft follows gradients of rewards through the VAE",
        ),
        ("language", ["runtime=ray", "pools.train.processes=2", "model.compile=true"], r"model.compile is true, but"),
        ("flow", ["model.device=cuda", "sharding.offload=true"], r"quantised weights can't be copied back and forth"),
        (
            "language",
            ["runtime=ray", "pools.train.processes=2", "sharding.gather=compute"],
            r"sharding.gather is given, .* each of the 2 processes of pools.train holds all quantised weights",
        ),
        ("language", ["runtime=ray", "pools.rollout.processes=1"], r"a rollout pool is sent plain weights"),
        ("language", ["rollout={engine: vllm, vllm: {python: /x}}"], r"vLLM is sent weights with the adapters merged"),
    ],
)
def test_what_they_cannot_do_is_refused_before_weights_are_loaded(task, options, says, folder):
    with pytest.raises(ConfigError, match=says):
        load(str(folder / f"{task}.yaml"), given(task, *options))


@pytest.mark.parametrize("library", ["bitsandbytes", "torchao"])
def test_a_missing_library_is_named_with_what_installs_it(library, folder, monkeypatch):
    monkeypatch.setattr("burnish.utils.installed.find_spec", lambda name: None)
    precision = next(one for one, needed in LIBRARIES.items() if needed == library)
    config = load(str(folder / "flow.yaml"), given("flow", f"model.quantization.weights={precision}"))
    (said,) = (one for one in machine_complaints(config) if "quantization.weights" in one)
    assert f"{precision} needs {library}, " in said
    assert "burnish[quantization]" in said
