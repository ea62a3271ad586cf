import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from burnish.rewards.judging import judge
from burnish.rewards.text.base import Response
from burnish.types.media import Media
from burnish.types.prompt import Message, Part, Prompt
from tests.support.asked import reward

WORDS = ["[PAD]", "[SEP]", "user", "assistant", "one", "two", "three", "?"]
CHAT = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} [SEP] {% endfor %}"
TEXTS = ["one", "two three two one", "three three", "one two one two one two"]


def tokenizer(chat: str | None) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if chat is None:
        made.post_processor = processors.TemplateProcessing(
            single="$A [SEP]", pair="$A [SEP] $B:1 [SEP]:1", special_tokens=[("[SEP]", 1)]
        )
    reads = ["input_ids", "token_type_ids", "attention_mask"]
    pad = {"pad_token": "[PAD]", "model_input_names": reads} if chat is None else {}
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="[SEP]", chat_template=chat, **pad)


def llama_config(**options) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        **options,
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    network = LlamaForSequenceClassification(llama_config(num_labels=1))
    torch.nn.init.normal_(network.score.weight)
    network.save_pretrained(folder)
    tokenizer(CHAT).save_pretrained(folder)
    return str(folder)


def ask(path: str, *texts: str, prompt: Prompt | None = None, **options) -> list:
    one = reward("reward_model", path=path, **options)
    prompt = prompt or Prompt(text="one ?")
    one.check([prompt])
    return judge(one, [Response(text) for text in texts], [prompt] * len(texts))


def test_a_score_is_the_logit_at_the_end_of_the_conversation(llama):
    network = LlamaForSequenceClassification.from_pretrained(llama).eval()
    (verdict,) = ask(llama, "two three")
    ids = tokenizer(CHAT)("user one ? [SEP] assistant two three [SEP]").input_ids
    network.config.pad_token_id = 0
    torch.testing.assert_close(verdict.value, network(torch.tensor([ids])).logits.item())


def test_batches_and_their_order_change_no_score(llama):
    alone = [verdict.value for verdict in ask(llama, *TEXTS, batch_size=1)]
    assert len(set(alone)) == len(TEXTS)
    for texts in (TEXTS, TEXTS[::-1]):
        together = ask(llama, *texts, batch_size=3)
        by_text = dict(zip(texts, (verdict.value for verdict in together), strict=True))
        assert [by_text[text] for text in TEXTS] == pytest.approx(alone, abs=1e-6)


def test_a_model_without_a_template_reads_a_pair(tmp_path):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_labels=1,
    )
    network = BertForSequenceClassification(config).eval()
    network.save_pretrained(tmp_path)
    read = tokenizer(None)
    read.save_pretrained(tmp_path)
    verdicts = ask(str(tmp_path), *TEXTS)
    for text, verdict in zip(TEXTS, verdicts, strict=True):
        with torch.inference_mode():
            logit = network(**read("one ?", text, return_tensors="pt")).logits.item()
        assert verdict.value == pytest.approx(logit, abs=1e-6)


def test_a_conversation_too_long_is_missing_never_cut(llama):
    short, long = ask(llama, "one", "one " * 30, max_length=12)
    assert short.value is not None
    assert long.value is None
    assert "exceed max_length=12" in long.note


def test_pictures_are_refused_or_left_out(llama):
    import numpy as np

    parts = (Part("image"), Part("text", "one ?"))
    picture = Media.array(np.zeros((2, 2, 3), dtype=np.uint8))
    prompt = Prompt(text="<image>one ?", messages=(Message("user", parts),), images=(picture,))
    with pytest.raises(ValueError, match="media=leave_out"):
        ask(llama, "two", prompt=prompt)
    assert ask(llama, "two", prompt=prompt, media="leave_out")[0].value == ask(llama, "two")[0].value


def test_what_is_no_reward_model_is_refused(tmp_path, llama):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        ask(str(tmp_path), "a")
    LlamaForCausalLM(llama_config()).save_pretrained(tmp_path / "causal")
    LlamaForSequenceClassification(llama_config(num_labels=2)).save_pretrained(tmp_path / "two")
    for name, why in (("causal", r"lacks score\.weight, which .*ForSequenceClassification"), ("two", "has 2 labels")):
        tokenizer(CHAT).save_pretrained(tmp_path / name)
        one = reward("reward_model", path=str(tmp_path / name))
        with pytest.raises(ValueError, match=why):
            one.prepare()
        assert judge(one, [Response("a")], [Prompt(text="?")])[0].value is None
