"""Adapters: where they go, what they compute beside and in the weights, and going on from those on disk."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from tests.support.model_runs import refused, run_of
from tests.support.optional import seldom
from tests.support.tiny_run import burnish

SHORT = ["steps=1", "checkpoint.every=1"]
SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
OWN = "model.lora={targets: [q_proj, down_proj], rank: 2"


def trained(run, network="policy"):
    return {name: value for name, value in run.tensors.items()
            if f".{network}." in name and ".lora_" in name and "optimizer" not in name}  # fmt: skip


def layers(files, model, lora):
    run = run_of(files, model, f"model.lora={lora}", name="layers")
    run.train(*SHORT)
    names = {name.partition(".lora_")[0].partition("policy.")[2] for name in trained(run)}
    assert names
    return names


def test_the_projections_of_the_decoder_are_adapted_and_others_where_that_is_asked_for(files):
    usual = layers(files, "qwen2_5_vl", "{rank: 2}")
    assert not [name for name in usual if "visual" in name]
    kinds = {name.rpartition(".")[2] for name in usual}
    assert kinds == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    seeing = layers(files, "qwen2_5_vl", "{rank: 2, vision: true}")
    assert seeing > usual
    assert [name for name in seeing if "visual" in name]
    assert not [name for name in seeing if "lm_head" in name]
    some = layers(files, "qwen2_5_vl", "{rank: 2, vision: true, exclude: ['*.layers.0.*', '*.visual.*', up_proj]}")
    assert some == {name for name in usual if "up_proj" not in name and ".layers.0." not in name}
    drawing = layers(files, "sd3", "{rank: 2, targets: [attn.to_q]}")
    assert {name.partition(".")[2].partition(".")[2] for name in drawing} == {"attn.to_q"}


@pytest.mark.parametrize(("model", "taken", "left_out"), [
    ("laguna", "q_proj", "shared_experts"),
    *seldom(
        ("deepseek_v3", "self_attn", "gate_proj"), ("falcon_h1", "in_proj", "out_proj"),
        ("llama4", "q_proj", "router"), ("hunyuan_v1_moe", "q_proj", "wg"),
    ),
])  # fmt: skip
def test_layers_that_can_not_be_adapted_are_left_out(model, taken, left_out, files):
    """Names that peft takes for those of experts, or loses when it saves them; what Mamba's kernels read."""
    found = layers(files, model, "{rank: 2}")
    assert any(taken in name for name in found)
    assert not any(left_out in name for name in found)


def test_adapters_count_alike_in_training_in_sampling_and_on_disk(files):
    lora = "{rank: 2, rslora: true, dora: true, exclude: [v_proj], modules_to_save: [lm_head, language_model.norm]}"
    run = run_of(files, "qwen2_5_vl", f"model.lora={lora}", "optimizer.lr=0.02", name="full")
    run.train()
    rows = [row for row in run.metrics if "rollout_corr/logprob_abs_diff" in row]
    assert max(row["rollout_corr/logprob_abs_diff"] for row in rows) < 1e-5
    merged, adapter = files / "full-merged", files / "full-adapter"
    burnish("export", run.output, "--output", merged)
    burnish("export", run.output, "--output", adapter, "--format", "lora")
    before = AutoModelForImageTextToText.from_pretrained(files / "qwen2_5_vl", dtype=torch.float32)
    with torch.no_grad():
        ids = torch.arange(4, 16)[None]
        plain = before(input_ids=ids).logits
        theirs = PeftModel.from_pretrained(before, adapter)(input_ids=ids).logits
        ours = AutoModelForImageTextToText.from_pretrained(merged, dtype=torch.float32)(input_ids=ids).logits
    assert (ours - plain).abs().max() > 1e-3
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)


# Going on from an adapter on disk


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
        own = trained(run, network)
        assert len(own) == len(saved)
        for name, value in own.items():
            (same,) = (one for key, one in saved.items() if name.endswith(key.removeprefix("base_model.model.")))
            torch.testing.assert_close(value, same, rtol=0, atol=1e-9)
    first = next(line for line in run.metrics if "actor/kl_loss" in line)
    assert first["actor/kl_loss"] > 1e-4, "the reference is the model without it"


def test_a_generator_goes_on_from_what_burnish_or_peft_wrote(files):
    kind = "model.lora={rank: 2, dora: true, rslora: true"
    run = run_of(files, "flux", f"{kind}}}", name="adapted")
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
        again = run_of(files, "flux", f"{kind}, path: '{folder}'}}", "optimizer.lr=1e-12", name="again")
        again.train(*SHORT)
        assert trained(run)
        for name, value in trained(run).items():
            torch.testing.assert_close(again.tensors[name], value, rtol=0, atol=1e-9)
    assert "model.lora.rslora" in refused(files, "flux", f"model.lora={{rank: 2, dora: true, path: '{out}'}}")


@pytest.mark.parametrize(("settings", "change", "names"), [
    ({"r": 3}, None, ["model.lora.rank is 2", "is 3"]), ({"lora_alpha": 16}, None, ["model.lora.alpha is 4", "16"]),
    ({"peft_type": "LOHA"}, None, ["LOHA"]), ({"bias": "all"}, None, ["bias 'all'"]),
    ({}, lambda own: {key: value / 0 for key, value in own.items()}, ["NaN"]),
    ({}, lambda own: {key: one[:, :1].contiguous() for key, one in own.items()}, ["model.path"]),
    ({}, lambda own: {key: value for key, value in own.items() if "q_proj" in key}, ["down_proj"]),
    ({}, lambda own: own | {"base_model.model.lm_head.bias": torch.ones(2)}, ["lm_head.bias"]),
    ({}, "truncated", ["truncated", WEIGHTS]), ({}, "pickle", [SETTINGS, WEIGHTS, "adapter_model.bin"]),
    ({}, "nowhere", ["model.lora.path is"]),
])  # fmt: skip
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
