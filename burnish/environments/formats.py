"""How families of models write calls of tools: parsers by the names that vLLM gives them.

Special tokens are not part of a response's text, so that marks of calls that are special ([TOOL_CALLS] of Mistral,
<|python_tag|> of Llama) may be there or not.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from burnish.environments.gemma_calls import written_calls
from burnish.utils.json_text import parse_json

Format = Literal["hermes", "qwen3_coder", "glm45", "llama3_json", "mistral", "pythonic", "gemma4"]

TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
FUNCTION = re.compile(r"\s*<function=([^>\n]*)>(.*?)</function>\s*", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>", re.DOTALL)
ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
FENCE = re.compile(r"```(?:tool_code|python)\s*\n(.*?)```", re.DOTALL)
NAMED = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)  # mistral: name{...}
MARKS = ("[TOOL_CALLS]", "<|python_tag|>", "<|tool_call_start|>")
LONGEST = 20_000  # characters that are read as Python

Schemas = Mapping[str, Mapping[str, Any]]  # of parameters, by the name of the function


@dataclass(frozen=True)
class Call:
    """A call, or what is wrong with one."""

    name: str = ""
    arguments: Mapping[str, Any] | None = None
    problem: str = ""


def parse(text: str, how: Format, schemas: Schemas) -> list[Call]:
    """The calls in a response, in order; none if there is nothing that looks like one.

    Args:
        text: of the response.
        how: the format.
        schemas: JSON schemas of the parameters of each function, by which values that are written as text get their
            types.
    """
    return PARSERS[how](text, schemas)


def _hermes(text: str, schemas: Schemas) -> list[Call]:
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen2.5, Qwen3, Qwen-VL."""
    return [_of_json(inner, "arguments") for inner in TOOL_CALL.findall(text)]


def _qwen3_coder(text: str, schemas: Schemas) -> list[Call]:
    """<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>: Qwen3-Coder, Qwen3.5."""
    calls = []
    for inner in TOOL_CALL.findall(text):
        found = FUNCTION.fullmatch(inner)
        if found is None:
            calls.append(Call(problem="a call must be <function=NAME><parameter=KEY>VALUE</parameter></function>"))
            continue
        name = found[1].strip()
        calls.append(_of_texts(name, PARAMETER.findall(found[2]), schemas))
    return calls


def _glm45(text: str, schemas: Schemas) -> list[Call]:
    """<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>: GLM-4.5, GLM-4.6V."""
    calls = []
    for inner in TOOL_CALL.findall(text):
        name = inner.partition("<arg_key>")[0].strip()
        calls.append(_of_texts(name, ARGUMENT.findall(inner), schemas))
    return calls


def _llama3_json(text: str, schemas: Schemas) -> list[Call]:
    """{"name": ..., "parameters": {...}}, alone or several with ; between: Llama 3.1 and later."""
    text = _unmarked(text)
    if not text.startswith("{"):
        return []
    whole = _of_json(text, "parameters")
    if not whole.problem:
        return [whole]
    parts = [part for part in re.split(r";\s*(?=\{)", text) if part.strip()]
    return [_of_json(part, "parameters") for part in parts]


def _mistral(text: str, schemas: Schemas) -> list[Call]:
    """[{"name": ..., "arguments": {...}}], or NAME{...} of later tokenizers: Mistral, Pixtral."""
    marked, text = "[TOOL_CALLS]" in text, _unmarked(text)
    if text.startswith("["):
        try:
            several = parse_json(text)
        except ValueError:
            several = None
        if isinstance(several, list) and all(isinstance(one, Mapping) for one in several):
            return [_of_object(one, "arguments") for one in several]
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
        calls.append(_checked(found[1], arguments))
    return calls


def _pythonic(text: str, schemas: Schemas) -> list[Call]:
    """[name(key=value), ...], in a block ```tool_code``` or not: Llama 3.2, Llama 4, Gemma 3."""
    blocks = FENCE.findall(text) or [_unmarked(text)]
    calls = []
    for block in blocks:
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


def _gemma4(text: str, schemas: Schemas) -> list[Call]:
    """<|tool_call>call:NAME{key:value}<tool_call|>, texts between <|"|>: Gemma 4, FunctionGemma."""
    calls = []
    for name, arguments in written_calls(text, schemas):
        if arguments is None:
            calls.append(Call(problem='a call must be call:NAME{key:value, ...}, texts between <|"|>'))
        elif isinstance(arguments, dict):
            calls.append(_checked(name, arguments))
        else:
            calls.append(_of_texts(name, arguments, schemas))
    return calls


PARSERS: dict[Format, Callable[[str, Schemas], list[Call]]] = {
    "hermes": _hermes,
    "qwen3_coder": _qwen3_coder,
    "glm45": _glm45,
    "llama3_json": _llama3_json,
    "mistral": _mistral,
    "pythonic": _pythonic,
    "gemma4": _gemma4,
}


def _unmarked(text: str) -> str:
    text = text.strip()
    for mark in MARKS:
        text = text.removeprefix(mark).strip()
    return text.removesuffix("<|tool_call_end|>").strip()


def _of_json(text: str, key: str) -> Call:
    try:
        return _of_object(parse_json(text), key)
    except ValueError:
        return Call(problem=f'a call must be JSON like {{"name": "...", "{key}": {{...}}}}')


def _of_object(call: Any, key: str) -> Call:
    if not isinstance(call, Mapping) or "name" not in call:
        return Call(problem=f'a call must be JSON like {{"name": "...", "{key}": {{...}}}}')
    other = {"arguments": "parameters", "parameters": "arguments"}[key]
    return _checked(call["name"], call.get(key, call.get(other, {})))


def _of_texts(name: str, pairs: list[tuple[str, str]], schemas: Schemas) -> Call:
    """A call whose values are texts, which JSON is made of where the schema wants no text."""
    properties = schemas.get(name, {}).get("properties", {})
    arguments: dict[str, Any] = {}
    for key, value in pairs:
        key, wanted = key.strip(), properties.get(key.strip(), {})
        arguments[key] = value
        if wanted.get("type") != "string":
            with contextlib.suppress(ValueError):
                arguments[key] = parse_json(value)
    return _checked(name, arguments)


def _of_node(node: Any) -> Call:
    if not isinstance(node.func, ast.Name) or node.args or any(word.arg is None for word in node.keywords):
        return Call(problem='arguments must be named, as in [name(key="value")]')
    try:
        arguments = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
    except (ValueError, TypeError, RecursionError, MemoryError):
        return Call(problem=f"the arguments of {node.func.id} must be plain values")
    return _checked(node.func.id, arguments)


def _checked(name: Any, arguments: Any) -> Call:
    if isinstance(arguments, str):  # as in OpenAI's messages
        with contextlib.suppress(ValueError):
            arguments = parse_json(arguments)
    if not isinstance(arguments, Mapping):
        return Call(name=str(name), problem="arguments must be an object")
    return Call(name=name, arguments=arguments) if isinstance(name, str) else Call(name=str(name), arguments=arguments)
