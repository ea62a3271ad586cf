"""How families of models write calls of tools, by the names that vLLM gives their parsers."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

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
from burnish.environments.gemma_calls import written_calls
from burnish.registry import register
from burnish.utils.json_text import parse_json

TOOL_CALL = re.compile(r"<tool_call>")
ARGUMENT = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>")
FENCE = re.compile(r"```(?:tool_code|python)\s*\n")
NAMED = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)  # mistral: name{...}
MARKS = ("[TOOL_CALLS]", "<|python_tag|>", "<|tool_call_start|>")
LONGEST = 20_000  # characters that are read as Python


@register("call format", "hermes")
def hermes(text: str, schemas: Schemas) -> list[Call]:
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen2.5, Qwen3, Qwen-VL."""
    return [of_json(inner, "arguments") for _, inner in blocks(text, TOOL_CALL, "</tool_call>")]


@register("call format", "qwen3_coder")
def qwen3_coder(text: str, schemas: Schemas) -> list[Call]:
    """<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>: Qwen3-Coder, Qwen3.5."""
    calls = []
    for _, inner in blocks(text, TOOL_CALL, "</tool_call>"):
        found = FUNCTION.match(inner.strip())
        if found is None or not inner.rstrip().endswith("</function>"):
            calls.append(Call(problem="a call must be <function=NAME><parameter=KEY>VALUE</parameter></function>"))
            continue
        calls.append(of_texts(found[1].strip(), values(inner, PARAMETER, "</parameter>"), schemas))
    return calls


@register("call format", "glm45")
def glm45(text: str, schemas: Schemas) -> list[Call]:
    """<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>: GLM-4.5, GLM-4.6V."""
    calls = []
    for _, inner in blocks(text, TOOL_CALL, "</tool_call>"):
        name = inner.partition("<arg_key>")[0].strip()
        calls.append(of_texts(name, list(blocks(inner, ARGUMENT, "</arg_value>")), schemas))
    return calls


@register("call format", "llama3_json")
def llama3_json(text: str, schemas: Schemas) -> list[Call]:
    """{"name": ..., "parameters": {...}}, alone or several with ; between: Llama 3.1 and later."""
    text = _unmarked(text)
    if not text.startswith("{"):
        return []
    whole = of_json(text, "parameters")
    if not whole.problem:
        return [whole]
    parts = [part for part in re.split(r";\s*(?=\{)", text) if part.strip()]
    return [of_json(part, "parameters") for part in parts]


@register("call format", "mistral")
def mistral(text: str, schemas: Schemas) -> list[Call]:
    """[{"name": ..., "arguments": {...}}], or NAME{...} of later tokenizers: Mistral, Pixtral."""
    marked, text = "[TOOL_CALLS]" in text, _unmarked(text)
    if text.startswith("["):
        try:
            several = parse_json(text)
        except ValueError:
            several = None
        if isinstance(several, list) and all(isinstance(one, Mapping) for one in several):
            return [of_object(one, "arguments") for one in several]
        return [Call(problem='calls must be JSON like [{"name": "...", "arguments": {...}}]')] if marked else []
    calls = []
    for part in text.split("[TOOL_CALLS]"):
        found = NAMED.fullmatch(part.strip())
        if found is None or not (marked or found[1] in schemas):
            continue
        try:
            arguments = parse_json(found[2])
        except ValueError:
            calls.append(Call(problem=f"the arguments of {found[1]} are no JSON"))
            continue
        calls.append(checked(found[1], arguments))
    return calls


@register("call format", "pythonic")
def pythonic(text: str, schemas: Schemas) -> list[Call]:
    """[name(key=value), ...], in a block ```tool_code``` or not: Llama 3.2, Llama 4, Gemma 3."""
    fenced = [inner for _, inner in blocks(text, FENCE, "```")] or [_unmarked(text)]
    calls = []
    for block in fenced:
        source = block.strip()
        if not re.match(r"\[?\s*[A-Za-z_]\w*\(", source) or len(source) > LONGEST:
            continue
        try:
            tree = ast.parse(source, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            if source.startswith("["):
                calls.append(Call(problem='calls must be Python like [name(key="value")]'))
            continue
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        if all(isinstance(node, ast.Call) for node in nodes):
            calls += [_of_node(node) for node in nodes]
    return calls


@register("call format", "gemma4")
def gemma4(text: str, schemas: Schemas) -> list[Call]:
    """<|tool_call>call:NAME{key:value}<tool_call|>, texts between <|"|>: Gemma 4, FunctionGemma."""
    calls = []
    for name, arguments in written_calls(text, schemas):
        if arguments is None:
            calls.append(Call(problem='a call must be call:NAME{key:value, ...}, texts between <|"|>'))
        elif isinstance(arguments, dict):
            calls.append(checked(name, arguments))
        else:
            calls.append(of_texts(name, arguments, schemas))
    return calls


def _unmarked(text: str) -> str:
    text = text.strip()
    for mark in MARKS:
        text = text.removeprefix(mark).strip()
    return text.removesuffix("<|tool_call_end|>").strip()


def _of_node(node: Any) -> Call:
    if not isinstance(node.func, ast.Name) or node.args or any(word.arg is None for word in node.keywords):
        return Call(problem='arguments must be named, as in [name(key="value")]')
    try:
        arguments = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
    except (ValueError, TypeError, RecursionError, MemoryError):
        return Call(problem=f"the arguments of {node.func.id} must be plain values")
    return checked(node.func.id, arguments)
