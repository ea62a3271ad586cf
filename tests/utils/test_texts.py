"""Texts of strangers: JSON, patterns and chat templates within bounds, and nothing raw on a terminal."""

from __future__ import annotations

import io
import json
import logging

import pytest
from rich.table import Table

from burnish.utils import patterns, templates, terminal
from burnish.utils.patterns import pattern_complaint
from burnish.utils.templates import TemplateRefused, filled

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def test_patterns_of_a_foreign_tokenizer_are_tried_before_a_text_meets_them(tmp_path, monkeypatch, capfd):
    def complaint(*expressions):
        steps = [{"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated"} for one in expressions]
        told = {"pre_tokenizer": {"pretokenizers": steps}, "normalizer": None}
        (tmp_path / "tokenizer.json").write_text(json.dumps(told))
        return pattern_complaint(tmp_path)

    assert pattern_complaint(tmp_path) == complaint(QWEN, r"(?:\p{L}\p{M}*)+|\s+") == ""
    for expression in ("(foo|foofoo)+z", r"(\p{L}+\s?)+$"):
        said = complaint(QWEN, expression)
        assert f"{tmp_path}/tokenizer.json" in said
        assert repr(expression) in said
    assert capfd.readouterr() == ("", "")
    assert "33" in complaint(*"a" * 33)
    monkeypatch.setattr(patterns, "DEADLINE", 1)
    assert "1 s" in complaint(r"(\s*\s*\s*x)"), "one that takes too long is ended"


CHAT = [
    {"role": "user", "content": "a <b> é\n", "name": None},
    {"role": "assistant", "content": [{"type": "text", "text": "c"}, {"type": "image"}], "thinking": "d"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"of": [1, 2.5, None, True]}}}]
TEMPLATE = """
{%- set seen = namespace(roles=[]) %}{% for message in messages %}
  {% generation %}{{ bos_token }}{{ message.role }}{% endgeneration %}
  {% if message.role == 'assistant' %}{{ message.reasoning_content }}{% break %}{% endif %}
{{ message | tojson(indent=2) }} {{ tools | tojson }}
{% set seen.roles = seen.roles + [message.role] %}
{% endfor %}
{{ seen.roles | join(',') }}{% if add_generation_prompt %}{{ strftime_now('%Y') }}{% endif %}
"""


def values(tools=None):
    return {"messages": CHAT, "tools": tools, "documents": None, "add_generation_prompt": True, "bos_token": "<s>"}


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_chat_template_is_filled_in_as_by_transformers(tools):
    from transformers.utils.chat_template_utils import render_jinja_template

    chat = [{name: one for name, one in message.items() if one is not None} for message in CHAT]
    options = {"tools": tools, "chat_template": TEMPLATE, "add_generation_prompt": True, "bos_token": "<s>"}
    theirs, _ = render_jinja_template([chat], **options)
    assert filled(TEMPLATE, values(tools)) == theirs[0]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"), ("{% for", "end of template"),
        ("{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}", "RecursionError"), ("{{ 'a'.center(10 ** 12) }}", "1 GiB"),
        ("{{ 'a' * 20000000 }}", "20000000"), ("{% set n = namespace(_x=1) %}", "underscore"),
        ("{{ messages.append.__self__.__class__.__base__.__subclasses__() }}", "unsafe|undefined"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", r"0\.5 seconds"),
    ],
)  # fmt: skip
def test_a_chat_template_that_does_harm_or_never_ends_is_refused(template, said, monkeypatch):
    if "0" in said[:1]:
        monkeypatch.setattr(templates, "SECONDS", 0.5)
    with pytest.raises(TemplateRefused, match=said):
        filled(template, values())
    monkeypatch.undo()
    assert filled("{{ messages[0].role }}", values()) == "user"


ATTACK = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eback\x00"


def raw(text):
    return any(letter in text for letter in "\x1b\x07\x9b\u202e\x00")


def test_nothing_raw_is_printed_in_texts_tables_and_warnings():
    assert terminal.printable("a\tb\nc ä 猫 👩‍👩‍👧") == "a\tb\nc ä 猫 👩‍👩‍👧"
    assert terminal.printable("\x1b[31m\x07\ud800") == "\\x1b[31m\\x07\\ud800"
    said = io.StringIO()
    console = terminal.console(file=said, width=200)
    console.print(ATTACK, markup=False)
    table = Table(ATTACK)
    table.add_row(ATTACK)
    console.print(table)
    terminal.prepare()
    warned = logging.lastResort.format(logging.LogRecord("b", logging.WARNING, "", 0, "from %s", (ATTACK,), None))
    assert not any(map(raw, (said.getvalue(), terminal.printable(ATTACK), warned)))
    assert "\\x1b[31mred" in said.getvalue()
    coloured = io.StringIO()
    terminal.console(file=coloured, force_terminal=True, color_system="standard").print("[red]x[/red]")
    assert "\x1b[31mx" in coloured.getvalue(), "colours of our own still work"


def test_two_things_that_take_long_are_two_rows_on_a_terminal(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    console = terminal.console(file=screen, force_terminal=True, width=80)
    with terminal.progress("Outer", console) as outer, terminal.progress("Inner", console) as inner:
        outer(1, 4)
        inner(3, 7)
    assert "Outer 1/4" in screen.getvalue()
    assert "Inner 3/7" in screen.getvalue()
