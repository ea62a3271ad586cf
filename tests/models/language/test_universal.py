"""Classes of transformers that Burnish has no code for: scored, sampled and trained as their own forwards compute."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AudioFlamingo3Config,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    BertLMHeadModel,
    CLIPConfig,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    XLNetConfig,
    XLNetLMHeadModel,
)

from burnish.language.decoding import decode
from burnish.language.logprobs import response_logprobs
from burnish.language.sampling import Sampling
from burnish.models.language.loading import check_own_family, family_of, positions_of
from burnish.models.language.universal import UniversalModel
from burnish.models.tiny.language import TinyLanguage
from burnish.models.tiny.language.build import write
from burnish.options.flow import ModelOptions
from burnish.options.language import LanguageModelOptions
from burnish.types.completion import Encoded
from burnish.utils import random
from burnish.utils.errors import UserError
from tests.support.language_runs import SMALL, assembly_of, trained, weights
from tests.support.language_samples import folder_of, model_of, responses
from tests.support.tiny_language import chat, picture, tiny_language
from tests.support.universal import (
    gradients,
    load_universal,
    own_logprobs,
    prompts_for,
    universal_folder,
    universal_model,
)

SEEING = ["gemma3", "qwen3_5", "internvl"]
MORE = ["llava_onevision", "llama4", "idefics3", "minicpmv4_6", "glm4v_moe", "paligemma", "mistral3", "gemma4"]
READING = ["granite", "gpt_oss"]
CASES = [*SEEING, *(pytest.param(name, marks=pytest.mark.thorough) for name in [*MORE, *READING])]
TIGHT = {"rtol": 0, "atol": 1e-4}
LETTERS = "rewards.letters={name: function, path: 'tests.support.reward_functions:letters'}"
RUN = [*SMALL, "rollout.max_new_tokens=6", "trainer.mini_batch_size=4", LETTERS]


def sampled(name, *, temperature=0.8, batch_size=256, prompts=None, count=3, length=8):
    model = universal_model(name)
    prompts = prompts_for(name) if prompts is None else prompts
    index = [row for row in range(len(prompts)) for _ in range(count)]
    keys = [
        random.key(0, "universal", *map(int, prompts.ids[row][-8:]), place % count) for place, row in enumerate(index)
    ]
    sampling = Sampling(max_new_tokens=length, temperature=temperature)
    return model, decode(model, model.network, prompts, index, keys, sampling, batch_size=batch_size)


def test_own_decoding_is_tried_on_prompts_that_it_takes():
    """GLM's layers have norms that Llama's don't; its videos keep a batch from being decoded by Burnish's layers."""
    model = universal_model("glm46v")
    alone = model.encode([{"role": "user", "content": [{"type": "text", "text": "Why?"}]}])
    completion = decode(model, model.network, alone, [0], [7], Sampling(max_new_tokens=8))
    torch.testing.assert_close(completion.logprob, own_logprobs(model, completion, 1.0), **TIGHT)


@pytest.mark.parametrize("name", CASES)
def test_sampler_and_trainer_have_the_log_probs_of_the_class(name):
    model, completion = sampled(name)
    wanted = own_logprobs(model, completion, 0.8, response_kind=int(name == "paligemma"))
    torch.testing.assert_close(completion.logprob, wanted, **TIGHT)
    made_up = responses(model, completion.prompts.table, [0, 1, 1, 0], [5, 9, 1, 7])
    for some in (completion, made_up):
        wanted = own_logprobs(model, some, 0.8, response_kind=int(name == "paligemma"))
        for layout in ("padded", "shared", "auto"):
            with torch.no_grad():
                ours = response_logprobs(model, model.network, some, temperature=0.8, layout=layout)
            torch.testing.assert_close(ours.logprob, wanted, **TIGHT)
            assert (ours.entropy[some.mask] > 0).all()


@pytest.mark.parametrize("name", CASES)
def test_a_response_depends_on_its_own_key_alone(name):
    _, together = sampled(name)
    _, apart = sampled(name, batch_size=2)
    assert torch.equal(together.ids, apart.ids)
    prompts = prompts_for(name)
    _, alone = sampled(name, prompts=prompts.select([len(prompts) - 1]))
    assert torch.equal(alone.ids, together.ids[-3:, : alone.ids.shape[1]])


@pytest.mark.parametrize("name", CASES)
def test_greedy_responses_are_those_of_generate(name):
    model, completion = sampled(name, temperature=0, count=1)
    for row, (ids, features) in enumerate(
        zip(completion.prompts.table.ids, completion.prompts.table.features, strict=True)
    ):
        inputs = {key: value for key, value in features.tensors.items() if key in model.forwards.accepted}
        inputs |= {kind: value[None] for kind, value in features.kinds.items() if kind in model.forwards.accepted}
        theirs = model.network.generate(
            input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], **inputs, max_new_tokens=8, do_sample=False,
            eos_token_id=list(model.stop), suppress_tokens=model.banned.tolist() or None,
        )[0, len(ids) :]  # fmt: skip
        length = int(completion.length[row])
        assert completion.ids[row, :length].tolist() == theirs[:length].tolist()


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_shared_prompts_are_those_of_separate_ones(name):
    model, completion = sampled(name)
    if not model.tiers.shared:
        pytest.skip(model.tiers.name)
    names = [key for key, value in model.text(model.network).named_parameters() if value.ndim == 2]
    decoder = {id(value): key for key, value in model.network.named_parameters()}
    inside = dict(model.text(model.network).named_parameters())
    chosen = [decoder[id(inside[key])] for key in (names[0], names[len(names) // 2])]

    def loss(layout):
        scores = response_logprobs(model, model.network, completion, temperature=1.0, layout=layout)
        return (scores.logprob * torch.linspace(-1, 1, scores.logprob.numel()).view_as(scores.logprob)).sum()

    apart, shared = (gradients(model, lambda layout=layout: loss(layout), chosen) for layout in ("padded", "shared"))
    for one, other in zip(apart, shared, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-3, atol=float(1e-3 * one.abs().max()))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gemma3", []),
        pytest.param("qwen3_5", ["model.lora.rank=4"], marks=pytest.mark.slow),
        pytest.param("internvl", ["algorithm=ppo", "critic.warmup_updates=0"], marks=pytest.mark.slow),
        pytest.param("internvl", ["model.gradient_checkpointing=true"], marks=pytest.mark.thorough),
    ],
)
def test_five_updates(name, more):
    assembly = assembly_of(*RUN, f"model.path={universal_folder(name)}", *more)
    before = weights(assembly)
    rows = trained(assembly, 1, 5)
    assert all(row["actor/grad_norm"] > 0 for row in rows)
    assert all(row["rollout_corr/logprob_abs_diff"] < 1e-4 for row in rows)
    assert not torch.equal(before, weights(assembly))


def test_what_is_saved_is_loaded_to_the_same_log_probs(tmp_path):
    model, completion = sampled("gemma3", count=1)
    changed = {
        name: value * 1.01 if value.ndim == 2 else value.clone() for name, value in model.network.state_dict().items()
    }
    model.save(tmp_path / "saved", changed)
    theirs = AutoModelForMultimodalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    network = copy.deepcopy(model.network)
    network.load_state_dict(changed)
    with torch.no_grad():
        ours = response_logprobs(model, network, completion, temperature=1.0).logprob
    wanted = own_logprobs(
        SimpleNamespace(network=theirs.eval(), forwards=model.forwards, banned=model.banned), completion, 1.0
    )
    torch.testing.assert_close(ours, wanted, **TIGHT)
    assert not torch.allclose(completion.logprob, wanted, atol=1e-3)


def test_hand_written_families_compute_what_the_universal_path_does():
    own, universal = model_of("qwen2_5_vl"), load_universal(folder_of("qwen2_5_vl"))
    scores = []
    for model in (own, universal):
        parts = [("How are you?",), ("What is ", picture(0), "?"), (picture(1), "or", picture(2, 24, 40))]
        encoded = type(model.encode(*chat("a")[:2])).cat([model.encode(*chat(*some)[:2]) for some in parts])
        completion = responses(model, encoded, [0, 1, 1, 2], [5, 9, 1, 7])
        completion.ids.remainder_(90)
        with torch.no_grad():
            scores.append((encoded, response_logprobs(model, model.network, completion, temperature=1.0).logprob))
    (mine, ours), (other, theirs) = scores
    assert [ids.tolist() for ids in mine.ids] == [ids.tolist() for ids in other.ids]
    only = universal.banned[~torch.isin(universal.banned, own.banned)]
    assert len(only)  # it bans more: starts and ends of pictures
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05)


def test_vllm_is_refused_before_weights_are_loaded():
    options = LanguageModelOptions(path=str(universal_folder("gemma3")))
    with pytest.raises(UserError, match=r"rollout\.vllm can't sample for .* \(model_type gemma3\)"):
        check_own_family(options)
    check_own_family(LanguageModelOptions(path=str(folder_of("qwen2_5_vl"))))


def test_user_text_stays_text():
    model = universal_model("gemma3")
    encoded = model.encode(*chat("a <start_of_image> b", picture(0))[:2])
    plain = model.encode(*chat("a b", picture(0))[:2])
    image = model.processor.image_token_id
    assert int((encoded.ids[0] == image).sum()) == int((plain.ids[0] == image).sum())
    assert "<start_of_image>" in model.tokenizer.decode(encoded.ids[0]).replace(" ", "").replace("▁", "")


class UnseenConfig(LlamaConfig):
    model_type = "never_seen"


class UnseenForCausalLM(LlamaForCausalLM):
    """Llama with a head that no rule knows."""

    config_class = UnseenConfig

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = out.logits - 0.1 * out.logits.square()
        return out


@pytest.fixture(scope="module")
def unseen(tmp_path_factory):
    AutoConfig.register("never_seen", UnseenConfig, exist_ok=True)
    AutoModelForCausalLM.register(UnseenConfig, UnseenForCausalLM, exist_ok=True)
    folder = tiny_language(tmp_path_factory.mktemp("unseen"), "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "never_seen"}))
    return folder


def test_a_class_that_burnish_has_never_seen_trains(unseen, tmp_path):
    asked = tmp_path / "asked.jsonl"
    asked.write_text(
        "".join(json.dumps({"prompt": f"What is {n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(8))
    )
    words = [f"data.train_files={asked}", f"data.val_files={asked}"]
    config = json.loads((unseen / "config.json").read_text())
    assert family_of(ModelOptions(path=str(unseen)), config) is UniversalModel
    assembly = assembly_of(*RUN, *words, f"model.path={unseen}")
    assert assembly.roles.model.tiers.full_logits
    rows = trained(assembly, 1, 3)
    assert all(row["actor/grad_norm"] > 0 for row in rows)
    assert all(row["rollout_corr/logprob_abs_diff"] < 1e-4 for row in rows)


def few(model):
    return Encoded.cat([model.encode(*chat(text)[:1]) for text in ("Hello", "How is it?")])


def test_a_model_whose_cache_is_wrong_decodes_without_it(unseen, monkeypatch):
    own = UnseenForCausalLM.forward

    def forward(self, *args, past_key_values=None, **kwargs):
        out = own(self, *args, past_key_values=past_key_values, **kwargs)
        if past_key_values is not None and past_key_values.get_seq_length() > kwargs["input_ids"].shape[1]:
            out.logits = out.logits.roll(1, -1)
        return out

    monkeypatch.setattr(UnseenForCausalLM, "forward", forward)
    model = load_universal(unseen)
    assert model.tiers.name.endswith("decoding without a cache")
    assert (model.tiers.padded, model.tiers.shared, model.keeps_turns) == (True, False, False)
    completion = decode(model, model.network, few(model), [0, 1, 1], [1, 2, 3], Sampling(max_new_tokens=6))
    torch.testing.assert_close(completion.logprob, own_logprobs(model, completion, 1.0), **TIGHT)


def test_a_model_with_logits_for_fewer_tokens_than_its_head_has_rows_gives_its_own(unseen, monkeypatch):
    own = UnseenForCausalLM.forward

    def forward(self, *args, **kwargs):
        out = own(self, *args, **kwargs)
        out.logits = out.logits[..., :-1]
        return out

    monkeypatch.setattr(UnseenForCausalLM, "forward", forward)
    model = load_universal(unseen)
    completion = decode(model, model.network, few(model), [0, 1, 1], [1, 2, 3], Sampling(max_new_tokens=6))
    torch.testing.assert_close(completion.logprob, own_logprobs(model, completion, 1.0), **TIGHT)


def test_what_a_class_fails_with_is_told(unseen, monkeypatch):
    own, last = UnseenForCausalLM.forward, []

    def forward(self, *args, **kwargs):
        out = own(self, *args, **kwargs)
        last.append(int(kwargs["input_ids"][0, -1]))
        if out.logits.shape[1] == 1 and last[-1] != last[0]:  # after the first token of a response
            raise ValueError("there is a response")
        return out

    monkeypatch.setattr(UnseenForCausalLM, "forward", forward)
    with pytest.raises(UserError, match=r"a row of .* fails where its own forward does not: there is a response;"):
        load_universal(unseen)


def test_a_decoder_that_transformers_lists_among_those_that_translate_is_read(tmp_path, monkeypatch):
    AudioFlamingo3Config().save_pretrained(tmp_path)
    monkeypatch.setattr("burnish.models.language.universal.load_mapped", lambda kind, *_, **__: kind)
    assert UniversalModel._network(tmp_path, torch.float32) is AutoModelForSeq2SeqLM


@pytest.mark.parametrize(
    ("config", "said"), [(T5Config(), "is an encoder with a decoder"), (CLIPConfig(), "has model_type clip, for which")]
)
def test_what_writes_no_text_by_itself_is_refused_before_its_weights_are_read(config, said, tmp_path, monkeypatch):
    config.save_pretrained(tmp_path)
    monkeypatch.setattr("burnish.models.language.universal.load_mapped", lambda *_, **__: pytest.fail("weights"))
    with pytest.raises(UserError, match=said):
        load_universal(tmp_path)


@pytest.mark.thorough
def test_a_class_that_counts_positions_otherwise_counts_them_itself(tmp_path):
    """RoBERTa's begin behind the number of its padding token, which the rule for decoding doesn't know."""
    roberta = TinyLanguage(
        name="roberta", model="RobertaForCausalLM", tokenizer="pieces", config={"is_decoder": True, "hidden_size": 32}
    )
    write(roberta, tmp_path, 0)
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
    write(TinyLanguage(name="blt", model="BltForCausalLM", tokenizer="pieces", config=config), tmp_path, 0)
    model = UniversalModel.load(tmp_path, dtype=torch.float32, compute=torch.float32, device="cpu")
    assert model.attention_width == 32


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1.0), ("float32", 0.1), ("bfloat16", 0.1)])
@pytest.mark.parametrize("kind", [BertLMHeadModel, XLNetLMHeadModel])
def test_an_encoder_is_refused_however_small_its_weights_are(kind, dtype, scale, tmp_path):
    sizes = {"d_model": 32, "n_layer": 2} if kind is XLNetLMHeadModel else {"hidden_size": 32}
    name = kind.config_class.model_type
    write(TinyLanguage(name=name, model=kind.__name__, tokenizer="pieces", config=sizes), tmp_path, 0)
    network = kind.from_pretrained(tmp_path)
    for weight in network.parameters():
        weight.data *= scale
    network.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="tokens read those that come after them"):
        load_universal(tmp_path, dtype=dtype)


def test_a_length_below_nothing_is_no_limit_of_positions(tmp_path):
    """XLNet's configuration says -1."""
    XLNetConfig().save_pretrained(tmp_path)
    assert positions_of(ModelOptions(path=str(tmp_path))).most > 1 << 30


def test_a_model_whose_tokens_see_later_ones_is_refused(unseen, monkeypatch):
    own = UnseenForCausalLM.forward

    def forward(self, *args, **kwargs):
        out = own(self, *args, **kwargs)
        out.logits = out.logits + out.logits.mean(1, keepdim=True)
        return out

    monkeypatch.setattr(UnseenForCausalLM, "forward", forward)
    with pytest.raises(UserError, match="tokens read those that come after them"):
        load_universal(unseen)


def test_a_head_under_the_name_of_a_decoder_is_not_taken_for_one(unseen, monkeypatch):
    monkeypatch.setattr(UnseenForCausalLM, "get_decoder", lambda self: self.get_output_embeddings())
    model = load_universal(unseen)
    assert model.text(model.network) is model.network.base_model


def test_a_model_that_padding_on_the_left_changes_decodes_one_prompt_at_a_time(unseen, monkeypatch):
    own = UnseenForCausalLM.forward

    def forward(self, *args, attention_mask=None, **kwargs):
        return own(self, *args, attention_mask=None, **kwargs)

    monkeypatch.setattr(UnseenForCausalLM, "forward", forward)
    model = load_universal(unseen)
    assert (model.tiers.padded, model.tiers.mixes) == (True, False)
    completion = decode(model, model.network, few(model), [0, 1, 1], [1, 2, 3], Sampling(max_new_tokens=6))
    torch.testing.assert_close(completion.logprob, own_logprobs(model, completion, 1.0), **TIGHT)


def test_prompts_of_one_length_decode_together_where_others_do_not(unseen, monkeypatch):
    own, rows = UnseenForCausalLM.forward, []

    def forward(self, *args, attention_mask=None, **kwargs):
        rows.append(len(attention_mask))
        return own(self, *args, attention_mask=None, **kwargs)

    monkeypatch.setattr(UnseenForCausalLM, "forward", forward)
    model = load_universal(unseen)
    assert model.tiers.cached == "equal"
    prompts = Encoded.cat([model.encode(*chat(text)[:1]) for text in ("Hello", "How is it?", "Howdy", "How am I??")])
    assert [prompts.lengths.index(length) for length in prompts.lengths] == [0, 1, 0, 1]
    rows.clear()
    decode(model, model.network, prompts, [0, 1, 2, 3], [0, 0, 0, 0], Sampling(max_new_tokens=4, min_new_tokens=4))
    assert set(rows) == {2}


def test_a_model_whose_rows_change_one_another_has_each_alone(unseen, monkeypatch):
    own = UnseenForCausalLM.forward

    def forward(self, *args, attention_mask=None, **kwargs):
        out = own(self, *args, attention_mask=attention_mask, **kwargs)
        ids = kwargs["input_ids"]
        out.logits = out.logits.roll(int(ids.shape[1] > 1 and bool((ids != ids[:1]).any())), -1)
        return out

    monkeypatch.setattr(UnseenForCausalLM, "forward", forward)
    model = load_universal(unseen)
    assert (model.tiers.scored, model.tiers.cached) == ("one", "one")
    assert model.tiers.name == "tier 0: one prompt a forward"


def test_a_model_that_any_padding_changes_has_one_prompt_a_forward(unseen, monkeypatch):
    own = UnseenForCausalLM.forward

    def forward(self, *args, attention_mask=None, **kwargs):
        out = own(self, *args, attention_mask=attention_mask, **kwargs)
        out.logits = out.logits.roll(int((attention_mask == 0).any()), -1)
        return out

    monkeypatch.setattr(UnseenForCausalLM, "forward", forward)
    model = load_universal(unseen)
    assert not model.tiers.padded
    assert not model.tiers.shared
    with pytest.raises(UserError, match="can't have all prompts of a micro-batch in one forward"):
        model.require_single_forward()
