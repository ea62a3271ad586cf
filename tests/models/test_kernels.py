"""How networks run changes no number beyond rounding: checkpointing by block, attention backends, compiled blocks."""

from __future__ import annotations

import pytest
import torch

from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.language.policy_gradient import GRPO
from burnish.config import load
from burnish.models.flow.loading import load_model
from burnish.models.language.kernels import TOLERATED
from burnish.models.language.loading import check_files, load_language_model
from burnish.options.flow import ModelOptions
from burnish.options.language import LanguageModelOptions
from burnish.utils.errors import ConfigError, UserError
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.flow_bench import WINDOW
from tests.support.flow_bench import Bench as FlowBench
from tests.support.token_batches import PROMPTS, folder_of
from tests.support.token_batches import Bench as LanguageBench


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "sd3": tiny_pipeline(folder / "sd3", vae=False, layers=3),
        "flux": tiny_flux(folder / "flux", vae=False),
    }


def flow_gradient(path, **more):
    """Of the adapters, and the blocks whose activations were computed again for it."""
    bench = FlowBench(path, FlowGRPO(window=WINDOW), length=16, height=8, width=8, device="cpu", options_of_model=more)
    scored, runs = bench.collect(), []
    network = bench.roles.model.network
    names = {module: name for name, module in network.named_modules()}
    for block in [*network.transformer_blocks, *getattr(network, "single_transformer_blocks", ())]:
        block.register_forward_pre_hook(lambda module, args: runs.append(names[module]))
    bench.train(scored=scored)
    return bench.weights(), {name: runs.count(name) for name in dict.fromkeys(runs)}


@pytest.mark.parametrize("family", ["sd3", "flux"])
def test_the_first_blocks_of_a_generator_alone_are_computed_again(family, pipelines):
    plain, once = flow_gradient(pipelines[family])
    every, twice = flow_gradient(pipelines[family], gradient_checkpointing=True)
    first, some = flow_gradient(pipelines[family], gradient_checkpointing=1)
    assert twice == {name: 2 * count for name, count in once.items()}
    assert some == once | {"transformer_blocks.0": 2 * once["transformer_blocks.0"]}
    torch.testing.assert_close(every, plain, rtol=0, atol=0)
    torch.testing.assert_close(first, plain, rtol=0, atol=0)


def test_the_first_layers_of_a_language_model_alone_are_computed_again():
    def run(checkpointing):
        bench = LanguageBench(GRPO(), lora=True, family="llama", prompts=PROMPTS[:1], checkpointing=checkpointing)
        batch, runs = bench.learned(bench.collect())[0], []
        for number, layer in enumerate(bench.roles.model.network.model.layers):
            layer.mlp.register_forward_pre_hook(lambda module, args, number=number: runs.append(number))
        return bench.gradient(batch), [runs.count(number) for number in range(2)]

    (plain, once), (first, some), (every, twice) = run(False), run(1), run(True)
    assert some == [2 * once[0], once[1]]
    assert twice == [2 * count for count in once]
    torch.testing.assert_close(first, plain, rtol=0, atol=0)
    torch.testing.assert_close(every, plain, rtol=0, atol=0)


def test_more_blocks_than_there_are_is_refused(pipelines):
    with pytest.raises(UserError, match=r"gradient_checkpointing is 9, but the network has 3 blocks"):
        load_model(ModelOptions(path=str(pipelines["sd3"]), device="cpu", gradient_checkpointing=9))
    with pytest.raises(UserError, match=r"gradient_checkpointing is 9, but the network has 3 blocks"):
        load_language_model(LanguageModelOptions(path=str(folder_of("llama")), device="cpu", gradient_checkpointing=9))


def test_an_attention_backend_is_compared_and_taken(pipelines, caplog):
    caplog.set_level("INFO")
    plain, _ = flow_gradient(pipelines["flux"])
    math, _ = flow_gradient(pipelines["flux"], attention="_native_math")
    assert "model.attention=_native_math agrees with native to" in caplog.text
    torch.testing.assert_close(math, plain, rtol=1e-3, atol=1e-4)
    model = load_model(ModelOptions(path=str(pipelines["flux"]), device="cpu", attention="_native_math"))
    chosen = {module.processor._attention_backend for module in model.network.modules() if hasattr(module, "processor")}
    assert {one.value for one in chosen} == {"_native_math"}


def test_a_backend_that_computes_something_else_is_refused(pipelines, monkeypatch):
    from diffusers.models import attention_dispatch

    real = attention_dispatch.dispatch_attention_fn

    def sloppy(*given, backend, **more):
        out = real(*given, backend=backend, **more)
        return out * 1.01 if backend.value == "_native_math" else out

    monkeypatch.setattr(attention_dispatch, "dispatch_attention_fn", sloppy)
    with pytest.raises(UserError, match=r"_native_math, but outputs or gradients differ by 0.01"):
        load_model(ModelOptions(path=str(pipelines["flux"]), device="cpu", attention="_native_math"))


def test_what_has_no_backends_is_refused(pipelines):
    with pytest.raises(UserError, match="the attention of SD3Transformer2DModel calls PyTorch's directly"):
        load_model(ModelOptions(path=str(pipelines["sd3"]), device="cpu", attention="_native_math"))
    with pytest.raises(UserError, match=r"model.attention is flex, which can't train here"):
        load_model(ModelOptions(path=str(pipelines["flux"]), device="cpu", attention="flex"))
    with pytest.raises(UserError, match=r"model.attention is eager, but model.family text runs Burnish's own"):
        check_files(LanguageModelOptions(path=str(folder_of("llama")), attention="eager"))
    given = ["algorithm=flow_grpo", f"model.path={pipelines['flux']}", "model.attention=flash"]
    with pytest.raises(ConfigError, match=r"model.attention=flash needs flash_attn, which is not installed"):
        load("quickstart", given)
    with pytest.raises(ConfigError, match=r"model.attention=sage has no backward pass"):
        load("quickstart", ["model.attention=sage"])


def test_an_implementation_of_transformers_is_compared_and_taken(caplog, monkeypatch):
    caplog.set_level("INFO")
    options = {"path": str(folder_of("llama")), "device": "cpu", "family": "transformers"}
    model = load_language_model(LanguageModelOptions(**options, attention="eager"))
    assert "model.attention=eager agrees with sdpa to" in caplog.text
    assert model.network.config._attn_implementation == "eager"
    monkeypatch.setitem(TOLERATED, "float32", 0.0)
    with pytest.raises(UserError, match=r"model.attention is eager, but outputs or gradients differ by .* of sdpa"):
        load_language_model(LanguageModelOptions(**options, attention="eager"))


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_the_precision_of_float32_products_is_pytorchs(precision):
    load_language_model(LanguageModelOptions(
        path=str(folder_of("llama")), device="cpu", float32_matmul_precision=precision,
    ))  # fmt: skip
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("family", ["flux"])
def test_compiled_blocks_of_a_generator_compute_the_same(family, pipelines):
    plain, _ = flow_gradient(pipelines[family])
    compiled, _ = flow_gradient(pipelines[family], compile=True)
    torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.thorough
def test_compiled_layers_of_a_language_model_compute_the_same():
    def run(**more):
        bench = LanguageBench(GRPO(), lora=True, family="llama", prompts=PROMPTS[:1], **more)
        return bench.gradient(bench.learned(bench.collect())[0])

    plain = run()
    torch.testing.assert_close(run(compile=True), plain, rtol=1e-3, atol=1e-6)
