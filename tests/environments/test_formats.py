"""Calls as families of models write them: all that is one is read, and what is nearly one is told to the model."""

import json
from pathlib import Path

import pytest
import yaml

from burnish.environments.call_formats import Call, calls_in
from burnish.registry import lookup, names
from tests.support.tiny_run import ROOT

FORMATS = names("call format")


def look(place: str, times: int, deep: bool = False, spots: list[int] | None = None):
    """Look somewhere."""


(TOLD,) = lookup("environment", "tools")(functions={"look": f"{__name__}:look"}).tools()[None]
SCHEMAS = {"look": TOLD["function"]["parameters"]}
WANTED = {"place": "7", "times": 3, "deep": True, "spots": [1, 2]}
# of each format: a call of look as models write it, two of them, and one that is broken
TEXTS = json.loads(Path(__file__).with_name("calls.json").read_text())
LOOSE, OWN = TEXTS.pop("without quotes"), yaml.safe_load(Path(__file__).with_name("games.yaml").read_text())["formats"]


def parse(text, how):
    return calls_in(text, lookup("call format", how)(), SCHEMAS)


@pytest.mark.parametrize("how", FORMATS)
def test_calls_are_read_in_order_with_the_types_of_their_arguments_and_what_is_nearly_one_is_told(how):
    assert f"\n| `{how}` | " in (ROOT / "docs" / "environments.md").read_text()
    for text in TEXTS[how]["texts"]:
        assert parse(text, how) == parse(f"\n {text} \n", how) == [Call("look", WANTED)], text
    assert [call.arguments for call in parse(TEXTS[how]["several"], how)] == [WANTED, WANTED]
    (broken,) = parse(TEXTS[how]["broken"], how)
    assert broken.problem or broken.name not in SCHEMAS
    for text in ("", "The answer is 7.", "<answer>7</answer>"):
        assert parse(text, how) == []
    for text in ("[1, 2]", "f(x) = 2", "(" * 5000, "{" * 90):
        assert all(call.problem for call in parse(text, how)), text


def test_texts_without_their_quotes_end_where_the_next_argument_begins():
    for text, how, arguments in LOOSE:
        assert [call.arguments for call in parse(text, how)] == [arguments]


def test_python_is_read_and_never_run():
    for text in ("[look(place=open('x'))]", "[look(**{})]", "[look('x')]", "[look(place=" + "[" * 10_000):
        (call,) = parse(text, "pythonic")
        assert (bool(call.problem), call.arguments) == (True, None)
    for text in ("look(place=", "[a.b(c=1)]", "[look(place=" + "[" * 20_000):
        assert parse(text, "pythonic") == []


def tools(calls):
    made = lookup("environment", "tools")(functions={"add": "tests.support.tool_functions:add"}, calls=calls)
    made.check()
    return made


@pytest.mark.parametrize("name", ["short", "Lines"])
def test_a_format_of_the_user_is_a_function_or_a_class_in_a_file_with_options(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    assert tools(f"mine.py:{name}").calls.read("so\n!look place=7", {}) == [Call("look", {"place": "7"})]
    made = tools({"name": f"mine.py:{name}", "mark": "?"})
    assert made.calls.read("?add a=1\n!add a=2", {}) == [Call("add", {"a": "1"})]
    assert made.episode().step("no call").done
    assert made.user_code() == ["tests.support.tool_functions:add", f"{tmp_path / 'mine.py'}:{name}"]
    assert tools("pythonic").user_code() == ["tests.support.tool_functions:add"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", r"environment\.calls is .*mine\.py:wrong, .* returned \[\('look'"),
        ("other", r"function\(response\).*function\(text, schemas\)"),
    ],
)
def test_a_function_that_is_no_format_is_refused(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    with pytest.raises(ValueError, match=message):
        tools(f"mine.py:{name}")
