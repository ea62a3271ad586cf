"""What forward passes of language models cost, beside PyTorch's own count of what really ran."""

from __future__ import annotations

import pytest
import torch

from burnish.models.language.loading import load_language_model
from burnish.models.lora import add_adapters
from burnish.options.flow import LoraOptions, ModelOptions
from burnish.tasks.language.meter import ResponseMeter, lengths_of
from burnish.types.batch import Gathered
from burnish.types.completion import Completion
from tests.support.flops import torch_flops
from tests.support.language_samples import folder_of, model_of
from tests.support.tiny_language import chat, picture
from tests.support.universal import universal_model

WORDS = " ".join(["count"] * 40)


def completion_of(model, *parts, tokens=384):
    """A prompt with a response, of so many tokens that a network reads."""
    prompt = model.encode(*chat(*parts))
    response = tokens - prompt.lengths[0] + 1
    given = Gathered(table=prompt, index=torch.zeros(1, dtype=torch.long))
    ids = prompt.ids[0][:1].expand(1, response)
    return Completion.of_text(given, ids, torch.tensor([response]), axes=model.axes)


def counts(model, completion, adapter=None):
    meter = ResponseMeter(1.0, model, model.network, lambda: adapter)
    with meter.counting(), torch.enable_grad():
        meter.states(completion, "packed")
    assert meter.works
    with torch_flops() as counter:
        model.response_states(model.network, completion, layout="packed").hidden.square().sum().backward()
    return meter.counted, counter.get_total_flops()


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe", "qwen2_5_vl", "qwen3_vl", "smolvlm"])
def test_families(family):
    model = model_of(family)
    model.network.requires_grad_(True)
    ours, theirs = counts(model, completion_of(model, WORDS))
    assert ours == pytest.approx(theirs, rel=1e-9)
    if model.has_vision:
        ours, theirs = counts(model, completion_of(model, "What is", picture(0, 64, 64), WORDS))
        assert ours == pytest.approx(theirs, rel=0.01)
    model.network.requires_grad_(False)


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.thorough) for one in ("gemma3", "internvl")])
def test_models_that_no_family_is_written_for(name):
    model = universal_model(name)
    model.network.requires_grad_(True)
    for parts in ((WORDS,), ("What is", picture(0, 60, 44), WORDS)):
        ours, theirs = counts(model, completion_of(model, *parts))
        assert ours == pytest.approx(theirs, rel=0.01)
    model.network.requires_grad_(False)


def test_adapters():
    model = load_language_model(ModelOptions(path=str(folder_of("qwen2")), device="cpu"))
    targets = [name for name, module in model.network.named_modules() if name.endswith(("q_proj", "down_proj"))]
    add_adapters(model.network, LoraOptions(rank=3), ["policy"], seed=0, default_targets=targets)
    completion = completion_of(model, WORDS)
    ours, theirs = counts(model, completion, "policy")
    assert ours == pytest.approx(theirs, rel=1e-9)
    without, _ = counts(model, completion, None)
    assert without < ours


def test_the_head():
    model = model_of("qwen2")
    completion = completion_of(model, WORDS)
    meter = ResponseMeter(1.0, model, model.network, lambda: None)
    hidden = model.response_states(model.network, completion, layout="packed").hidden.detach().requires_grad_()
    with meter.counting():
        meter.head(hidden, lambda: model.head(model.network).weight)
    assert meter.counted == 2 * 2 * hidden.numel() * len(model.head(model.network).weight)


@pytest.mark.parametrize("layout", ["packed", "shared", "padded"])
def test_lengths_of_layouts(layout):
    class Size:
        parameters_per_token, attention_width = 100, 10

    tokens, pairs = lengths_of([3, 5], [2, 4, 1], [0, 0, 1], layout, Size())
    if layout == "shared":
        assert (tokens, pairs) == (3 + 5 + 2 + 4 + 1, 9 + 25 + 2 * 5 + 4 * 7 + 1 * 6)
    else:
        assert (tokens, pairs) == (5 + 7 + 6, 25 + 49 + 36)
    assert lengths_of([3, 5], [2, 4, 1], [0, 0, 1], "auto", Size()) == (15, 78)
