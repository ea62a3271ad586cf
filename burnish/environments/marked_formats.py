"""Calls of tools between marks of a family's own, by the names that vLLM gives their parsers.

The marks are special tokens of most of these families, and then no part of a response's text: without them a call is
what begins with the name of a function that is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from burnish.environments.call_formats import (
    FUNCTION,
    PARAMETER,
    Call,
    Schemas,
    blocks,
    checked,
    of_json,
    of_object,
    of_texts,
    values,
)
from burnish.registry import register
from burnish.utils.json_text import parse_json

DEEPSEEK = re.compile(
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?\s*([^\s<｜]*)(?:<｜tool▁sep｜>)?\s*(?:```json\s*)?"
)
KIMI = re.compile(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?([^\s<|:]*)(?::\d+)?\s*(?:<\|tool_call_argument_begin\|>)?\s*"
)
KIMI_BARE = re.compile(r"functions\.([\w.-]{1,128}?):\d+\s*(?=\{)")
HARMONY = re.compile(
    r"to=functions\.([\w-]+)\s*(?:<\|channel\|>\s*\w+)?\s*(?:<\|constrain\|>)?\s*(?:json|code)?\s*(?:<\|message\|>)?\s*"
)
INTERN = re.compile(r"<\|action_start\|>\s*(?:<\|plugin\|>)?\s*")
MINIMAX = re.compile(r"<minimax:tool_call>")
INVOKE = re.compile(r"<invoke name=\"?([^\"<>\n]*)\"?>")
NAMED = re.compile(r"<parameter name=\"?([^\"<>\n]*)\"?>")
SEED = re.compile(r"<seed:tool_call>")
LISTED = re.compile(r"(?:<\|tool_call\|>|<tool_call>|functools)\s*(?=\[)")
CHANNELS = ("commentary", "analysis")  # channels, which stand behind a name where their mark is taken away


@register("call format", "deepseek_v3")
def deepseek_v3(text: str, schemas: Schemas) -> list[Call]:
    """<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}, or of type function and fenced: DeepSeek V3, R1."""
    if DEEPSEEK.search(text):
        return _before_objects(DEEPSEEK, text)
    names = "|".join(map(re.escape, schemas)) or r"(?!)"
    return _before_objects(re.compile(rf"(?<!\w)(?:function)?({names})\s*(?:```json\s*)?(?=\{{)"), text)


@register("call format", "kimi_k2")
def kimi_k2(text: str, schemas: Schemas) -> list[Call]:
    """<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>: Kimi K2, K2.5."""
    return _before_objects(KIMI if KIMI.search(text) else KIMI_BARE, text)


@register("call format", "openai")
def openai(text: str, schemas: Schemas) -> list[Call]:
    """<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>: GPT-OSS."""
    calls = _before_objects(HARMONY, text)
    return [Call(_without_channel(call.name, schemas), call.arguments, call.problem) for call in calls]


@register("call format", "internlm")
def internlm(text: str, schemas: Schemas) -> list[Call]:
    """<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>: InternLM2, InternVL2 and 2.5."""
    if not INTERN.search(text):
        bare = re.match(r"[^{]*(\{\s*\"name\"\s*:.*\})\s*$", text, re.DOTALL)
        return [] if bare is None else [of_json(bare[1], "parameters")]
    blocks = INTERN.split(text)[1:]
    return [of_json(block.partition("<|action_end|>")[0].strip(), "parameters") for block in blocks]


@register("call format", "granite")
def granite(text: str, schemas: Schemas) -> list[Call]:
    """<|tool_call|>[{"name": ..., "arguments": {...}}]: Granite 3; Granite 4 writes hermes."""
    return _listed(text, "<|tool_call|>")


@register("call format", "phi4_mini_json")
def phi4_mini_json(text: str, schemas: Schemas) -> list[Call]:
    """functools[{"name": ..., "arguments": {...}}], or behind <|tool_call|>: Phi-4 Mini, Phi-4 Multimodal."""
    return _listed(text, "functools")


@register("call format", "minimax_m2")
def minimax_m2(text: str, schemas: Schemas) -> list[Call]:
    """<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>...: MiniMax M2."""
    found = blocks(text, MINIMAX, "</minimax:tool_call>")
    return _invoked(found, (INVOKE, "</invoke>"), NAMED, schemas, '<invoke name="NAME">')


@register("call format", "seed_oss")
def seed_oss(text: str, schemas: Schemas) -> list[Call]:
    """<seed:tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></seed:tool_call>: Seed-OSS."""
    found = blocks(text, SEED, "</seed:tool_call>")
    return _invoked(found, (FUNCTION, "</function>"), PARAMETER, schemas, "<function=NAME>")


def _before_objects(start: re.Pattern[str], text: str) -> list[Call]:
    """Calls whose names ``start`` finds, each before a JSON object."""
    calls = []
    for found in start.finditer(text):
        try:
            if not text.startswith(("{", "[", '"'), found.end()):  # an error of the decoder counts all lines before it
                raise ValueError
            _, end = json.JSONDecoder().raw_decode(text, found.end())
            arguments = parse_json(text[found.end() : end])
        except (ValueError, RecursionError):
            calls.append(Call(found[1], problem=f"the arguments of {found[1] or 'a call'} must be a JSON object"))
        else:
            calls.append(checked(found[1], arguments))
    return calls


def _without_channel(name: str, schemas: Schemas) -> str:
    cut = [name.removesuffix(channel) for channel in CHANNELS if name.endswith(channel)]
    return next((one for one in cut if one in schemas), name) if name not in schemas else name


def _listed(text: str, mark: str) -> list[Call]:
    """Calls in a JSON list, behind a mark or at the start of the text."""
    found = LISTED.search(text)
    if found is None and not text.lstrip().startswith("[{"):
        return [Call(problem=_LIST.format(mark))] if mark in text else []
    try:
        several, _ = json.JSONDecoder().raw_decode(text.lstrip() if found is None else text[found.end() :])
        several = parse_json(json.dumps(several))
    except (ValueError, RecursionError):
        return [Call(problem=_LIST.format(mark))]
    return [of_object(one, "arguments") for one in several]


_LIST = 'calls must be JSON like {}[{{"name": "...", "arguments": {{...}}}}]'


def _invoked(
    outer: Iterable[tuple[str, str]], marks: tuple[re.Pattern[str], str], parameter: re.Pattern[str],
    schemas: Schemas, wanted: str,
) -> list[Call]:  # fmt: skip
    """Calls of names with the text of their parameters, in blocks that have one or more."""
    calls = []
    for _, block in outer:
        found = [
            of_texts(name.strip(), values(inner, parameter, "</parameter>"), schemas)
            for name, inner in blocks(block, *marks)
        ]
        calls += found or [Call(problem=f"a call must begin with {wanted}, and have its parameters inside")]
    return calls
