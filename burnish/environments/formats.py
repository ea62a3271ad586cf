"""How families of models write calls of tools, by the names that vLLM gives their parsers."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
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
INVOKED_PARAMETER = re.compile(r"<parameter name=\"?([^\"<>\n]*)\"?>")
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
    return _invoked(found, (INVOKE, "</invoke>"), INVOKED_PARAMETER, schemas, '<invoke name="NAME">')


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
            arguments, _ = json.JSONDecoder().raw_decode(text, found.end())
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


QUOTE = '<|"|>'
GEMMA_MARKS = re.compile(r"<\|tool_call>|<tool_call\|>|<start_function_call>|<end_function_call>")
CALL = re.compile(r"call:\s*([A-Za-z_][\w.-]*)\s*(?=\{)")
TOKEN = re.compile(  # of its objects that is not the same in JSON: texts, names without quotes, and words
    r'<\|"\|>(?P<text>.*?)<\|"\|>|"(?:\\.|[^"\\])*"|(?<=[{,])\s*(?P<key>[\w.-]+)\s*:(?P<empty>\s*(?=[,}]))?|'
    r'(?P<bare>[^\s{}\[\],:"][^,\]}]*)',
    re.DOTALL,
)


def written_calls(text: str, schemas: Schemas) -> Iterator[tuple[str, list[tuple[str, str]] | dict[str, Any] | None]]:
    """The name of each call with its arguments; None where they can't be read.

    Args:
        text: of the response.
        schemas: JSON schemas of the parameters of each function. Without quotes, their names tell where a value ends,
            and values come as texts.
    """
    text = text.replace("<escape>", QUOTE)
    for block in GEMMA_MARKS.split(text):
        starts = [found for found in CALL.finditer(block) if GEMMA_MARKS.search(text) or found[1] in schemas]
        for number, found in enumerate(starts):
            end = starts[number + 1].start() if number + 1 < len(starts) else len(block)
            yield found[1], _arguments(block[found.end() : end].strip(), schemas.get(found[1], {}))


def _arguments(written: str, schema: Mapping[str, Any]) -> list[tuple[str, str]] | dict[str, Any] | None:
    if QUOTE not in written:
        body = written.rpartition("}")[0]
        if not body:
            return None
        names = "|".join(map(re.escape, schema.get("properties", {}))) or r"(?!)"
        pieces = re.split(rf"(?:^\{{|,)\s*\"?({names})\"?\s*:", body)
        if len(pieces) > 1:
            return [(key, _unquoted(value.strip())) for key, value in zip(pieces[1::2], pieces[2::2], strict=True)]
    try:
        value, _ = json.JSONDecoder().raw_decode(TOKEN.sub(_as_json, written))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unquoted(value: str) -> str:
    try:
        found = parse_json(value) if value.startswith('"') else value
    except ValueError:
        return value
    return found if isinstance(found, str) else value


def _as_json(token: re.Match[str]) -> str:
    if (text := token["text"]) is not None:
        return json.dumps(text)
    if token["key"] is not None:
        return f'"{token["key"]}":' + ('""' if token["empty"] is not None else "")
    if (bare := token["bare"]) is None:
        return token[0]
    try:
        parse_json(bare)
    except ValueError:
        return json.dumps(bare.strip())
    return bare
