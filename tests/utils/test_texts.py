"""Texts of strangers: JSON, patterns and chat templates within bounds, and nothing raw on a terminal."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle

import pytest
from rich.table import Table

from burnish.utils import patterns, templates, terminal
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.json_text import DEEPEST, LARGEST, parse_json, read_object
from burnish.utils.patterns import pattern_complaint
from burnish.utils.templates import TemplateRefused, filled


def test_json_is_read_whatever_its_length_and_not_whatever_its_depth():
    for text in ('{"a": [1, {"b": null}]}', "1e5", '"ü"', "[" * 50 + "]" * 50, json.dumps([[{"a": [1]}] * 10] * 1000)):
        assert parse_json(text) == parse_json(text.encode()) == json.loads(text)
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        for depth in (DEEPEST + 1, 900, 1_000_000):
            with pytest.raises(ValueError, match="deep"):
                parse_json(opened * depth + "1" + closed * depth)
        value = parse_json(opened * (DEEPEST - 1) + "1" + closed * (DEEPEST - 1))
        assert pickle.loads(pickle.dumps(value)) == value == json.loads(json.dumps(value))
    for text in ("", "{", "nope", b"\xff\xfe\xff", "9" * 5000, "\0", "1" + "0" * 309):
        with pytest.raises(ValueError):  # noqa: PT011 (json words them)
            parse_json(text)
    assert float(parse_json(f"[{'9' * 308}]")[0]) == 1e308


def test_files_that_describe_something_hold_an_object(tmp_path):
    file = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError):
        read_object(file)
    for text, why in (("[1]", "list"), ("{", "JSON"), ("[" * 10_000, "deep")):
        file.write_text(text)
        with pytest.raises(ValueError, match=f"config.json.*{why}"):
            read_object(file)
    with file.open("wb") as huge:
        huge.truncate(LARGEST + 1)
    with pytest.raises(ValueError, match="too many"):
        read_object(file)
    with pytest.raises(ValueError, match="folder"):
        read_object(tmp_path)


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


def test_templates_are_filled_in_once_but_for_the_time_and_in_forks_apart(monkeypatch):
    assert filled("a", values()) == "a"
    child = os.fork()
    if child == 0:
        text = ""
        try:
            text = filled("b", values())
            templates.close()
        finally:
            os._exit(int(text != "b"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asked = {"messages": [{"role": "user", "content": "again?"}]}
    assert len({filled("{{ strftime_now('%f') }}", asked) for _ in range(20)}) > 1
    once = filled("{{ messages[0].content }}!", asked)
    monkeypatch.setattr(templates._OURS, "server", lambda: pytest.fail("it was asked again"))
    assert filled("{{ messages[0].content }}!", asked) == once == "again?!"


ATTACK = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eback\x00"


def raw(text):
    return any(letter in text for letter in "\x1b\x07\x9b\u202e\x00")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


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


def test_progress_is_lines_in_a_log_and_a_bar_on_a_terminal(capsys):
    said, now = io.StringIO(), [0.0]
    log = terminal.console(file=said, force_terminal=True)  # as FORCE_COLOR does
    with terminal.progress("Suite [red]a[/red]", log, lambda: now[0]) as tell:
        for done in range(1, 101):
            now[0] += 1
            tell(1000 * done, 100_000)
    first, *later = said.getvalue().splitlines()
    assert first == "Suite [red]a[/red]"
    assert later == [f"Suite [red]a[/red]: {done},000/100,000" for done in (3, 33, 63, 93)]
    screen = Screen()
    console = terminal.console(file=screen, force_terminal=True, width=80)
    with terminal.progress("Outer [red]a[/red]", console) as outer:
        outer(50, 100)
        with terminal.progress("Inner", console) as inner:
            inner(3, 7)
        outer(51, 100)
    assert all(words in screen.getvalue() for words in ("Outer [red]a[/red]", "50/100", "Inner 3/7"))
    assert not terminal.bars
    with terminal.progress("Reading"):
        print("found")
    assert capsys.readouterr() == ("found\n", "Reading\n"), "output can be parsed"


def test_a_message_is_short_enough_to_be_read_and_counts_what_it_leaves_out():
    one = terminal.message(UserError("first\n" + "more\n" * 40 + "last"))
    assert (one[:6], one[-5:], one.count("\n")) == ("first\n", "\nlast", terminal.LINES - 1)
    assert "problems" not in one
    said = terminal.message(ConfigError([f"option{i} is wrong" for i in range(42)])).split("\n")
    assert (said[0], said[1], len(said)) == ("42 problems", "  option0 is wrong", terminal.LINES)
    assert "34 more" in said[-1]
    told = terminal.message(ConfigError(["a", "b"], count=7, way_out="mend such records")).split("\n")
    assert told == ["7 problems", "  a", "  b", "  and 5 more; mend such records"]
    assert terminal.message(ConfigError(["a"], way_out="mend it")) == "a\nmend it"
    long = terminal.message(UserError("option is " + "x" * 100_000 + "; lower it"))
    assert long.startswith("option is xxx")
    assert long.endswith("; lower it")
    assert len(long) < 700
