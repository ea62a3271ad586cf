"""Adapters: where they go, what they compute beside and in the weights, and going on from those on disk."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4GroupedLinear
from transformers.models.llama4.modeling_llama4 import Llama4Router
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter
from transformers.pytorch_utils import Conv1D

from burnish.language.decoding import decode
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.models import lora
from burnish.options.flow import LoraOptions
from burnish.utils import random
from burnish.utils.errors import UserError
from tests.support.generators import Generator
from tests.support.language_samples import encode_all, folder_of, responses
from tests.support.model_runs import refused, run_of
from tests.support.talkers import adapt, load, moved, network_of, options
from tests.support.tiny_language import SEEING
from tests.support.tiny_run import burnish

PLAIN = {"targets": ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]}
FULL = {
    "rslora": True, "dora": True, "exclude": ["*.layers.0.*", "v_proj"],
    "modules_to_save": ["lm_head", "language_model.norm"],
}  # fmt: skip


def adapted(family, **given) -> tuple[set[str], set[str]]:
    """Layers with adapters, in the decoder and elsewhere."""
    model = load(folder_of(family), "policy", lora=given)
    decoder = set(model.text(model.network).modules())
    found = {name: module for name, module in model.network.named_modules() if hasattr(module, "lora_A")}
    inside = {name for name, module in found.items() if module in decoder}
    return inside, found.keys() - inside


def adapted_of(name, change=None, **given) -> set[str]:
    """Layers with adapters of a tiny model of a class."""
    network = network_of(name)
    for layer in network.model.layers if change else ():
        change(layer)
    return adapt(network, network.get_decoder(), options(folder_of("llama"), lora=given).lora, "policy")


@pytest.mark.parametrize("family", [*SEEING, "llama"])
def test_the_projections_of_the_decoder_are_adapted_and_others_where_that_is_asked_for(family):
    inside, outside = adapted(family)
    assert (len(inside), len(outside)) == (3 * 7, 0)
    if family in ("qwen2_5_vl", "smolvlm"):
        inside, outside = adapted(family, vision=True)
        linear = {n for n, module in load(folder_of(family)).network.named_modules() if type(module) is torch.nn.Linear}
        assert inside | outside == linear - {"lm_head"}


def test_layers_can_be_named_and_left_out():
    assert [len(found) for found in adapted("qwen2_5_vl", targets=["gate_proj", "attn.qkv"])] == [3, 6]
    inside, outside = adapted("qwen2_5_vl", vision=True, exclude=["*.layers.0.*", "*.visual.*", "up_proj"])
    assert (len(inside), len(outside)) == (2 * 6, 0)
    assert not [name for name in inside if "up_proj" in name or ".0." in name]
    network = Generator("sd3", lora={"targets": ["attn.to_q"]}).network
    named = {name for name, module in network.named_modules() if hasattr(module, "lora_A")}
    assert named == {f"transformer_blocks.{number}.attn.to_q" for number in range(len(network.transformer_blocks))}


def with_groups(layer):
    """Its output projection becomes a layer whose inputs have groups."""
    layer.self_attn.o_proj.__class__ = DeepseekV4GroupedLinear
    layer.self_attn.o_proj.n_groups = 2


def routed(kind):
    jitter = {"router_jitter_noise": 0.01, "input_jitter_noise": 0.01}
    config = SimpleNamespace(hidden_size=16, num_local_experts=4, num_experts_per_tok=2, **jitter)
    return lambda layer: setattr(layer.mlp, "chooser", kind(config))


@pytest.mark.parametrize(
    ("name", "change", "taken", "left_out", "targets", "named"),
    [
        # names that peft takes for those of experts, or loses when it saves them; what Mamba's kernels read
        ("deepseek_v3", None, "self_attn", "gate_proj",
         ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "q_a_proj"], "model.lora.targets"),
        ("laguna", None, "q_proj", "shared_experts", ["q_proj", "gate_proj", "up_proj"], "*.shared_experts.*"),
        ("falcon_h1", None, "in_proj", "out_proj", ["q_proj", "out_proj"], "'out_proj'"),
        ("qwen3", with_groups, "q_proj", "o_proj", ["o_proj"], "model.layers.0.self_attn.o_proj"),
        ("qwen3", routed(Llama4Router), "q_proj", "chooser", ["chooser"], "model.layers.0.mlp.chooser"),
        ("qwen3", routed(PhimoeTopKRouter), "q_proj", "chooser", ["chooser"], "model.layers.0.mlp.chooser"),
    ],
)  # fmt: skip
def test_layers_that_can_not_be_adapted_are_left_out_or_refused(name, change, taken, left_out, targets, named):
    found = adapted_of(name, change)
    assert any(taken in one for one in found)
    assert not any(left_out in one for one in found)
    with pytest.raises(UserError) as error:
        adapted_of(name, change, targets=targets)
    assert named in str(error.value)
    if name == "laguna":
        kept = adapted_of(name, targets=["q_proj", "up_proj"], exclude=["*.shared_experts.*"])
        assert {one.rpartition(".")[2] for one in kept} == {"q_proj", "up_proj"}


@pytest.mark.parametrize(
    ("model", "option", "names"),
    [
        ("llama", "{targets: [q_proj, lm_head]}", ["'lm_head'"]),
        ("llama", "{vision: true}", ["model.lora.vision is true"]),
        ("llama", "{vision: true, targets: [q_proj]}", ["vision", "targets"]),
        ("llama", "{exclude: [vision]}", ["model.lora.exclude", "'vision'"]),
        ("llama", "{exclude: ['*']}", ["model.lora.exclude"]),
        ("llama", "{modules_to_save: [head]}", ["modules_to_save", "'head'"]),
        ("llama", "{modules_to_save: [mlp], targets: [up_proj]}", ["model.lora.targets"]),
        ("qwen2", "{modules_to_save: [lm_head]}", ["lm_head"]),  # tied to its embeddings
        ("sd3", "{targets: []}", ["model.lora.targets"]),
    ],
)
def test_layers_that_can_not_be_chosen_are_refused(model, option, names, files):
    refused(files, model, f"model.lora={option}", names=names)


def logprobs(model, family):
    with torch.no_grad():
        completion = responses(model, encode_all(model, family), [0, 0], [4, 6])
        return response_logprobs(model, model.network, completion, temperature=1.0).logprob


@pytest.mark.parametrize(("family", "given"), [("qwen3_vl", PLAIN), ("llama", PLAIN), ("qwen2_5_vl", FULL)])
def test_adapters_count_alike_in_training_in_sampling_and_on_disk(family, given, tmp_path):
    plain = logprobs(load(folder_of(family)), family)
    model = load(folder_of(family), "policy", "other", lora=given)
    network, trained = model.network, [one for one in model.network.parameters() if one.requires_grad]
    torch.testing.assert_close(logprobs(model, family), plain, rtol=0, atol=1e-5)
    moved(trained)
    learned = logprobs(model, family)
    assert (learned - plain).abs().max() > 1e-3
    encoded, keys = encode_all(model, family), [random.key(0, place) for place in range(8)]
    index, sampling = [place % len(encoded) for place in range(8)], Sampling(max_new_tokens=6)
    apart = decode(model, network, encoded, index, keys, sampling)
    lora.use_adapter(lora.carriers(network), "other")
    with lora.merged(network, "policy"):
        together = decode(model, network, encoded, index, keys, sampling)
    torch.testing.assert_close(logprobs(model, family), plain, rtol=0, atol=1e-5)
    lora.use_adapter(lora.carriers(network), "policy")
    assert together.ids.tolist() == apart.ids.tolist()
    for completion in (together, apart):
        scores = response_logprobs(model, network, completion, temperature=1.0)
        torch.testing.assert_close(scores.logprob, completion.logprob, rtol=0, atol=1e-5)
    scores.logprob.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in trained)
    model.save(tmp_path / "whole", lora.merged_state(network, "policy")[0])
    torch.testing.assert_close(logprobs(load(tmp_path / "whole"), family), learned, rtol=0, atol=1e-5)
    model.save_lora(tmp_path / "adapter", "policy")
    other = load(folder_of(family))
    other.network = PeftModel.from_pretrained(other.network, tmp_path / "adapter").merge_and_unload()
    torch.testing.assert_close(logprobs(other, family), learned, rtol=0, atol=1e-5)
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 2


def draws(recompute):
    generator = Generator("sd3", gradient_checkpointing=recompute)
    asked = generator.asked("a cat")
    x = generator.start(asked)
    return generator.network, ["to_q", "to_v"], lambda: generator.velocity(asked, x, torch.tensor([0.5]))


def sees(recompute):
    network = load(folder_of("llama"), gradient_checkpointing=recompute).network
    network.set_attn_implementation("sdpa")  # called on its own, without a plan of attention
    return network, ["q_proj", "v_proj"], lambda: network(input_ids=torch.arange(6)[None]).logits


@pytest.mark.parametrize("kind", [draws, sees])
def test_recomputed_activations_are_those_of_the_adapter_of_the_forward_pass(kind):
    gradients = []
    for recompute in (False, True):
        network, targets, run = kind(recompute)
        lora.add_adapters(network, LoraOptions(rank=2, targets=targets), ["policy", "other"], seed=0)
        draw = torch.Generator().manual_seed(0)
        learned = {key: value for key, value in network.named_parameters() if ".lora_" in key}
        for value in learned.values():
            value.data = torch.randn(value.shape, generator=draw) * 0.3
            value.requires_grad_(True)
        layers, total = lora.lora_layers(network), torch.zeros(())
        for name, weight in (("other", 1.0), ("policy", 2.0)):
            lora.switch_adapter(layers, name)
            total = total + weight * run().square().sum()
        total.backward()
        assert lora.active_adapter(layers) == "policy"
        gradients.append({key: value.grad for key, value in learned.items() if value.grad is not None})
    assert any(".other." in key for key in gradients[0])
    torch.testing.assert_close(gradients[1], gradients[0])


class Blocks(torch.nn.Module):
    """Two layers, of torch's class or of GPT-2's; ``shared``: of one weight."""

    def __init__(self, kind, *, shared):
        super().__init__()
        self.first, self.second = kind(6, 6), kind(6, 6)
        if shared:
            self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", [torch.nn.Linear, Conv1D])
def test_merging_computes_what_the_adapters_do_and_leaves_no_trace(kind, shared, dora):
    torch.manual_seed(0)
    network, x = Blocks(kind, shared=shared), torch.randn(3, 6)
    network.requires_grad_(False)
    lora.add_adapters(network, LoraOptions(rank=2, targets=["first", "second"], dora=dora), ["policy"], seed=0)
    for parameter in lora.adapter_parameters(network, "policy").values():
        parameter.data += torch.randn(parameter.shape) * 0.3
    expected, before = network(x), {key: value.clone() for key, value in network.state_dict().items()}
    for _ in range(2):
        with lora.merged(network, "policy"):
            torch.testing.assert_close(network(x), expected)
        assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert (network.first.base_layer.weight is network.second.base_layer.weight) == shared
    if shared:
        with pytest.raises(UserError, match=r"first.weight and second.weight.*--format lora"):
            lora.merged_state(network, "policy")
        return
    plain = Blocks(kind, shared=False)
    plain.load_state_dict(lora.merged_state(network, "policy")[0])
    torch.testing.assert_close(plain(x), expected)


# Going on from an adapter on disk

SHORT = ["steps=1", "checkpoint.every=1"]
SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
OWN = "model.lora={targets: [q_proj, down_proj], rank: 2"


@pytest.fixture(scope="module")
def written(files):
    """An adapter of the tiny Llama that peft wrote."""
    run_of(files, "llama")
    with torch.random.fork_rng():
        config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
        plain = AutoModelForCausalLM.from_pretrained(files / "llama")
        get_peft_model(plain, config).save_pretrained(files / "adapter")
    return files / "adapter"


def test_a_language_model_goes_on_from_what_peft_wrote(written, files):
    """Its critic and its reference too: the one starts as the policy, the other is the model without adapters."""
    given = ["algorithm=ppo", "critic.warmup_updates=0", "algorithm.kl.coef=0.1", "optimizer.lr=1e-12"]
    run = run_of(files, "llama", f"{OWN}, path: {written}}}", "model.dtype=float32", *given)
    run.train("critic.optimizer.lr=1e-12", *SHORT)
    saved = load_file(written / WEIGHTS)
    for network in ("policy", "critic"):
        own = {name: value for name, value in run.tensors.items() if f".{network}." in name and ".lora_" in name}
        own = {name: value for name, value in own.items() if "optimizer" not in name}
        assert len(own) == len(saved)
        for name, value in own.items():
            (same,) = (one for key, one in saved.items() if name.endswith(key.removeprefix("base_model.model.")))
            torch.testing.assert_close(value, same, rtol=0, atol=1e-9)
    first = next(line for line in run.metrics if "actor/kl_loss" in line)
    assert first["actor/kl_loss"] > 1e-4, "the reference is the model without it"


def test_a_generator_goes_on_from_what_burnish_or_peft_wrote(files):
    kind = "model.lora={rank: 2, dora: true, rslora: true"
    run = run_of(files, "sd3", f"{kind}}}", name="adapted")
    run.train(*SHORT)
    out, theirs = files / "exported", files / "of peft"
    burnish("export", run.output, "--output", out, "--format", "lora")
    (file,) = out.glob("*.safetensors")
    theirs.mkdir()
    own = {f"base_model.model.{name.removeprefix('transformer.')}": value for name, value in load_file(file).items()}
    save_file(own, theirs / WEIGHTS)
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_dora": True, "use_rslora": True}
    (theirs / SETTINGS).write_text(json.dumps(settings))
    for folder in (out, theirs):
        again = run_of(files, "sd3", f"{kind}, path: '{folder}'}}", "optimizer.lr=1e-12", name="again")
        again.train(*SHORT)
        trained = {n: value for n, value in run.tensors.items() if ".lora_" in n and "optimizer" not in n}
        assert trained
        for name, value in trained.items():
            torch.testing.assert_close(again.tensors[name], value, rtol=0, atol=1e-9)
        plain = f"model.lora={{rank: 2, dora: true, path: '{folder}'}}"
        assert "model.lora.rslora" in refused(files, "sd3", plain)


@pytest.mark.parametrize(
    ("settings", "change", "names"),
    [
        ({"r": 3}, None, ["model.lora.rank is 2", "r 3"]),
        ({"lora_alpha": 16}, None, ["model.lora.alpha is 4", "16"]),
        ({"r": "2"}, None, ["r '2'"]),
        ({"peft_type": "LOHA"}, None, ["LOHA"]),
        ({"use_dora": True}, None, ["model.lora.dora is false"]),
        ({"bias": "all"}, None, ["bias 'all'"]),
        ({}, lambda own: {key: value / 0 for key, value in own.items()}, ["NaN"]),
        ({}, lambda own: {key: one[:, :1].contiguous() for key, one in own.items()}, ["model.path"]),
        ({}, lambda own: {key: value for key, value in own.items() if "q_proj" in key}, ["down_proj"]),
        ({}, lambda own: own | {"base_model.model.lm_head.bias": torch.ones(2)}, ["lm_head.bias"]),
        ({}, "truncated", ["40", WEIGHTS]),
        ({}, "pickle", [SETTINGS, WEIGHTS, "adapter_model.bin"]),
        ({}, "nowhere", ["model.lora.path is"]),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(settings, change, names, written, files, tmp_path):
    folder = tmp_path / "adapter"
    if change != "nowhere":
        folder.mkdir()
    if change == "pickle":
        (folder / "adapter_model.bin").write_bytes(b"")
    elif change != "nowhere":
        (folder / SETTINGS).write_text(json.dumps(json.loads((written / SETTINGS).read_text()) | settings))
        own = load_file(written / WEIGHTS)
        save_file(change(own) if callable(change) else own, folder / WEIGHTS)
        if change == "truncated":
            (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-40])
    refused(files, "llama", f"{OWN}, path: '{folder}'}}", names=names)
