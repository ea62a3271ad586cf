"""Templates of questions over the keys of a record."""

import json

import pytest

from burnish.data.flow.prompts import read_prompts
from burnish.data.language.prompts import read_questions
from burnish.options.flow import PromptOptions
from burnish.options.language import LanguageDataOptions
from burnish.utils.errors import UserError


def questions(tmp_path, template, *records):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_questions(str(path), LanguageDataOptions(train_files=str(path), template=template))


CHOICES = {"question": "Which?", "choices": ["cat", "dog"], "meta": {"topic": "animals"}}
LISTED = "[{{ meta.topic }}] {{ content }}{% for one in choices %}\n{{ loop.index }}. {{ one | upper }}{% endfor %}"


def test_every_key_is_a_variable_and_content_is_the_question(tmp_path):
    (prompt,) = questions(tmp_path, LISTED, CHOICES)
    assert prompt.text == "[animals] Which?\n1. CAT\n2. DOG"
    (tmp_path / "format.jinja").write_text("{{ content | trim }} Think first.\n")
    (other,) = questions(tmp_path, str(tmp_path / "format.jinja"), CHOICES)
    assert other.text == "Which? Think first."


def test_of_messages_the_last_of_the_user_is_written_anew(tmp_path):
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]  # fmt: skip
    (prompt,) = questions(tmp_path, "<{{ content }}>", {"messages": chat})
    assert [turn.text for turn in prompt.turns] == ["S", "a", "b", "<c>"]


def test_a_generator_s_prompts_have_templates_too(tmp_path):
    (tmp_path / "a.txt").write_text("cube\n")
    keys = PromptOptions(template="a photo of a {{ content }}")
    assert [one.text for one in read_prompts(str(tmp_path / "a.txt"), keys)] == ["a photo of a cube"]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ chioces }}", r"data.jsonl:1: does not fit data.template: 'chioces' is undefined; its keys are 'question'"),
        ("{{ meta.none.deep }}", r"does not fit data.template: .*no attribute 'none'"),
        ("{{ 1 / 0 }}", r"does not fit data.template: division by zero"),
        ("{{ ''.__class__.__mro__ }}", r"does not fit data.template: access to attribute '__class__'.*unsafe"),
        ("{{ choices.append(1) }}", r"does not fit data.template: access to attribute 'append'.*unsafe"),
        ("{% for x in range(10000000) %}{% endfor %}", r"does not fit data.template: .*range"),
        ("{% if %}", r"data.template is '\{% if %\}', which is no Jinja template: .*line 1"),
        ("{{ content * 200000 }}", r"becomes a question of 1200000 characters"),
        ("none.jinja", r"none.jinja can't be read: there is no such file"),
        ("{{ ' ' }}", r"has an empty prompt"),
    ],
    ids=lambda value: value[:30],
)
def test_what_does_not_fit_is_named_with_its_record(tmp_path, template, why):
    with pytest.raises(UserError, match=why):
        questions(tmp_path, template, CHOICES)


def test_parts_of_messages_are_no_text_to_be_written_anew(tmp_path):
    chat = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    with pytest.raises(UserError, match=r"has no message of the user in plain text, which data\.template needs"):
        questions(tmp_path, "{{ content }}", {"messages": chat})
