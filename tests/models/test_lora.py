"""Adapters of one network, several of which learn in one backward pass."""

from __future__ import annotations

import pytest
import torch
from transformers.pytorch_utils import Conv1D

from burnish.models.flow.base import Drawing
from burnish.models.flow.loading import load_model
from burnish.models.language.loading import load_language_model
from burnish.models.lora import (
    active_adapter,
    adapter_parameters,
    add_adapters,
    lora_layers,
    merged,
    merged_state,
    switch_adapter,
)
from burnish.options.flow import LoraOptions, ModelOptions, RolloutOptions
from burnish.options.language import LanguageModelOptions
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support.factory import tiny_pipeline
from tests.support.token_batches import folder_of


def draws(folder, recompute):
    """A model that draws, and what it makes of a state."""
    options = ModelOptions(path=str(folder), dtype="float32", device="cpu", gradient_checkpointing=recompute)
    model = load_model(options, RolloutOptions(batch_size=96, num_inference_steps=4, max_sequence_length=4))
    drawing = Drawing(height=8, width=8, steps=4)
    asked = model.condition([Prompt(text="a")], drawing)
    x, rows = model.start(asked, drawing, [("x",)]), asked.rows()
    return (
        model.network,
        ("to_q", "to_v"),
        lambda: model.predict(model.network, x, torch.tensor([0.5]), rows, rows, guidance=1.0),
    )


def sees(folder, recompute):
    """A language model, and what it makes of some tokens."""
    options = LanguageModelOptions(path=str(folder_of("llama")), device="cpu", gradient_checkpointing=recompute)
    network = load_language_model(options).network
    network.set_attn_implementation("sdpa")  # called on its own, without a plan of attention
    return network, ("q_proj", "v_proj"), lambda: network(input_ids=torch.arange(6)[None]).logits


@pytest.mark.parametrize("kind", [draws, sees])
def test_recomputed_activations_are_those_of_the_adapter_of_the_forward_pass(kind, tmp_path):
    folder = tiny_pipeline(tmp_path, vae=False) if kind is draws else tmp_path
    gradients = []
    for recompute in (False, True):
        network, targets, run = kind(folder, recompute)
        options = LoraOptions(rank=2, targets=list(targets))
        add_adapters(network, options, ["policy", "other"], seed=0)
        draw = torch.Generator().manual_seed(0)
        learned = {key: value for key, value in network.named_parameters() if ".lora_" in key}
        for value in learned.values():
            value.data = torch.randn(value.shape, generator=draw) * 0.3
            value.requires_grad_(True)
        layers = lora_layers(network)
        total = torch.zeros(())
        for name, weight in (("other", 1.0), ("policy", 2.0)):
            switch_adapter(layers, name)
            total = total + weight * run().square().sum()
        total.backward()
        assert active_adapter(layers) == "policy"
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
    options = LoraOptions(rank=2, targets=["first", "second"], dora=dora)
    add_adapters(network, options, ["policy"], seed=0)
    for parameter in adapter_parameters(network, "policy").values():
        parameter.data += torch.randn(parameter.shape) * 0.3
    expected, before = network(x), {key: value.clone() for key, value in network.state_dict().items()}
    for _ in range(2):
        with merged(network, "policy"):
            torch.testing.assert_close(network(x), expected)
        assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert (network.first.base_layer.weight is network.second.base_layer.weight) == shared
    if shared:
        with pytest.raises(UserError, match=r"first.weight and second.weight are one weight.*--format lora"):
            merged_state(network, "policy")
        return
    plain = Blocks(kind, shared=False)
    plain.load_state_dict(merged_state(network, "policy")[0])
    torch.testing.assert_close(plain(x), expected)
