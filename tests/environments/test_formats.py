"""Calls as families of models write them: all that is one is read, and what is nearly one is told to the model."""

from __future__ import annotations

import pytest

from burnish.environments.formats import PARSERS, parse
from burnish.environments.schemas import schema


def look(place: str, times: int, deep: bool = False, spots: list[int] | None = None):
    """Look somewhere."""


SCHEMAS = {"look": schema("look", look)["function"]["parameters"]}
WANTED = {"place": "7", "times": 3, "deep": True, "spots": [1, 2]}
XML = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in
              {"place": 7, "times": 3, "deep": "true", "spots": "[1, 2]"}.items())  # fmt: skip
KEYS = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in
               {"place": 7, "times": 3, "deep": "true", "spots": "[1, 2]"}.items())  # fmt: skip
JSON = '{"place": "7", "times": 3, "deep": true, "spots": [1, 2]}'
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
}
SEVERAL = {
    "hermes": TEXTS["hermes"][1] * 2,
    "qwen3_coder": TEXTS["qwen3_coder"][0] * 2,
    "glm45": TEXTS["glm45"][0] * 2,
    "llama3_json": "; ".join(TEXTS["llama3_json"][:1] * 2),
    "mistral": f'[{{"name": "look", "arguments": {JSON}}}, {{"name": "look", "arguments": {JSON}}}]',
    "pythonic": f"[{TEXTS['pythonic'][1]}, {TEXTS['pythonic'][1]}]",
    "gemma4": TEXTS["gemma4"][1] + TEXTS["gemma4"][1],
}
BROKEN = {
    "hermes": "<tool_call>look(7)</tool_call>",
    "qwen3_coder": "<tool_call>look</tool_call>",
    "glm45": "<tool_call></tool_call>",
    "llama3_json": '{"name": "look", "parameters": ',
    "mistral": '[TOOL_CALLS][{"name": "look"',
    "pythonic": "[look(7)]",
    "gemma4": "<|tool_call>call:look{place<tool_call|>",
}


def test_every_format_is_tried():
    assert set(PARSERS) == set(TEXTS) == set(SEVERAL) == set(BROKEN)


@pytest.mark.parametrize(("how", "text"), [(how, text) for how, texts in TEXTS.items() for text in texts])
def test_a_call_is_read_with_the_types_of_its_arguments(how, text):
    (call,) = parse(text, how, SCHEMAS)
    assert (call.name, call.arguments, call.problem) == ("look", WANTED, "")


@pytest.mark.parametrize("how", PARSERS)
def test_several_calls_are_read_in_order(how):
    assert [call.arguments for call in parse(SEVERAL[how], how, SCHEMAS)] == [WANTED, WANTED]


@pytest.mark.parametrize("how", PARSERS)
def test_what_is_nearly_a_call_is_told(how):
    (call,) = parse(BROKEN[how], how, SCHEMAS)
    assert call.problem or call.name not in SCHEMAS


@pytest.mark.parametrize("how", PARSERS)
@pytest.mark.parametrize(
    "text", ["", "The answer is 7.", "<answer>7</answer>", "[1, 2]", "f(x) = 2", "(" * 5000, "{" * 90]
)
def test_an_answer_is_no_call(how, text):
    assert all(call.problem for call in parse(text, how, SCHEMAS))
    if text in ("", "The answer is 7.", "<answer>7</answer>"):
        assert parse(text, how, SCHEMAS) == []


def test_texts_without_their_quotes_end_where_the_next_argument_begins():
    (call,) = parse("call:look{place:Rome, Italy (a {b}),times:2}", "gemma4", SCHEMAS)
    assert call.arguments == {"place": "Rome, Italy (a {b})", "times": 2}
    (call,) = parse('<|tool_call>call:f{a:{b:[1,<|"|>x}, times:3<|"|>]}}<tool_call|>', "gemma4", SCHEMAS)
    assert call.arguments == {"a": {"b": [1, "x}, times:3"]}}
    (call,) = parse('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "hermes", SCHEMAS)
    assert call.arguments == {"a": 1}


def test_python_is_read_and_never_run():
    for text in ("[look(place=open('x'))]", "[look(**{})]", "[a.b(c=1)]", "[look(place=" + "[" * 10_000):
        assert not any(call.arguments for call in parse(text, "pythonic", SCHEMAS))
