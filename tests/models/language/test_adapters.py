"""Adapters go to the language model, to the vision tower only when asked, and nowhere where they would do nothing."""

from __future__ import annotations

import pytest
import torch

from burnish.models.language.loading import load_language_model
from burnish.models.lora import adapter_parameters, add_adapters
from burnish.models.targets import adapter_complaint, language_targets
from burnish.models.tiny import describe_language
from burnish.models.tiny.language.build import build
from burnish.options.language import LanguageLoraOptions, LanguageModelOptions
from burnish.utils.errors import UserError
from tests.support.language_samples import folder_of
from tests.support.tiny_language import SEEING


def adapted(family, **given) -> tuple[set[str], set[str]]:
    """Layers with adapters, in the decoder and elsewhere."""
    options = LanguageLoraOptions(rank=2, **given)
    model = load_language_model(LanguageModelOptions(path=str(folder_of(family)), device="cpu", lora=options))
    targets = language_targets(model.network, model.text(model.network), options)
    add_adapters(model.network, options, ["policy"], seed=0, default_targets=targets)
    decoder = set(model.text(model.network).modules())
    found = {name: module for name, module in model.network.named_modules() if hasattr(module, "lora_A")}
    inside = {name for name, module in found.items() if module in decoder}
    return inside, found.keys() - inside


@pytest.mark.parametrize("family", [*SEEING, "llama"])
def test_the_projections_of_the_decoder_are_adapted_and_no_others(family):
    inside, outside = adapted(family)
    assert len(inside) == 3 * 7
    assert not outside


@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm"])
def test_the_tower_is_adapted_where_that_is_asked_for(family):
    inside, outside = adapted(family, vision=True)
    plain = load_language_model(LanguageModelOptions(path=str(folder_of(family)), device="cpu")).network
    linear = {name for name, module in plain.named_modules() if isinstance(module, torch.nn.Linear)}
    assert inside | outside == linear - {"lm_head"}


def test_named_layers_are_adapted_wherever_they_are():
    inside, outside = adapted("qwen2_5_vl", targets=["gate_proj", "attn.qkv"])
    assert (len(inside), len(outside)) == (3, 6)


def test_adapters_that_would_do_nothing_are_refused():
    with pytest.raises(UserError, match=r"has 'lm_head', the language head.*leave it out"):
        adapted("llama", targets=["q_proj", "lm_head"])
    with pytest.raises(UserError, match=r"model\.lora\.vision is true, but the model has no vision tower"):
        adapted("llama", vision=True)
    with pytest.raises(ValueError, match="vision is never read when targets are given"):
        LanguageLoraOptions(vision=True, targets=["q_proj"])


def adapted_of_class(name, **given) -> set[str]:
    """Layers with adapters of a tiny model of a class."""
    network, options = build(describe_language(name), 0)[0], LanguageLoraOptions(rank=2, **given)
    targets = language_targets(network, network.get_decoder(), options)
    add_adapters(network, options, ["policy"], seed=0, default_targets=targets)
    return {name for name, module in network.named_modules() if hasattr(module, "lora_A")}


def test_layers_whose_names_peft_takes_for_those_of_experts_are_left_out(caplog):
    with caplog.at_level("INFO", "burnish.models.lora"):
        found = adapted_of_class("deepseek_v3")
    assert found
    assert all(".self_attn." in name for name in found)
    assert "such as model.layers.0.mlp.gate_proj, whose names peft takes for those of others" in caplog.text
    with pytest.raises(UserError, match=r"otherwise than model\.lora\.targets"):
        adapted_of_class("deepseek_v3", targets=["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "q_a_proj"])


def test_layers_whose_adapters_peft_would_lose_are_left_out_or_refused():
    """transformers' renaming of this class turns shared_experts.up_proj, too, into a name that no layer has."""
    assert not [name for name in adapted_of_class("laguna") if "shared_experts" in name]
    with pytest.raises(UserError, match=r"which loses it, and of 2 more layers.*exclude='\[\"\*\.shared_experts\.\*"):
        adapted_of_class("laguna", targets=["q_proj", "gate_proj", "up_proj", "down_proj"])
    kept = adapted_of_class("laguna", targets=["q_proj", "up_proj"], exclude=["*.shared_experts.*"])
    assert {name.rpartition(".")[2] for name in kept} == {"q_proj", "up_proj"}


def test_the_weight_that_mambas_kernels_read_gets_no_adapter():
    found = {name.rpartition(".")[2] for name in adapted_of_class("falcon_h1")}
    assert "in_proj" in found
    assert "out_proj" not in found
    with pytest.raises(UserError, match=r"has 'out_proj', the output projection of a Mamba layer.*leave it out"):
        adapted_of_class("falcon_h1", targets=["q_proj", "out_proj"])


def test_some_layers_are_left_out():
    inside, outside = adapted("qwen2_5_vl", vision=True, exclude=["*.layers.0.*", "*.visual.*", "up_proj"])
    assert not outside
    assert len(inside) == 2 * 6
    assert not [name for name in inside if "up_proj" in name or ".0." in name]


def test_modules_are_trained_in_full_beside_adapters():
    options = LanguageLoraOptions(rank=2, modules_to_save=["lm_head", "layers.2.mlp"])
    model = load_language_model(LanguageModelOptions(path=str(folder_of("llama")), device="cpu", lora=options))
    targets = language_targets(model.network, model.text(model.network), options)
    add_adapters(model.network, options, ["policy", "critic"], seed=0, default_targets=targets)
    own = adapter_parameters(model.network, "policy")
    assert own.keys() == adapter_parameters(model.network, "critic").keys()
    in_full = {name for name in own if "modules_to_save" in name}
    assert {name.split(".modules_to_save.")[0] for name in in_full} == {"lm_head", "model.layers.2.mlp"}
    assert len(own) - len(in_full) == 2 * (3 * 7 - 3)  # no adapters inside of the last MLP
    trained = {id(value) for value in model.network.parameters() if value.requires_grad}
    assert trained == {id(value) for value in own.values()}


@pytest.mark.parametrize(
    ("family", "given", "said"),
    [
        ("llama", {"exclude": ["vision"]}, r"model\.lora\.exclude has 'vision', which matches none of the layers"),
        ("llama", {"exclude": ["*"]}, "leaves no layer to adapt"),
        ("llama", {"modules_to_save": ["head"]}, r"modules_to_save has 'head', which matches the end of no module"),
        ("llama", {"modules_to_save": ["mlp"], "targets": ["up_proj"]}, r"in full, which model\.lora\.targets has too"),
        ("tied", {"modules_to_save": ["lm_head"]}, r"are one weight \(tied embeddings\)"),
    ],
)
def test_layers_that_can_not_be_chosen_are_refused(family, given, said):
    options = LanguageLoraOptions(rank=2, **given)
    model = load_language_model(LanguageModelOptions(path=str(folder_of("llama")), device="cpu", lora=options))
    if family == "tied":
        model.network.lm_head.weight = model.network.model.embed_tokens.weight
    targets = language_targets(model.network, model.text(model.network), options)
    with pytest.raises(UserError, match=said):
        add_adapters(model.network, options, ["policy"], seed=0, default_targets=targets)


def test_layers_whose_inputs_have_groups_are_left_out():
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4GroupedLinear
    from transformers.models.falcon.modeling_falcon import FalconLinear

    assert "groups of inputs" in adapter_complaint(DeepseekV4GroupedLinear(8, 16, n_groups=2))
    assert adapter_complaint(FalconLinear(8, 16)) == adapter_complaint(torch.nn.Linear(8, 16)) == ""
    network = build(describe_language("qwen3"), 0)[0]
    for layer in network.model.layers:
        layer.self_attn.o_proj.__class__ = DeepseekV4GroupedLinear
        layer.self_attn.o_proj.n_groups = 2
    options = LanguageLoraOptions(rank=2)
    found = language_targets(network, network.get_decoder(), options)
    assert any("q_proj" in name for name in found)
    assert not any("o_proj" in name for name in found)
    with pytest.raises(UserError, match=r"has model\.layers\.0\.self_attn\.o_proj, whose groups of inputs"):
        language_targets(network, network.get_decoder(), LanguageLoraOptions(rank=2, targets=["o_proj"]))


@pytest.mark.parametrize("kind", ["llama4.modeling_llama4.Llama4Router", "phimoe.modeling_phimoe.PhimoeTopKRouter"])
def test_routers_are_left_out(kind):
    from importlib import import_module
    from types import SimpleNamespace

    module, _, name = kind.rpartition(".")
    config = SimpleNamespace(hidden_size=16, num_local_experts=4, num_experts_per_tok=2)
    config.router_jitter_noise = config.input_jitter_noise = 0.01
    network = build(describe_language("qwen3"), 0)[0]
    for layer in network.model.layers:
        layer.mlp.chooser = getattr(import_module(f"transformers.models.{module}"), name)(config)
    found = language_targets(network, network.get_decoder(), LanguageLoraOptions(rank=2))
    assert found
    assert not any("chooser" in name for name in found)
    with pytest.raises(UserError, match=r"has model\.layers\.0\.mlp\.chooser, a router, which returns its choice"):
        language_targets(network, network.get_decoder(), LanguageLoraOptions(rank=2, targets=["chooser"]))
