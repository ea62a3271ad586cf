"""Calls as families of models write them: all that is one is read, and what is nearly one is told to the model."""

from __future__ import annotations

import pytest

from burnish.config import load
from burnish.environments.call_formats import Call, calls_in
from burnish.environments.schemas import schema
from burnish.registry import lookup, names
from tests.support.tiny_run import ROOT

FORMATS = names("call format")


def look(place: str, times: int, deep: bool = False, spots: list[int] | None = None):
    """Look somewhere."""


SCHEMAS = {"look": schema("look", look)["function"]["parameters"]}
WANTED = {"place": "7", "times": 3, "deep": True, "spots": [1, 2]}
XML = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in
              {"place": 7, "times": 3, "deep": "true", "spots": "[1, 2]"}.items())  # fmt: skip
KEYS = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in
               {"place": 7, "times": 3, "deep": "true", "spots": "[1, 2]"}.items())  # fmt: skip
JSON = '{"place": "7", "times": 3, "deep": true, "spots": [1, 2]}'
OBJECT = f'{{"name": "look", "arguments": {JSON}}}'
INVOKED = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in
                  {"place": 7, "times": 3, "deep": "true", "spots": "[1, 2]"}.items())  # fmt: skip
TEXTS = {
    "hermes": [
        f'I look.\n<tool_call>\n{{"name": "look", "arguments": {JSON}}}\n</tool_call>',
        f'<tool_call>{{"name": "look", "parameters": {JSON}}}</tool_call>',
    ],
    "qwen3_coder": [f"Hm.\n<tool_call>\n<function=look>\n{XML}</function>\n</tool_call>"],
    "glm45": [f"<tool_call>look\n{KEYS}</tool_call>"],
    "llama3_json": [
        f'{{"name": "look", "parameters": {JSON}}}',
        f'<|python_tag|>{{"name": "look", "arguments": {JSON}}}',
    ],
    "mistral": [
        f'[TOOL_CALLS][{{"name": "look", "arguments": {JSON}}}]',
        f'[{{"name": "look", "arguments": {JSON}}}]',
        f"[TOOL_CALLS]look[ARGS]{JSON}",
        f"look{JSON}",
    ],
    "pythonic": [
        "[look(place='7', times=3, deep=True, spots=[1, 2])]",
        'look(place="7", times=3, deep=True, spots=[1, 2])',
        '```tool_code\nlook(place="7", times=3, deep=True, spots=[1, 2])\n```',
        "<|tool_call_start|>[look(place='7', times=3, deep=True, spots=[1, 2])]<|tool_call_end|>",
    ],
    "gemma4": [
        '<|tool_call>call:look{place:<|"|>7<|"|>,times:3,deep:true,spots:[1,2]}<tool_call|>',
        "I look.\ncall:look{place:7,times:3,deep:true,spots:[1, 2]}",
        "<start_function_call>call:look{deep:true, place:<escape>7<escape>, times: 3, spots:[1,2]}<end_function_call>",
    ],
    "deepseek_v3": [
        f"Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>",
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{JSON}\n```<｜tool▁call▁end｜>",
        f"I look.\nfunctionlook\n```json\n{JSON}\n```",
        f"look{JSON}",
    ],
    "kimi_k2": [
        f"<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{JSON}<|tool_call_end|>",
        f"I look. functions.look:0{JSON}",
    ],
    "openai": [
        f"<|channel|>commentary to=functions.look <|constrain|>json<|message|>{JSON}<|call|>",
        f" to=functions.look<|channel|>commentary json<|message|>{JSON}",
        f"analysisI look.assistantcommentary to=functions.look json{JSON}",
        f"to=functions.lookcommentary json{JSON}",
    ],
    "internlm": [
        f"I look.<|action_start|><|plugin|>\n{OBJECT}<|action_end|>",
        f"I look.\n{OBJECT}",
    ],
    "granite": [f"<|tool_call|>[{OBJECT}]", f"<tool_call>[{OBJECT}]</tool_call>", f"[{OBJECT}]"],
    "phi4_mini_json": [f"functools[{OBJECT}]", f"<|tool_call|>[{OBJECT}]<|/tool_call|>"],
    "minimax_m2": [f'Hm.<minimax:tool_call>\n<invoke name="look">\n{INVOKED}</invoke>\n</minimax:tool_call>'],
    "seed_oss": [f"<seed:tool_call>\n<function=look>\n{XML}</function>\n</seed:tool_call>"],
}
SEVERAL = {how: texts[-1] * 2 for how, texts in TEXTS.items()} | {
    "llama3_json": "; ".join(TEXTS["llama3_json"][:1] * 2),
    "mistral": f"[{OBJECT}, {OBJECT}]",
    "pythonic": f"[{TEXTS['pythonic'][1]}, {TEXTS['pythonic'][1]}]",
    "gemma4": TEXTS["gemma4"][1] * 2,
    "deepseek_v3": TEXTS["deepseek_v3"][1] * 2,
    "internlm": TEXTS["internlm"][0] * 2,
    "granite": f"<|tool_call|>[{OBJECT}, {OBJECT}]",
    "phi4_mini_json": f"functools[{OBJECT}, {OBJECT}]",
}
BROKEN = {
    "hermes": "<tool_call>look(7)</tool_call>",
    "qwen3_coder": "<tool_call>look</tool_call>",
    "glm45": "<tool_call></tool_call>",
    "llama3_json": '{"name": "look", "parameters": ',
    "mistral": '[TOOL_CALLS][{"name": "look"',
    "pythonic": "[look(7)]",
    "gemma4": "<|tool_call>call:look{place<tool_call|>",
    "deepseek_v3": "<｜tool▁call▁begin｜>look<｜tool▁sep｜>7<｜tool▁call▁end｜>",
    "kimi_k2": "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>7<|tool_call_end|>",
    "openai": "to=functions.look json7",
    "internlm": "<|action_start|><|plugin|>look(7)<|action_end|>",
    "granite": "<|tool_call|>[look(7)]",
    "phi4_mini_json": "functools[look(7)]",
    "minimax_m2": "<minimax:tool_call>look(7)</minimax:tool_call>",
    "seed_oss": "<seed:tool_call>look(7)</seed:tool_call>",
}


def parse(text, how):
    return calls_in(text, lookup("call format", how)(), SCHEMAS)


def test_every_format_is_tried_and_told():
    table = (ROOT / "docs" / "environments.md").read_text()
    assert all(f"\n| `{how}` | " in table for how in FORMATS)
    assert set(FORMATS) == set(TEXTS) == set(SEVERAL) == set(BROKEN)


@pytest.mark.parametrize("how", FORMATS)
def test_calls_are_read_in_order_with_the_types_of_their_arguments_and_what_is_nearly_one_is_told(how):
    for text in TEXTS[how]:
        assert parse(text, how) == [Call("look", WANTED)], text
    assert [call.arguments for call in parse(SEVERAL[how], how)] == [WANTED, WANTED]
    (broken,) = parse(BROKEN[how], how)
    assert broken.problem or broken.name not in SCHEMAS
    for text in ("", "The answer is 7.", "<answer>7</answer>"):
        assert parse(text, how) == []
    for text in ("[1, 2]", "f(x) = 2", "(" * 5000, "{" * 90):
        assert all(call.problem for call in parse(text, how)), text


def test_texts_without_their_quotes_end_where_the_next_argument_begins():
    for text, how, arguments in (
        ("call:look{place:Rome, Italy (a {b}),times:2}", "gemma4", {"place": "Rome, Italy (a {b})", "times": 2}),
        ('<|tool_call>call:f{a:{b:[1,<|"|>x}, times:3<|"|>]}}<tool_call|>', "gemma4", {"a": {"b": [1, "x}, times:3"]}}),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "hermes", {"a": 1}),
    ):
        assert [call.arguments for call in parse(text, how)] == [arguments]


def test_python_is_read_and_never_run():
    for text in ("[look(place=open('x'))]", "[look(**{})]", "[a.b(c=1)]", "[look(place=" + "[" * 10_000):
        assert not any(call.arguments for call in parse(text, "pythonic"))


OWN = """
from typing import Annotated

from burnish.environments.call_formats import Call, CallFormat


def short(text, schemas, *, mark: Annotated[str, "what a call begins with"] = "!"):
    words = [line.removeprefix(mark).split() for line in text.splitlines() if line.startswith(mark)]
    return [Call(name, dict(one.split("=") for one in rest)) for name, *rest in words]


class Lines(CallFormat):
    mark: str = "!"

    def read(self, text, schemas):
        return short(text, schemas, mark=self.mark)


class Unwritten(CallFormat):
    pass


def wrong(text, schemas):
    return [("look", {})]


def other(response):
    return []
"""


def tools(calls):
    functions = "functions: {add: 'tests.support.tool_functions:add'}"
    made = load("vlm_quickstart", [f"environment={{name: tools, {functions}, calls: {calls}}}"]).environment
    made.check()
    return made


@pytest.mark.parametrize("name", ["short", "Lines"])
def test_a_format_of_the_user_is_a_function_or_a_class_in_a_file_with_options(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    assert tools(f"'mine.py:{name}'").calls.read("so\n!look place=7", {}) == [Call("look", {"place": "7"})]
    made = tools(f"{{name: 'mine.py:{name}', mark: '?'}}")
    assert made.calls.read("?add a=1\n!add a=2", {}) == [Call("add", {"a": "1"})]
    assert made.episode().step("no call").done
    assert made.user_code() == ["tests.support.tool_functions:add", f"{tmp_path / 'mine.py'}:{name}"]
    assert tools("pythonic").user_code() == ["tests.support.tool_functions:add"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", r"environment\.calls is .*mine\.py:wrong, .* a list with tuple"),
        ("other", r"function\(response\).*function\(text, schemas\)"),
        ("Unwritten", r"no read\(self, text, schemas\)"),
        ("none", "none has no such name"),
    ],
)
def test_a_function_that_is_no_format_is_refused(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    with pytest.raises(ValueError, match=message):
        tools(f"'mine.py:{name}'")
