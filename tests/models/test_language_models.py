"""Language models of any class train as they are, are saved as transformers has them, or are refused."""

import json
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations import hub_kernels

from burnish.language.model.universal import positions_within
from tests.support.model_runs import changed, refused, run_of
from tests.support.optional import seldom
from tests.support.talkers import written
from tests.support.tiny_language import tiny_language
from tests.support.tiny_run import burnish


def as_published(folder):
    """Have in one folder what published ones have: see its config.json, its tensors, its files and its tokenizer."""
    (file,), config = folder.glob("*.safetensors"), json.loads((folder / "config.json").read_text())
    text, tensors = config.get("text_config", config), load_file(file)
    first = next(name for name in tensors if ".layers.0." in name and "vis" not in name)
    further = first.replace(".layers.0.", f".layers.{text['num_hidden_layers']}.")
    tensors |= {further: tensors[first].clone(), "lm_head.weight": torch.randn(text["vocab_size"], text["hidden_size"])}
    save_file(tensors, shard := file.rename(folder / "model.safetensors-00001-of-00001.safetensors"), {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, shard.name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    other: dict = dict.fromkeys(("_attn_implementation", "_experts_implementation"), "somebody/kernels")
    other |= {"tie_word_embeddings": True, "quantization_config": {"quant_method": "mxfp4"}}
    text |= {"num_nextn_predict_layers": 1, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config | other))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, pad_token="[PAD]")  # which has no embedding
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": "{{ tools }}"}
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("model", ["qwen2_5_vl", *seldom("llama", "gemma3")])
def test_a_saved_model_is_the_model(model, files, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(hub_kernels, "load_and_register_attn_kernel", lambda *_, **__: pytest.fail("it is fetched"))
    run = run_of(files, model, "model.lora=null", name="saved")
    given = shutil.copytree(files / model, tmp_path / "given")
    as_published(given)
    changed(given / "generation_config.json", do_sample=False, temperature=0.6)  # transformers reads it, not writes it
    odd = (given / "generation_config.json").read_text()
    run.train("steps=1", f"model.path={given}")
    assert re.search(r"padded rows \d", caplog.text)
    saved = tmp_path / "saved"
    burnish("export", run.output, "--output", saved)
    assert not re.search("burnish|somebody|mxfp4", (saved / "config.json").read_text())
    assert (saved / "generation_config.json").read_text() == odd
    kind = transformers.AutoModelForCausalLM if model == "llama" else transformers.AutoModelForImageTextToText
    theirs = dict(kind.from_pretrained(saved, dtype=torch.float32).named_parameters())
    weights = {name.partition("policy.")[2]: value for name, value in run.tensors.items() if ".optimizer." not in name}
    assert all(torch.equal(theirs[name], value) for name, value in weights.items() if name)
    templates = [transformers.AutoTokenizer.from_pretrained(folder).chat_template for folder in (given, saved)]
    assert templates[0] == templates[1]
    again = run_of(files, model, f"model.path={saved}", name="again")
    again.train("steps=1")


# Classes that Burnish has no code for


class UnseenConfig(transformers.LlamaConfig):
    model_type = "never_seen"


class UnseenForCausalLM(transformers.LlamaForCausalLM):
    """Llama with a head that no rule knows."""

    config_class = UnseenConfig

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = out.logits - 0.1 * out.logits.square()
        return out


@pytest.fixture(scope="module")
def unseen(tmp_path_factory):
    transformers.AutoConfig.register("never_seen", UnseenConfig, exist_ok=True)
    transformers.AutoModelForCausalLM.register(UnseenConfig, UnseenForCausalLM, exist_ok=True)
    folder = tiny_language(tmp_path_factory.mktemp("unseen"), "llama")
    changed(folder / "config.json", model_type="never_seen")
    return folder


CHANGES = {  # of logits: what they become, by the tokens of the cache, the mask and the ids
    "none": lambda logits, cached, mask, ids: logits,
    "wrong cache": lambda logits, cached, mask, ids: logits.roll(int(cached > ids.shape[1]), -1),
    "rows mix": lambda logits, cached, mask, ids: logits.roll(int(ids.shape[1] > 1 and (ids != ids[:1]).any()), -1),
    "any padding changes": lambda logits, cached, mask, ids: logits.roll(int((mask == 0).any()), -1),
    "fewer logits": lambda logits, cached, mask, ids: logits[..., :-1],
    "sees later tokens": lambda logits, cached, mask, ids: logits + logits.mean(1, keepdim=True),
}


@pytest.fixture
def changing(unseen, files, monkeypatch):
    """A run of the class whose logits are changed; ``reads_mask``: it looks at masks."""
    own = UnseenForCausalLM.forward

    def make(change, reads_mask):
        def forward(self, *args, attention_mask=None, past_key_values=None, **kwargs):
            mask = attention_mask if reads_mask else None
            out = own(self, *args, attention_mask=mask, past_key_values=past_key_values, **kwargs)
            cached = 0 if past_key_values is None else past_key_values.get_seq_length()
            out.logits = change(out.logits, cached, attention_mask, kwargs["input_ids"])
            return out

        monkeypatch.setattr(UnseenForCausalLM, "forward", forward)
        return run_of(files, "llama", f"model.path={unseen}", "model.lora=null", name="changing")

    return make


@pytest.mark.parametrize(("change", "reads_mask"), [
    ("none", True), ("wrong cache", True), ("rows mix", True), ("any padding changes", True),
    *seldom(("none", False), ("fewer logits", True)),
])  # fmt: skip
def test_a_class_that_burnish_has_never_seen_trains_without_what_it_gets_wrong(change, reads_mask, changing):
    run = changing(CHANGES[change], reads_mask)
    run.train()
    apart = [line["rollout_corr/logprob_abs_diff"] for line in run.metrics if line.get("actor/grad_norm", 0) > 0]
    assert len(apart) == 3
    assert max(apart) < 1e-4


def test_a_class_that_can_not_be_trained_is_refused(changing):
    assert "UnseenForCausalLM" in changing(CHANGES["sees later tokens"], reads_mask=True).train(status=2).message
    seen = []

    def fails_at_last(logits, cached, mask, ids):
        seen.append(ids.tolist())
        if seen.count(seen[-1]) > 3:  # it was compared with itself before
            raise ValueError("there it is again")
        return logits

    assert "there it is again" in changing(fails_at_last, reads_mask=True).train(status=2).message


def test_a_package_that_a_class_lacks_is_to_be_installed(unseen, files, monkeypatch):
    def needs(self, *_):
        raise NameError("name 'Wavelets' is not defined")

    monkeypatch.setattr(UnseenForCausalLM, "__init__", needs)
    refused(files, "llama", f"model.path={unseen}", names=["'Wavelets'", "install the package"])


def test_text_that_a_processor_refuses_is_named_by_its_record(files, monkeypatch):
    own = transformers.PreTrainedTokenizerBase.__call__

    def call(self, text, *rest, **more):  # as that of Voxtral
        if "[AUDIO]" in str(text):
            raise ValueError("[AUDIO] is not supported")
        return own(self, text, *rest, **more)

    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "__call__", call)
    (files / "marked.jsonl").write_text(json.dumps({"prompt": "What is [AUDIO]?"}))
    refused(files, "llama", f"data.train_files={files}/marked.jsonl", names=["marked.jsonl:1", "is not supported; fix"])


@pytest.mark.parametrize("scale", [1.0, 0.1])
@pytest.mark.parametrize("kind", [transformers.BertLMHeadModel, transformers.XLNetLMHeadModel])
def test_an_encoder_is_refused_however_small_its_weights_are(kind, scale, files, tmp_path):
    sizes = {"d_model": 32, "n_layer": 2} if kind is transformers.XLNetLMHeadModel else {"hidden_size": 32}
    written(tmp_path, name=kind.config_class.model_type, kind=kind.__name__, config=sizes)
    network = kind.from_pretrained(tmp_path)
    for weight in network.parameters():
        weight.data *= scale
    network.save_pretrained(tmp_path)
    precision = f"model.dtype={'float32' if scale == 1 else 'bfloat16'}"
    refused(files, "llama", f"model.path={tmp_path}", precision, names=[kind.__name__])


SCALED = {"factor": 4.0, "rope_theta": 10000.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3, **SCALED}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
DYNAMIC = {"rope_type": "dynamic", **SCALED}


@pytest.mark.parametrize(("rope", "most", "name"), [
    (PLAIN, 256, "max_position_embeddings"), ({"rope_type": "linear", **SCALED}, 1024, "max_position_embeddings"),
    ({"rope_type": "yarn", "original_max_position_embeddings": 128, **SCALED}, 512, "max_position_embeddings"),
    (DYNAMIC, 256, "dynamic"), ({**LONG, "original_max_position_embeddings": 64}, 64, "LongRoPE"),
    ({"full_attention": DYNAMIC, "sliding_attention": PLAIN}, 256, "dynamic"),
])  # fmt: skip
def test_rows_end_where_angles_of_tokens_before_would_change(rope, most, name):
    whole = PLAIN if any(isinstance(one, dict) for one in rope.values()) else rope
    config = transformers.LlamaConfig(max_position_embeddings=256, head_dim=6, rope_parameters=whole)
    config.rope_parameters = rope  # Llama has the same for all layers, and would refuse others
    found = positions_within(config)
    assert found.most == most
    assert name in found.name
    assert positions_within(transformers.XLNetConfig()).most > 1 << 30  # its configuration says -1
