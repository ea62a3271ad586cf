"""Frozen weights in fewer bits: what learns on them, and what is exported."""

from importlib.util import find_spec

import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from burnish import load
from tests.support.model_runs import refused, run_of
from tests.support.optional import seldom
from tests.support.tiny_run import burnish

LIBRARIES = {"nf4": "bitsandbytes", "int8": "torchao", "fp8": "torchao", "fp8_cast": "diffusers"}
ALL = [
    pytest.param(one, marks=pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed"))
    for one, library in LIBRARIES.items()
]
LOW = "model.dtype=bfloat16"
FEWER = "model.quantization.weights"


@pytest.mark.parametrize("precision", ALL)
@pytest.mark.parametrize("model", ["llama", *seldom("sd3")])
def test_a_run_learns_on_them_and_exports_adapters_alone(model, precision, files):
    from burnish.tasks import assemble

    run = run_of(files, model, f"{FEWER}={precision}", LOW, name=f"{model}-{precision}")
    if precision == "fp8_cast":
        kept = assemble(load(str(run.recipe), *run.options)).roles.model.network.parameters()
        assert torch.float8_e4m3fn in {one.dtype for one in kept}
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


@pytest.mark.parametrize("precision", ["nf4", "int8"])
def test_a_missing_library_is_named_with_what_installs_it(precision, files):
    if find_spec(LIBRARIES[precision]) is not None:
        pytest.skip("it is installed")
    refused(files, "sd3", f"{FEWER}={precision}", LOW, names=(precision, LIBRARIES[precision], "burnish[quantization]"))
