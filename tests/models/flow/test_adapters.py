"""Adapters that peft wrote, merged into the weights of a generator."""

from __future__ import annotations

import pytest
import torch

from burnish.models.flow.loading import load_model
from burnish.models.lora import add_adapters, lora_layers, save_for_peft
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.flow import LoraOptions, ModelOptions, RolloutOptions

OPTIONS = LoraOptions(rank=2)


def load(path):
    return load_model(
        ModelOptions(path=str(path), family="pipeline"), RolloutOptions(batch_size=96, num_inference_steps=2)
    )


@pytest.fixture(scope="module", params=["pixart-sigma", "flux"])  # a class without adapters of its own, and one with
def exported(request, tmp_path_factory):
    """A pipeline, its network with an adapter, and the folder that peft's format of it lies in."""
    place = tmp_path_factory.mktemp(request.param)
    write(describe(request.param), place / "pipeline", seed=0)
    model = load(place / "pipeline")
    add_adapters(model.network, OPTIONS, ["policy"], seed=0, default_targets=model.lora_targets)
    with torch.no_grad():
        for name, value in model.network.named_parameters():
            if ".lora_" in name:
                value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name))))
    save_for_peft(model.network, place / "adapter", "policy")
    return place, model.network


def test_it_is_merged_into_a_teacher(exported):
    place, network = exported
    model = load(place / "pipeline")
    model.fold_lora(place / "adapter")
    assert not lora_layers(model.network)
    adapted = dict(network.named_modules())
    for name, value in model.network.named_parameters():
        layer = adapted.get(name.removesuffix(".weight"))
        if name.endswith(".weight") and hasattr(layer, "get_delta_weight"):
            merged = layer.get_base_layer().weight + layer.get_delta_weight("policy")
            torch.testing.assert_close(value, merged, rtol=1e-5, atol=1e-5)
        elif not name.endswith(".bias"):
            assert torch.equal(value, dict(network.named_parameters())[name])
