"""How networks run changes no number beyond rounding: checkpointing by block, attention backends, compiled blocks."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from diffusers.models import attention_dispatch

from burnish.language.logprobs import response_logprobs
from burnish.models.flow.forwards import Call, Forwards, Whole, groups, joined
from burnish.models.language.kernels import TOLERATED
from burnish.utils.errors import UserError
from tests.support import talkers
from tests.support.generators import Generator, close
from tests.support.language_samples import encode_all, folder_of, responses
from tests.support.model_runs import refused


def counted(blocks):
    """Which of the blocks run, in order."""
    runs = []
    for number, block in enumerate(blocks):
        next(block.children()).register_forward_pre_hook(lambda *_, number=number: runs.append(number))
    return runs


def drawn(name, **more):
    """Gradients of adapters, and how often each block was computed for them."""
    ours = Generator(name, lora={}, **more)
    asked = ours.asked("a cat", "a dog")
    x, times = ours.start(asked), torch.tensor([0.25, 0.75])
    runs = counted(getattr(ours.network, "transformer_blocks", None) or ours.network.layers)
    return ours.gradients(asked, x, times, [[0, 1]]), Counter(runs)


def said(family, **more):
    model = talkers.load(folder_of(family), "policy", lora={}, **more)
    talkers.moved(value for value in model.network.parameters() if value.requires_grad)
    tower = model.network.model.visual.blocks if family == "qwen2_5_vl" else []
    runs = counted([*model.text(model.network).layers, *tower])
    encoded = encode_all(model, family)
    completion = responses(model, encoded, [0, len(encoded) - 1], [4, 6])
    response_logprobs(model, model.network, completion, temperature=1.0).logprob.sum().backward()
    found = {name: value.grad for name, value in model.network.named_parameters() if value.grad is not None}
    return found, Counter(runs)


@pytest.mark.parametrize("name", ["sd3", "flux", "z-image", "llama", "qwen2_5_vl"])
def test_all_blocks_or_the_first_ones_alone_are_computed_again(name):
    run = said if name in ("llama", "qwen2_5_vl") else drawn
    plain, once = run(name)
    every, twice = run(name, gradient_checkpointing=True)
    first, some = run(name, gradient_checkpointing=1)
    assert twice == {number: 2 * count for number, count in once.items()}
    assert name in ("z-image", "qwen2_5_vl") or some == once | {0: 2 * once[0]}
    for found in (every, first):
        torch.testing.assert_close(found, plain, rtol=0, atol=0 if run is drawn else 1e-6)


@pytest.mark.parametrize(
    ("model", "options", "names"),
    [
        ("sd3", ["model.gradient_checkpointing=99"], ["model.gradient_checkpointing is 99", "blocks"]),
        ("llama", ["model.gradient_checkpointing=99"], ["model.gradient_checkpointing is 99", "blocks"]),
        ("sd3", ["model.attention=_native_math"], ["SD3Transformer2DModel"]),
        ("flux", ["model.attention=flex"], ["model.attention is flex"]),
        ("llama", ["model.attention=eager"], ["model.attention is eager", "model.family"]),
        ("flux", ["model.attention=flash"], ["model.attention=flash", "flash_attn"]),
        ("flux", ["model.attention=sage"], ["model.attention=sage"]),
    ],
)
def test_what_a_network_does_not_have_is_refused(model, options, names, files):
    refused(files, model, *options, names=names)


def test_an_attention_backend_is_compared_and_taken(caplog, monkeypatch):
    caplog.set_level("INFO")
    plain, _ = drawn("flux")
    math, _ = drawn("flux", attention="_native_math")
    assert "model.attention=_native_math agrees with native to" in caplog.text
    close(math, plain)
    network = Generator("flux", attention="_native_math").network
    chosen = {module.processor._attention_backend for module in network.modules() if hasattr(module, "processor")}
    assert {one.value for one in chosen} == {"_native_math"}
    real = attention_dispatch.dispatch_attention_fn

    def sloppy(*given, backend, **more):
        out = real(*given, backend=backend, **more)
        return out * 1.01 if backend.value == "_native_math" else out

    monkeypatch.setattr(attention_dispatch, "dispatch_attention_fn", sloppy)
    with pytest.raises(UserError, match=r"_native_math.*0\.01"):
        Generator("flux", attention="_native_math")


def test_an_implementation_of_transformers_is_compared_and_taken(caplog, monkeypatch):
    caplog.set_level("INFO")
    model = talkers.load(folder_of("llama"), family="transformers", attention="eager")
    assert "model.attention=eager agrees with sdpa to" in caplog.text
    assert model.network.config._attn_implementation == "eager"
    monkeypatch.setitem(TOLERATED, "float32", 0.0)
    with pytest.raises(UserError, match=r"model.attention is eager.*sdpa"):
        talkers.load(folder_of("llama"), family="transformers", attention="eager")


def test_the_precision_of_float32_products_is_pytorchs():
    for precision in ("high", "highest"):
        talkers.load(folder_of("llama"), float32_matmul_precision=precision)
        assert torch.get_float32_matmul_precision() == precision


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["flux", "llama"])
def test_compiled_blocks_compute_the_same(name):
    run = drawn if name == "flux" else said
    close(run(name, compile=True)[0], run(name)[0])


# How calls of a network share a forward


def test_tensors_of_layers_are_joined_by_their_rows():
    def call(i):  # two rows, and two layers of a ControlNet
        layers = [torch.full((2, 4), i + layer) for layer in range(2)]
        return Call("net", {"x": torch.full((2, 3), i), "layers": layers, "time": torch.tensor(float(i))})

    calls = [call(0), call(1)]
    assert groups(calls) == [[0, 1]]
    whole = joined(calls).arguments
    assert whole["x"][:, 0].tolist() == [0, 0, 1, 1]
    assert [layer[:, 0].tolist() for layer in whole["layers"]] == [[0, 0, 1, 1], [1, 1, 2, 2]]
    assert whole["time"].tolist() == [0, 0, 1, 1]
    calls = [Call("net", {"x": [torch.zeros(2, 3)] * 2, "text": [torch.full((2, 3), i)] * 2}) for i in range(2)]
    listed = joined(calls)
    assert listed.rows.length == len(listed.arguments["text"]) == 4
    assert [len(text) for text in listed.arguments["text"]] == [2] * 4, "lists of sequences are lists of rows"


def test_what_once_had_another_length_belongs_to_all_rows():
    forwards, scale = Forwards(nullcontext), torch.ones(3)
    for rows in (1, 3):  # the second time it could be taken for one value per row
        seen = forwards.noted("net", {"x": torch.zeros(rows, 2), "scale": scale})
    assert groups([seen, seen]) == [[0, 1]]
    assert joined([seen, seen]).arguments["scale"] == Whole(scale)
    assert joined([seen, seen]).rows.length == 6
    other = forwards.noted("net", {"x": torch.zeros(3, 2), "scale": scale * 2})
    assert groups([seen, other]) == [[0], [1]]
