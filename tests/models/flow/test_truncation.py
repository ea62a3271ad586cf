"""Prompts that are longer than what a pipeline's text encoders read."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import pytest

import burnish.models.flow.pipeline
from burnish.config import load as load_config
from burnish.models.flow.loading import check_parts
from burnish.models.flow.truncation import longer, truncated
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.tasks import assemble
from burnish.utils.errors import UserError


class Tokenizer:
    """A token for each word."""

    def __init__(self, most):
        self.model_max_length = most

    def num_special_tokens_to_add(self):
        return 0

    def __call__(self, texts, add_special_tokens=True):
        return SimpleNamespace(input_ids=[text.split() for text in texts])


class Plain:
    def __init__(self, *most):
        self.tokenizers = [Tokenizer(one) for one in most]

    def __call__(self, prompt): ...


class Chosen(Plain):
    def __call__(self, prompt, max_sequence_length=6): ...


FIVE, SEVEN = "a b c d e", "a b c d e f g"


def said(pipeline, length, texts):
    return truncated(type(pipeline), pipeline.tokenizers, length, set(texts))


def test_a_text_that_one_encoder_reads_is_whole():
    assert said(Plain(3, 6), None, [FIVE]) == ""
    found = said(Plain(3, 6), None, [FIVE, SEVEN, f"{SEVEN} h", SEVEN])
    assert found.startswith("2 prompts have more tokens than a Plain reads")
    assert "'a b c d e f g h' has 8, of which it reads 6; shorten them" in found
    assert said(Plain(), None, [SEVEN]) == ""


class Counting(Tokenizer):
    """A token for each word, and two more for a text of several if ``joining``; keeps what it read."""

    def __init__(self, joining=0):
        super().__init__(10)
        self.read, self.joining = [], joining

    def __call__(self, texts, add_special_tokens=True):
        self.read += texts
        more = [["+"] * self.joining * (len(text.split()) > 1) for text in texts]
        return SimpleNamespace(input_ids=[text.split() + own for text, own in zip(texts, more, strict=True)])


def test_a_text_whose_words_are_few_tokens_is_not_read():
    tokenizer = Counting()
    texts = [f"photographs of {i} mountains" for i in range(5000)]
    long = "mountains " * 11
    assert longer(tokenizer, [*texts, long, "é" * 3, "ééé ééé"], 10) == {long: 11}
    assert "photographs of 4000 mountains" not in tokenizer.read
    assert len(tokenizer.read) < 1100


def test_words_are_no_bound_where_a_text_has_more_tokens():
    texts = [f"photographs of {i} mountains" for i in range(1500)] + ["mountains " * 9]
    assert longer(Counting(2), texts, 10) == {texts[-1]: 11}


def test_the_length_that_is_asked_for_counts():
    assert "reads 6; shorten them, or set rollout.max_sequence_length" in said(Chosen(100), None, [SEVEN])
    assert said(Chosen(100), 7, [SEVEN]) == ""
    assert said(Chosen(6), 7, [SEVEN])


@pytest.mark.parametrize("name", ["sd1.5", "qwen-image-edit"])
def test_it_is_said_once_before_weights_are_loaded(name, tmp_path, monkeypatch, caplog):
    write(describe(name), tmp_path / "model", 0)
    (tmp_path / "prompts.txt").write_text('a "cat"\n' + 'a "dog" ' * 900 + "\n")

    def load(*args, **more):
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(burnish.models.flow.pipeline, "load_mapped", load)
    options = [f"model.path={tmp_path / 'model'}", f"data.train_files={tmp_path / 'prompts.txt'}", "model.device=cpu"]
    assembly = assemble(load_config("quickstart", options))
    check_parts(assembly.config.model, assembly.config.rollout, assembly.train_prompts)
    assert len([one for one in caplog.records if "more tokens than a" in one.getMessage()]) == 1


def flux(folder, prompts):
    write(describe("flux-dev"), folder / "model", 0)
    (folder / "prompts.txt").write_text("".join(f"{one}\n" for one in prompts))
    options = [f"model.path={folder / 'model'}", f"data.train_files={folder / 'prompts.txt'}", "model.device=cpu"]
    options += ["data.val_files=null", f"output_dir={folder / 'run'}"]
    return assemble(load_config("quickstart", options))


def test_a_prompt_that_may_be_too_long_is_tokenised_once_at_the_start(tmp_path, monkeypatch):
    import transformers

    told, before = Counter(), transformers.PreTrainedTokenizerBase.__call__

    def called(self, text, *args, **more):
        for one in [text] if isinstance(text, str) else text:
            told[id(self), one] += 1
        return before(self, text, *args, **more)

    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "__call__", called)
    assembly = flux(tmp_path, ['a "cat"', 'a "dög"', 'a "dög"'])
    assembly.check_data()
    assembly.roles.model.check(assembly.train_prompts)
    assert Counter(text for _, text in told.elements()) == {'a "dög"': 1}  # the others are too short to be too long


def test_a_tokenizer_of_another_model_is_refused_before_weights_are_loaded(tmp_path):
    assembly = flux(tmp_path, ['a "cat"'])
    for name in ("text_encoder", "text_encoder_2"):
        config = tmp_path / "model" / name / "config.json"
        content = config.read_text()
        config.write_text(json.dumps(json.loads(content) | {"vocab_size": 5}))
        with pytest.raises(UserError, match=rf"has token id \d+, but {name} has only 5: the tokenizer belongs to"):
            assembly.check_data()
        config.write_text(content)
    assembly.check_data()
