"""Language models of any class are scored, sampled, trained and saved as transformers alone has them, or refused."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers

from burnish.language.decoding import decode
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.types.completion import Encoded
from burnish.utils.errors import UserError
from tests.support.language_samples import folder_of, responses
from tests.support.model_runs import changed, refused, run_of
from tests.support.talkers import class_that_reads, load, outlined, positions, written
from tests.support.tiny_language import FAMILIES, SEEING, chat, picture, tiny_language
from tests.support.universal import (
    gradients,
    load_universal,
    own_logprobs,
    prompts_for,
    universal_folder,
    universal_model,
)

THOROUGH = pytest.mark.thorough
SELDOM = ("llava_onevision", "llama4", "idefics3", "minicpmv4_6", "glm4v_moe", "paligemma", "mistral3", "gemma4",
          "granite", "gpt_oss", "qwen3_5")  # fmt: skip
CASES = pytest.mark.parametrize("name", ["gemma3", "internvl", *(pytest.param(one, marks=THOROUGH) for one in SELDOM)])
TIGHT = {"rtol": 0, "atol": 1e-4}


def sampled(name, *, temperature=0.8, batch_size=256, prompts=None, count=3):
    model = universal_model(name)
    prompts = prompts_for(name) if prompts is None else prompts
    index = [row for row in range(len(prompts)) for _ in range(count)]
    keys = [1 + int(prompts.ids[row].sum()) + 1000 * (place % count) for place, row in enumerate(index)]
    sampling = Sampling(max_new_tokens=8, temperature=temperature)
    return model, decode(model, model.network, prompts, index, keys, sampling, batch_size=batch_size)


def scored(model, completion, network=None, **how):
    with torch.no_grad():
        return response_logprobs(model, network or model.network, completion, temperature=1.0, **how).logprob


@CASES
def test_sampler_and_trainer_have_the_log_probs_of_the_class(name):
    model, completion = sampled(name)
    kind = int(name == "paligemma")
    torch.testing.assert_close(completion.logprob, own_logprobs(model, completion, 0.8, response_kind=kind), **TIGHT)
    made_up = responses(model, completion.prompts.table, [0, 1, 1, 0], [5, 9, 1, 7])
    for some in (completion, made_up):
        wanted = own_logprobs(model, some, 0.8, response_kind=kind)
        for layout in ("padded", "shared", "auto"):
            with torch.no_grad():
                ours = response_logprobs(model, model.network, some, temperature=0.8, layout=layout)
            torch.testing.assert_close(ours.logprob, wanted, **TIGHT)
            assert (ours.entropy[some.mask] > 0).all()


@CASES
def test_a_response_depends_on_its_own_key_alone_and_the_likeliest_is_that_of_generate(name):
    prompts = prompts_for(name)
    (_, together), (_, apart) = sampled(name), sampled(name, batch_size=2)
    assert torch.equal(together.ids, apart.ids)
    _, alone = sampled(name, prompts=prompts.select([len(prompts) - 1]))
    assert torch.equal(alone.ids, together.ids[-3:, : alone.ids.shape[1]])
    model, likeliest = sampled(name, temperature=0, count=1)
    accepted, table = model.forwards.accepted, likeliest.prompts.table
    for row, (ids, features) in enumerate(zip(table.ids, table.features, strict=True)):
        inputs = features.tensors | {kind: value[None] for kind, value in features.kinds.items()}
        theirs = model.network.generate(
            input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], max_new_tokens=8, do_sample=False,
            eos_token_id=list(model.stop), suppress_tokens=model.banned.tolist() or None,
            **{key: value for key, value in inputs.items() if key in accepted},
        )[0, len(ids) :]  # fmt: skip
        length = int(likeliest.length[row])
        assert likeliest.ids[row, :length].tolist() == theirs[:length].tolist()


@CASES
def test_gradients_of_shared_prompts_are_those_of_separate_ones(name):
    model, completion = sampled(name)
    if not model.tiers.shared:
        pytest.skip(model.tiers.name)
    inside = {id(value) for value in model.text(model.network).parameters()}
    names = [key for key, value in model.network.named_parameters() if value.ndim == 2 and id(value) in inside]

    def loss(layout):
        found = response_logprobs(model, model.network, completion, temperature=1.0, layout=layout).logprob
        return (found * torch.linspace(-1, 1, found.numel()).view_as(found)).sum()

    chosen = (names[0], names[len(names) // 2])
    apart, shared = (gradients(model, lambda layout=layout: loss(layout), chosen) for layout in ("padded", "shared"))
    for one, other in zip(apart, shared, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-3, atol=float(1e-3 * one.abs().max()))


def test_own_decoding_is_tried_on_prompts_that_it_takes():
    """GLM's layers have norms that Llama's don't; its videos keep a batch from being decoded by Burnish's layers."""
    model = universal_model("glm46v")
    alone = model.encode(*chat("Why?")[:1])
    completion = decode(model, model.network, alone, [0], [7], Sampling(max_new_tokens=8))
    torch.testing.assert_close(completion.logprob, own_logprobs(model, completion, 1.0), **TIGHT)


# What is written loads elsewhere


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_a_saved_model_is_the_model(family, tmp_path):
    universal = family == "gemma3"
    given = shutil.copytree(universal_folder(family) if universal else folder_of(family), tmp_path / "given")
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
    seen = [model.encode(*chat(picture(0), "?"))] if universal or family in SEEING else []
    completion = responses(model, Encoded.cat([model.encode(*chat("What?")), *seen]), [0, len(seen)], [4, 6])
    torch.testing.assert_close(scored(again, completion), scored(model, completion), rtol=0, atol=1e-6)
    assert again.stop == model.stop
    assert "burnish" not in (tmp_path / "saved" / "config.json").read_text()
    assert (tmp_path / "saved" / "generation_config.json").read_text() == odd
    kind = (
        transformers.AutoModelForImageTextToText if universal or family in SEEING else transformers.AutoModelForCausalLM
    )
    theirs = dict(kind.from_pretrained(tmp_path / "saved", dtype=torch.float32).named_parameters())
    assert all(torch.equal(parameter, weights[name]) for name, parameter in theirs.items())
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template == model.tokenizer.chat_template


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


def few(model, *texts):
    return Encoded.cat([model.encode(*chat(text)[:1]) for text in texts or ("Hello", "How is it?")])


def test_a_class_that_burnish_has_never_seen_trains(unseen, files):
    assert load(unseen).tiers.full_logits
    run = run_of(files, "llama", f"model.path={unseen}", "model.lora=null")
    run.train("rewards.odd.weight=1")
    rows = [line for line in run.metrics if "actor/grad_norm" in line]
    assert len(rows) == 3
    assert all(row["actor/grad_norm"] > 0 for row in rows)
    assert all(row["rollout_corr/logprob_abs_diff"] < 1e-4 for row in rows)


def no_change(out, cache, mask, ids):
    return out.logits


def wrong_cache(out, cache, mask, ids):
    later = cache is not None and cache.get_seq_length() > ids.shape[1]
    return out.logits.roll(1, -1) if later else out.logits


def rows_change_one_another(out, cache, mask, ids):
    return out.logits.roll(int(ids.shape[1] > 1 and bool((ids != ids[:1]).any())), -1)


def any_padding_changes(out, cache, mask, ids):
    return out.logits.roll(int((mask == 0).any()), -1)


def fewer_logits(out, cache, mask, ids):
    return out.logits[..., :-1]


@pytest.mark.parametrize(
    ("change", "reads_mask", "tiers"),
    [
        (no_change, True, {"padded": True, "mixes": True, "cacheless": False}),
        (wrong_cache, True, {"padded": True, "shared": False, "cacheless": True, "goes_on": False}),
        # padding on the left changes it: prompts of one length decode together, others do not
        (no_change, False, {"padded": True, "mixes": False, "cached": "equal"}),
        (rows_change_one_another, True, {"scored": "one", "cached": "one"}),
        (any_padding_changes, True, {"padded": False, "shared": False, "cached": "equal"}),
        (fewer_logits, True, {"full_logits": True}),
    ],
)
def test_what_a_class_gets_wrong_is_not_used(change, reads_mask, tiers, unseen, monkeypatch):
    own, rows = UnseenForCausalLM.forward, []

    def forward(self, *args, attention_mask=None, past_key_values=None, **kwargs):
        rows.append(len(kwargs["input_ids"]))
        mask = attention_mask if reads_mask else None
        out = own(self, *args, attention_mask=mask, past_key_values=past_key_values, **kwargs)
        out.logits = change(out, past_key_values, attention_mask, kwargs["input_ids"])
        return out

    monkeypatch.setattr(UnseenForCausalLM, "forward", forward)
    model = load_universal(unseen)
    assert {name: getattr(model.tiers, name) for name in tiers} == tiers
    assert not (model.keeps_turns and change is wrong_cache)
    prompts = few(model, "Hello", "How is it?", "Howdy", "How am I??")
    assert [prompts.lengths.index(length) for length in prompts.lengths] == [0, 1, 0, 1]
    rows.clear()
    sampling = Sampling(max_new_tokens=5, min_new_tokens=5)
    completion = decode(model, model.network, prompts, [0, 1, 2, 3], [0, 1, 2, 3], sampling)
    assert max(rows) == {"one": 1, "equal": 2, "any": 4}[model.tiers.cached]
    torch.testing.assert_close(completion.logprob, own_logprobs(model, completion, 1.0), **TIGHT)
    if not model.tiers.padded:
        with pytest.raises(UserError, match="UnseenForCausalLM"):
            model.require_single_forward()


def sees_later_tokens(out, ids, seen):
    return out.logits + out.logits.mean(1, keepdim=True)


def fails_on_responses(out, ids, seen):
    seen.append(int(ids[0, -1]))
    if out.logits.shape[1] == 1 and seen[-1] != seen[0]:  # after the first token of a response
        raise ValueError("there is a response")
    return out.logits


@pytest.mark.parametrize(
    ("change", "says"), [(sees_later_tokens, "UnseenForCausalLM"), (fails_on_responses, "there is a response")]
)
def test_a_class_that_can_not_be_trained_is_refused(change, says, unseen, monkeypatch):
    own, seen = UnseenForCausalLM.forward, []

    def forward(self, *args, **kwargs):
        out = own(self, *args, **kwargs)
        out.logits = change(out, kwargs["input_ids"], seen)
        return out

    monkeypatch.setattr(UnseenForCausalLM, "forward", forward)
    with pytest.raises(UserError, match=says):
        load_universal(unseen)


def test_a_head_under_the_name_of_a_decoder_is_not_taken_for_one(unseen, monkeypatch):
    monkeypatch.setattr(UnseenForCausalLM, "get_decoder", lambda self: self.get_output_embeddings())
    model = load_universal(unseen)
    assert model.text(model.network) is model.network.base_model


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1.0), ("float32", 0.1), ("bfloat16", 0.1)])
@pytest.mark.parametrize("kind", [transformers.BertLMHeadModel, transformers.XLNetLMHeadModel])
def test_an_encoder_is_refused_however_small_its_weights_are(kind, dtype, scale, tmp_path):
    sizes = {"d_model": 32, "n_layer": 2} if kind is transformers.XLNetLMHeadModel else {"hidden_size": 32}
    written(tmp_path, name=kind.config_class.model_type, model=kind.__name__, config=sizes)
    network = kind.from_pretrained(tmp_path)
    for weight in network.parameters():
        weight.data *= scale
    network.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=kind.__name__):
        load_universal(tmp_path, dtype=dtype)


@pytest.mark.parametrize(
    ("config", "names"), [(transformers.T5Config(), "encoder"), (transformers.CLIPConfig(), "model_type clip")]
)
def test_what_writes_no_text_by_itself_is_refused_before_its_weights_are_read(config, names, tmp_path):
    config.save_pretrained(tmp_path)  # without weights
    with pytest.raises(UserError, match=names):
        load_universal(tmp_path)


def test_a_decoder_that_transformers_lists_among_those_that_translate_is_read(tmp_path, monkeypatch):
    transformers.AudioFlamingo3Config().save_pretrained(tmp_path)
    assert class_that_reads(tmp_path, monkeypatch) is transformers.AutoModelForSeq2SeqLM


@THOROUGH
def test_a_class_that_counts_positions_otherwise_counts_them_itself(tmp_path):
    """RoBERTa's begin behind the number of its padding token, which the rule for decoding doesn't know."""
    written(tmp_path, name="roberta", model="RobertaForCausalLM", config={"is_decoder": True, "hidden_size": 32})
    model = load_universal(tmp_path)
    assert not model.forwards.counts
    completion = decode(model, model.network, few(model), [0, 1, 1], [1, 2, 3], Sampling(max_new_tokens=6))
    torch.testing.assert_close(completion.logprob, own_logprobs(model, completion, 1.0), **TIGHT)


def test_a_class_whose_parts_have_their_layers_in_configurations_of_their_own_is_loaded(tmp_path):
    part = {"vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
            "intermediate_size": 48, "max_position_embeddings": 4096}  # fmt: skip
    both = {"encoder_config": {**part, "hidden_size_global": 32}, "decoder_config": {**part, "hidden_size_global": 32}}
    hashes = {"encoder_hash_byte_group_size": [3], "encoder_hash_byte_group_vocab": 64}
    config = {**both, **hashes, "patcher_config": part, "global_config": part, "max_position_embeddings": 4096}
    written(tmp_path, name="blt", model="BltForCausalLM", config=config)
    assert outlined(tmp_path).attention_width == 32


def test_vllm_is_refused_for_a_class_without_code_before_weights_are_loaded(files, tmp_path):
    python = ["rollout.engine=vllm", "rollout.vllm.python=/usr/bin/python3"]
    told = refused(files, "gemma3", *python)
    assert "rollout.vllm" in told
    assert "model_type gemma3" in told


# How long a prompt may be with its response

THETA = {"rope_theta": 10000.0}
SCALED = {"factor": 4.0, **THETA}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3, **SCALED}
PLAIN = {"rope_type": "default", **THETA}
DYNAMIC = {"rope_type": "dynamic", **SCALED}


@pytest.mark.parametrize(
    ("rope", "most", "name"),
    [
        (PLAIN, 256, "max_position_embeddings"),
        ({"rope_type": "linear", **SCALED}, 1024, "max_position_embeddings"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 128, **SCALED}, 512, "max_position_embeddings"),
        (DYNAMIC, 256, "dynamic"),
        ({**LONG, "original_max_position_embeddings": 64}, 64, "LongRoPE"),
        ({"full_attention": DYNAMIC, "sliding_attention": PLAIN}, 256, "dynamic"),
        ({"full_attention": PLAIN, "sliding_attention": PLAIN}, 256, "max_position_embeddings"),
    ],
)
def test_rows_end_where_angles_of_tokens_before_would_change(rope, most, name):
    by_layer = any(isinstance(one, dict) for one in rope.values())
    config = transformers.LlamaConfig(
        max_position_embeddings=256, head_dim=6, rope_parameters=PLAIN if by_layer else rope
    )
    config.rope_parameters = rope  # Llama has the same for all layers, and would refuse others
    found = positions(config)
    assert found.most == most
    assert name in found.name


def test_a_length_below_nothing_is_no_limit_of_positions():
    assert positions(transformers.XLNetConfig()).most > 1 << 30  # its configuration says -1


def test_angles_of_a_longrope_stay_up_to_that_and_change_behind_it(tmp_path):
    rope = {**LONG, "original_max_position_embeddings": 12}
    model = load_universal(tiny_language(tmp_path, "llama", rope_parameters=rope))
    model.network.set_attn_implementation("sdpa")  # called on its own
    ids = torch.arange(4, 4 + model.max_positions + 1)[None]
    with torch.no_grad():
        short, longest, beyond = (model.network(input_ids=ids[:, :length]).logits[:, :6] for length in (6, 12, 13))
    assert model.max_positions == 12
    torch.testing.assert_close(longest, short)
    assert (beyond - short).abs().max() > 1e-3
