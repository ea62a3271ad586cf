"""Another tokenizer or chat template in the place of the model's own: read, checked, and written along."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from burnish.config import load
from burnish.models.language.loading import check_words, load_language_model, load_outline, read_config
from burnish.models.language.overlaid import copy_words, reading_lines
from burnish.options.language import LanguageModelOptions
from burnish.utils.errors import UserError
from tests.support.tiny_language import chat, picture, tiny_language

OWN = "{% for m in messages %}<q>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
PARTS = (
    "{% for m in messages %}<q>{% for part in m.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)


@pytest.fixture
def folder(tmp_path):
    return tiny_language(tmp_path / "model", "qwen2", vocab_size=300)


def options(folder, **given) -> LanguageModelOptions:
    return LanguageModelOptions(path=str(folder), device="cpu", **given)


def said(model, *parts) -> str:
    return model.chat.render(chat(*parts)[0])[0]


def test_a_template_of_ones_own_is_used_and_saved_with_the_model(folder, tmp_path):
    (tmp_path / "own.jinja").write_text(OWN)
    for given in (OWN, str(tmp_path / "own.jinja")):
        model = load_language_model(options(folder, chat_template=given))
        assert said(model, "hi") == "<q>hi<a>"
    model.save(tmp_path / "saved", dict(model.network.state_dict()))
    assert not any(path.is_symlink() for path in (tmp_path / "saved").rglob("*"))
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template == OWN
    assert said(load_language_model(options(tmp_path / "saved")), "hi") == "<q>hi<a>"
    assert said(load_language_model(options(folder)), "hi") != "<q>hi<a>"


@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm"])
def test_a_template_replaces_that_of_a_processor_too(family, tmp_path):
    folder = tiny_language(tmp_path / "model", family)
    template = (
        PARTS if family == "qwen2_5_vl" else PARTS.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    )
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "old"}))
    model = load_outline(options(folder, chat_template=template))
    text = said(model, picture(0), "hi")
    assert text.startswith("<q>")
    assert text.endswith("hi")
    encoded = model.encode(*chat(picture(0), "hi")[:2])
    assert torch.isin(encoded.ids[0], model.placeholders).any()


def test_another_tokenizer_is_read_with_its_own_template_and_written_beside_an_adapter(folder, tmp_path):
    other = AutoTokenizer.from_pretrained(folder)
    other.add_tokens(["<one>"], special_tokens=True)
    other.chat_template = OWN
    other.save_pretrained(tmp_path / "other")
    given = options(folder, tokenizer=str(tmp_path / "other"))
    check_words(given)
    model = load_language_model(given)
    assert said(model, "hi") == "<q>hi<a>"
    assert model.tokenizer.convert_tokens_to_ids("<one>") == len(other) - 1
    assert model.path.name == folder.name
    assert sorted(read_config(options(folder))[1].items()) == sorted(read_config(given)[1].items())
    (tmp_path / "adapter").mkdir()
    copy_words(given, model.path, tmp_path / "adapter")
    again = AutoTokenizer.from_pretrained(tmp_path / "adapter")
    assert (again.chat_template, len(again)) == (OWN, len(other))
    assert not list((tmp_path / "adapter").glob("*.safetensors"))
    assert reading_lines(given, Path("base"), Path("a")) == ['tokenizer = AutoTokenizer.from_pretrained("a")']


def test_without_them_nothing_is_linked_copied_or_said(folder, tmp_path):
    plain = options(folder)
    assert read_config(plain)[0] == folder
    (tmp_path / "adapter").mkdir()
    copy_words(plain, folder, tmp_path / "adapter")
    assert not list((tmp_path / "adapter").iterdir())
    assert reading_lines(plain, Path("base"), None) == []


def test_a_tokenizer_with_tokens_that_the_model_lacks_is_refused(folder, tmp_path):
    other = AutoTokenizer.from_pretrained(folder)
    size = read_config(options(folder))[1]["vocab_size"]
    other.add_tokens([f"<{i}>" for i in range(size)])
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(
        UserError, match=rf"model\.tokenizer is .*other, which has token \d+ .*, but .* has {size} tokens"
    ):
        check_words(options(folder, tokenizer=str(tmp_path / "other")))


def test_a_tokenizer_with_other_tokens_for_pictures_is_refused(tmp_path):
    folder = tiny_language(tmp_path / "model", "qwen2_5_vl")
    shutil.copytree(folder, tmp_path / "other", ignore=shutil.ignore_patterns("*.safetensors"))
    check_words(options(folder, tokenizer=str(tmp_path / "other")))
    for file in (tmp_path / "other").glob("tokenizer*.json"):
        file.write_text(file.read_text().replace("<|image_pad|>", "<|no_picture|>"))
    with pytest.raises(
        UserError, match=r"is '<\|no_picture\|>', but .* takes it for '<\|image_pad\|>' \(image_token_id\)"
    ):
        check_words(options(folder, tokenizer=str(tmp_path / "other")))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tokenizer": "{tmp}/nowhere"}, r"model\.tokenizer is .*nowhere, which is not a directory"),
        ({"tokenizer": "{tmp}/empty"}, r"model\.tokenizer is .*empty, which has no tokenizer_config\.json"),
        ({"chat_template": "{tmp}/nowhere.jinja"}, "neither a file nor a template"),
        ({"chat_template": "{% for m in messages %}{{ m }}"}, r"model\.chat_template is no template of Jinja: line 1"),
    ],
)
def test_what_cannot_be_read_is_refused_before_weights(given, why, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    config = load("vlm_quickstart", [])
    named = {name: value.replace("{tmp}", str(tmp_path)) for name, value in given.items()}
    config.model = options(folder, **named)
    with pytest.raises(UserError, match=why):
        config.check_model(folder)


def test_tags_around_responses_are_no_mistake(folder):
    template = "{% for m in messages %}{% generation %}{{ m.content }}{%- endgeneration -%}{% endfor %}"
    assert said(load_outline(options(folder, chat_template=template)), "hi") == "hi"
