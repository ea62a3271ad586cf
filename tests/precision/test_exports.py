"""What is exported of adapters on weights of bfloat16 is what was learned, or says how much of it is lost."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from diffusers import SD3Transformer2DModel
from peft import PeftModel
from transformers import AutoModelForCausalLM

from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.language.policy_gradient import GRPO
from burnish.commands import export as command
from burnish.models.lora import lora_layers, merged_state
from burnish.options.flow import LoraOptions
from burnish.tasks.flow.assembly import FlowAssembly
from burnish.tasks.language.assembly import LanguageAssembly
from burnish.utils.errors import UserError
from tests.support.flow_bench import WINDOW
from tests.support.flow_bench import Bench as FlowBench
from tests.support.forwards import learned
from tests.support.language_samples import folder_of
from tests.support.token_batches import Bench as LanguageBench


def stepped(half, sd3):
    """A bench whose adapters have taken a step."""
    if half == "flow":
        bench = FlowBench(sd3, FlowGRPO(window=WINDOW), dtype="bfloat16", device="cpu")
    else:
        bench = LanguageBench(GRPO(), lora=True, dtype="bfloat16", family="qwen2")
    learned(bench.roles.parameters().values(), 1e-3)
    return bench


def exact(network):
    """The weights that carry adapters, in float32, with the adapters in them, by name."""
    return {
        f"{name}.weight": layer.get_base_layer().weight.float() + layer.get_delta_weight("policy")
        for name, layer in network.named_modules()
        if layer in set(lora_layers(network))
    }


@pytest.mark.parametrize("half", ["flow", "language"])
def test_merged_weights_are_rounded_once_and_the_loss_is_told(sd3, half):
    network = stepped(half, sd3).roles.model.network
    expected = exact(network)
    whole, nothing = merged_state(network, "policy", dtype=torch.float32)
    rounded, lost = merged_state(network, "policy")
    assert nothing == 0
    assert 0.2 < lost < 1, "a step of 1e-3 is about the size of the rounding"
    assert expected
    assert whole.keys() == rounded.keys()
    assert not any("lora" in name or "base_layer" in name for name in whole)
    for name, value in expected.items():
        assert torch.equal(whole[name], value)
        assert torch.equal(rounded[name], value.bfloat16())
    assert {value.dtype for value in whole.values()} == {torch.float32}
    assert {value.dtype for value in rounded.values()} == {torch.bfloat16}


@pytest.fixture
def exported(sd3, monkeypatch):
    """Exports a bench as if it were a run."""

    def run(half, target, **how):
        bench = stepped(half, sd3)
        model = SimpleNamespace(
            lora=LoraOptions(rank=4), path=str(folder_of("qwen2")), revision=None, tokenizer=None, chat_template=None
        )
        config = SimpleNamespace(
            model=model, model_index="config.json", algorithm=SimpleNamespace(name="flow_grpo"), rewards={}
        )
        kind = LanguageAssembly if half == "language" else FlowAssembly
        own = {"roles": bench.roles, "config": config, "needs": bench.algorithm.needs(), "trained_weights": nullcontext}
        assembly = type("Run", (kind,), own)
        monkeypatch.setattr(command, "open_run", lambda *_, **__: (assembly.__new__(assembly), 3))
        assert command.export("run", output=str(target), **how) == 0
        return bench.roles.model.network

    return run


@pytest.mark.parametrize("dtype", ["float32", None])
def test_a_generator_loads_with_what_was_learned(exported, tmp_path, capsys, dtype):
    expected = exact(exported("flow", tmp_path, what="merged", dtype=dtype))
    told = " ".join(capsys.readouterr().out.split())
    assert ("Use --dtype float32" in told) == (dtype is None)
    resting = torch.float32 if dtype else torch.bfloat16
    network = SD3Transformer2DModel.from_pretrained(tmp_path, subfolder="transformer", torch_dtype=resting)
    found = network.state_dict()
    for name, value in expected.items():
        assert torch.equal(found[name], value.to(resting))


@pytest.mark.parametrize("dtype", ["float32", None])
def test_a_language_model_loads_with_what_was_learned(exported, tmp_path, dtype):
    expected = exact(exported("language", tmp_path, what="merged", dtype=dtype))
    resting = torch.float32 if dtype else torch.bfloat16
    found = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").state_dict()
    for name, value in expected.items():
        assert torch.equal(found[name], value.to(resting))


def test_an_adapter_is_written_as_it_was_learned(exported, tmp_path):
    trained = exported("language", tmp_path, what="lora")
    plain = AutoModelForCausalLM.from_pretrained(folder_of("qwen2"), dtype=torch.bfloat16)
    loaded = PeftModel.from_pretrained(plain, tmp_path).state_dict()
    for name, value in trained.state_dict().items():
        if ".lora_" in name:
            other = loaded["base_model.model." + name.replace(".policy.", ".default.")]
            assert torch.equal(other.float(), value.float())


def test_an_adapter_has_no_other_precision(tmp_path):
    with pytest.raises(UserError, match="leave it out"):
        command.export("run", output=str(tmp_path / "new"), what="lora", dtype="bfloat16")
