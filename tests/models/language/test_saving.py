"""What is written loads elsewhere, and adapters count alike in training, in sampling and on disk."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from burnish.language.decoding import decode
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.models.adapters import WEIGHTS, read_weights, saved_name
from burnish.models.language.loading import load_language_model
from burnish.models.lora import adapter_parameters, add_adapters, carriers, merged, merged_state, use_adapter
from burnish.models.targets import language_targets
from burnish.options.flow import LoraOptions, ModelOptions
from burnish.options.language import LanguageLoraOptions
from burnish.utils import random
from tests.support.language_samples import encode_all, folder_of, responses
from tests.support.tiny_language import FAMILIES, SEEING

LORA = LoraOptions(rank=2, targets=["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"])
FULL = LanguageLoraOptions(
    rank=2,
    rslora=True,
    dora=True,
    exclude=["*.layers.0.*", "v_proj"],
    modules_to_save=["lm_head", "language_model.norm"],
)


def load(path, **options):
    return load_language_model(ModelOptions(path=str(path), device="cpu", **options))


def logprobs(model, family):
    completion = responses(model, encode_all(model, family), [0, 0], [4, 6])
    with torch.no_grad():
        return response_logprobs(model, model.network, completion, temperature=1.0).logprob


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_is_the_model(tmp_path, family):
    given = shutil.copytree(folder_of(family), tmp_path / "given")
    generation = json.loads((given / "generation_config.json").read_text())
    odd = json.dumps(generation | {"do_sample": False, "temperature": 0.6})  # transformers reads it, and won't write it
    (given / "generation_config.json").write_text(odd)
    model = load(given)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(0.01)
    weights = {name: value.clone() for name, value in model.network.state_dict().items()}
    model.save(tmp_path / "saved", weights)
    again = load(tmp_path / "saved")
    torch.testing.assert_close(logprobs(again, family), logprobs(model, family), rtol=0, atol=1e-6)
    assert again.stop == model.stop
    assert "burnish" not in (tmp_path / "saved" / "config.json").read_text()
    assert (tmp_path / "saved" / "generation_config.json").read_text() == odd
    kind = AutoModelForImageTextToText if family in SEEING else AutoModelForCausalLM
    theirs = kind.from_pretrained(tmp_path / "saved")
    for name, parameter in theirs.named_parameters():
        assert torch.equal(parameter, weights[name]), name
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template == model.tokenizer.chat_template


@pytest.mark.parametrize(
    ("family", "options"), [("qwen2_5_vl", LORA), ("qwen3_vl", LORA), ("llama", LORA), ("qwen2_5_vl", FULL)]
)
def test_adapters_count_in_sampling_as_in_training(tmp_path, family, options):
    model = load(folder_of(family), lora=options)
    plain = logprobs(model, family)
    targets = language_targets(model.network, model.text(model.network), options) if options is FULL else ()
    add_adapters(model.network, options, ["policy", "other"], seed=0, default_targets=targets)
    trained = [parameter for parameter in model.network.parameters() if parameter.requires_grad]
    torch.testing.assert_close(logprobs(model, family), plain, rtol=0, atol=1e-5)
    with torch.no_grad():
        for parameter in trained:
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.05)
    assert (logprobs(model, family) - plain).abs().max() > 1e-3
    encoded = encode_all(model, family)
    keys = [random.key(0, place) for place in range(8)]
    sampling = Sampling(max_new_tokens=6)
    index = [place % len(encoded) for place in range(8)]
    apart = decode(model, model.network, encoded, index, keys, sampling)
    use_adapter(carriers(model.network), "other")
    with merged(model.network, "policy"):
        together = decode(model, model.network, encoded, index, keys, sampling)
    torch.testing.assert_close(logprobs(model, family), plain, rtol=0, atol=1e-5)
    use_adapter(carriers(model.network), "policy")
    assert together.ids.tolist() == apart.ids.tolist()
    for completion in (apart, together):
        scores = response_logprobs(model, model.network, completion, temperature=1.0)
        torch.testing.assert_close(scores.logprob, completion.logprob, rtol=0, atol=1e-5)
    scores = response_logprobs(model, model.network, apart, temperature=1.0)
    scores.logprob.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in trained)

    model.save(tmp_path / "whole", merged_state(model.network, "policy")[0])
    torch.testing.assert_close(logprobs(load(tmp_path / "whole"), family), logprobs(model, family), rtol=0, atol=1e-5)

    model.save_lora(tmp_path / "adapter", "policy")
    from peft import PeftModel

    other = load(folder_of(family))
    other.network = PeftModel.from_pretrained(other.network, tmp_path / "adapter").merge_and_unload()
    torch.testing.assert_close(logprobs(other, family), logprobs(model, family), rtol=0, atol=1e-5)
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 2
    saved = read_weights(tmp_path / "adapter" / WEIGHTS, "model.lora.path")
    own = {saved_name(name): value for name, value in adapter_parameters(model.network, "policy").items()}
    assert saved.keys() == own.keys()
    assert all(torch.equal(saved[name], value) for name, value in own.items())


def test_gradient_checkpointing_computes_layers_again_and_changes_nothing():
    def gradients(**options):
        model = load(folder_of("qwen2_5_vl"), **options)
        model.network.requires_grad_(True)  # as a run trains it: never put into training mode
        runs = 0

        def count(*_):
            nonlocal runs
            runs += 1

        model.text(model.network).layers[0].mlp.register_forward_pre_hook(count)
        model.network.model.visual.blocks[0].mlp.register_forward_pre_hook(count)
        completion = responses(model, encode_all(model, "qwen2_5_vl"), [1, 1, 3], [4, 6, 2])
        response_logprobs(model, model.network, completion, temperature=1.0).logprob.sum().backward()
        return {name: p.grad for name, p in model.network.named_parameters() if p.grad is not None}, runs

    (plain, once), (again, twice) = gradients(), gradients(gradient_checkpointing=True)
    assert (once, twice) == (3, 6)  # the tower sees images and videos apart
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("lora", [None, FULL])
def test_half_precision_stays_close(lora):
    model, exact = (load(folder_of("qwen2_5_vl"), dtype=dtype, lora=lora) for dtype in ("bfloat16", "float32"))
    for one in (model, exact) if lora else ():
        targets = language_targets(one.network, one.text(one.network), lora)
        add_adapters(one.network, lora, ["policy"], seed=0, default_targets=targets)
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for value in adapter_parameters(one.network, "policy").values():
                value.add_(torch.randn(value.shape, generator=draw) * 0.05)
    exact = logprobs(exact, "qwen2_5_vl")
    torch.testing.assert_close(logprobs(model, "qwen2_5_vl"), exact, rtol=0, atol=0.3)
    encoded = encode_all(model, "qwen2_5_vl")
    completion = decode(model, model.network, encoded, [0, 1, 2, 3], [1, 2, 3, 4], Sampling(max_new_tokens=8))
    scores = response_logprobs(model, model.network, completion, temperature=1.0)
    assert (scores.logprob - completion.logprob).abs().mean() < 0.05
