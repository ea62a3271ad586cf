"""What a call of a tool is, and what reads calls out of responses: a function, ours or one of the user's.

Ours are named as vLLM names its parsers. Special tokens are not part of a response's text, so that marks of calls that
are special ([TOOL_CALLS] of Mistral, <|python_tag|> of Llama) may be there or not.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from burnish.registry import options, register
from burnish.utils.json_text import parse_json

Schemas = Mapping[str, Mapping[str, Any]]  # of parameters, by the name of the function


@dataclass(frozen=True)
class Call:
    """A call, or what is wrong with one."""

    name: str = ""
    arguments: Mapping[str, Any] | None = None
    problem: str = ""


class CallFunction(Protocol):
    """What a function registered as a "call format" is called with."""

    def __call__(self, text: str, schemas: Schemas) -> list[Call]:
        """The calls in a response, in order; none if there is nothing that looks like one. ``schemas`` are JSON schemas
        of the parameters of each function, by which values that are written as text get their types. Options are
        keyword-only."""


@options
class CallFormat:
    """Base of formats of calls: of ours, which hold the options of a function, and of classes of the user."""

    function: ClassVar[Any] = None  # of ours; a class of the user has a method ``read``

    def read(self, text: str, schemas: Schemas) -> list[Call]:
        """The calls in a response; see ``CallFunction``."""
        if self.function is None:
            raise NotImplementedError("it has no read(self, text, schemas)")
        own = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "name"}
        return self.function(text, schemas, **own)  # type: ignore[no-any-return]


def calls_in(text: str, how: Any, schemas: Schemas) -> list[Call]:
    """The calls in a response, in order.

    Args:
        text: of the response.
        how: an entry of kind "call format".
        schemas: JSON schemas of the parameters of each function.

    Raises:
        TypeError: a format of the user returns something else.
    """
    calls = how.read(text, schemas)
    if not isinstance(calls, list) or not all(isinstance(call, Call) for call in calls):
        raise TypeError(f"it returned {calls!r:.80}; return a list of burnish.environments.call_formats.Call")
    return calls


LISTED = r"<\|tool_call\|>\s*|(?:<tool_call>|functools)\s*(?=\[)|\A\s*(?=\[\s*\{)"


@register("call format", "hermes")
def hermes(text: str, schemas: Schemas) -> list[Call]:
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen2.5, Qwen3, Qwen-VL."""
    return in_json(text, r"<tool_call>\s*")


@register("call format", "llama3_json")
def llama3_json(text: str, schemas: Schemas) -> list[Call]:
    """{"name": ..., "parameters": {...}}, alone or several with ; between: Llama 3.1 and later."""
    text = _unmarked(text)
    return in_json(text, r"\A\s*(?=\{)|;\s*(?=\{)", "parameters") if text.startswith("{") else []


@register("call format", "mistral")
def mistral(text: str, schemas: Schemas) -> list[Call]:
    """[{"name": ..., "arguments": {...}}], or NAME{...} of later tokenizers: Mistral, Pixtral."""
    named, listed = (r"[A-Za-z_][\w.-]*", r"\[") if "[TOOL_CALLS]" in text else (_any_of(schemas), r"\[\s*\{")
    return in_json(text.strip(), rf"(?:\[TOOL_CALLS\]|\A)\s*(?:({named})\s*(?:\[ARGS\])?\s*(?=\{{)|(?={listed}))")


@register("call format", "granite")
def granite(text: str, schemas: Schemas) -> list[Call]:
    """<|tool_call|>[{"name": ..., "arguments": {...}}]: Granite 3; Granite 4 writes hermes."""
    return in_json(text, LISTED)


@register("call format", "phi4_mini_json")
def phi4_mini_json(text: str, schemas: Schemas) -> list[Call]:
    """functools[{"name": ..., "arguments": {...}}], or behind <|tool_call|>: Phi-4 Mini, Phi-4 Multimodal."""
    return in_json(text, LISTED)


@register("call format", "internlm")
def internlm(text: str, schemas: Schemas) -> list[Call]:
    """<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>: InternLM2, InternVL2 and 2.5."""
    start = r"<\|action_start\|>\s*(?:<\|plugin\|>)?\s*|(?=\{\s*\"name\"\s*:)"
    return in_json(text, start, "parameters")


@register("call format", "deepseek_v3")
def deepseek_v3(text: str, schemas: Schemas) -> list[Call]:
    """<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}, or of type function and fenced: DeepSeek V3, R1."""
    marked = r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?\s*([^\s<｜]*)(?:<｜tool▁sep｜>)?\s*(?:```json\s*)?"
    bare = rf"(?<!\w)(?:function)?({_any_of(schemas)})\s*(?:```json\s*)?(?=\{{)"
    return in_json(text, f"{marked}|{bare}")


@register("call format", "kimi_k2")
def kimi_k2(text: str, schemas: Schemas) -> list[Call]:
    """<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>: Kimi K2, K2.5."""
    begin = r"<\|tool_call_begin\|>\s*(?:functions\.)?([^\s<|:]*)(?::\d+)?\s*(?:<\|tool_call_argument_begin\|>)?\s*"
    return in_json(text, rf"{begin}|(?!<)functions\.([\w.-]{{1,128}}?):\d+\s*(?=\{{)")


@register("call format", "openai")
def openai(text: str, schemas: Schemas) -> list[Call]:
    """<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>: GPT-OSS."""
    start = (
        r"to=functions\.([\w-]+)\s*(?:<\|channel\|>\s*\w+)?\s*(?:<\|constrain\|>)?\s*(?:json|code)?\s*"
        r"(?:<\|message\|>)?\s*"
    )
    calls = []
    for call in in_json(text, start):
        # a channel stands behind a name where its mark is taken away
        cut = [call.name.removesuffix(channel) for channel in ("commentary", "analysis")]
        calls.append(dataclasses.replace(call, name=next((name for name in cut if name in schemas), call.name)))
    return calls


def in_json(text: str, start: str, key: str = "arguments") -> list[Call]:
    """The calls that JSON behind each ``start`` holds: an object, or a list of some; arguments, if a group has a name.

    ``key`` is what the family calls arguments; either name is read.
    """
    calls: list[Call] = []
    at = 0
    while (begin := re.compile(start).search(text, at)) is not None:
        name = next(filter(None, begin.groups()), "")
        try:
            value, at = json.JSONDecoder().raw_decode(text, begin.end())
        except (ValueError, RecursionError):
            value, at = None, begin.end() + 1
        for call in value if isinstance(value, list) and not name else [value]:
            if name:
                calls.append(checked(name, call))
            elif isinstance(call, Mapping) and "name" in call:
                calls.append(checked(call["name"], call.get("arguments", call.get("parameters", {}))))
            else:
                calls.append(Call(problem=f'a call must be JSON like {{"name": "...", "{key}": {{...}}}}'))
    return calls


def checked(name: Any, arguments: Any) -> Call:
    """A call, whose arguments must be an object, or a text that is one."""
    if isinstance(arguments, str):  # as in OpenAI's messages
        with contextlib.suppress(ValueError):
            arguments = parse_json(arguments)
    if not isinstance(arguments, Mapping):
        return Call(str(name), problem="arguments must be an object")
    return Call(str(name), arguments)


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names)) or r"(?!)"


def _unmarked(text: str) -> str:
    text = text.strip()
    for mark in ("[TOOL_CALLS]", "<|python_tag|>", "<|tool_call_start|>"):
        text = text.removeprefix(mark).strip()
    return text.removesuffix("<|tool_call_end|>").strip()


@register("call format", "qwen3_coder")
def qwen3_coder(text: str, schemas: Schemas) -> list[Call]:
    """<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>: Qwen3-Coder, Qwen3.5."""
    return in_marks(text, "tool_call", r"<function=([^<>\n]*)>", "</function>", r"<parameter=([^<>\n]*)>", schemas)


@register("call format", "seed_oss")
def seed_oss(text: str, schemas: Schemas) -> list[Call]:
    """<seed:tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></seed:tool_call>: Seed-OSS."""
    return in_marks(text, "seed:tool_call", r"<function=([^<>\n]*)>", "</function>", r"<parameter=([^<>\n]*)>", schemas)


@register("call format", "minimax_m2")
def minimax_m2(text: str, schemas: Schemas) -> list[Call]:
    """<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>...: MiniMax M2."""
    call, parameter = (rf'<{tag} name="?([^"<>\n]*)"?>' for tag in ("invoke", "parameter"))
    return in_marks(text, "minimax:tool_call", call, "</invoke>", parameter, schemas)


@register("call format", "glm45")
def glm45(text: str, schemas: Schemas) -> list[Call]:
    """<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>: GLM-4.5, GLM-4.6V."""
    key = r"<arg_key>([^<]*)</arg_key>\s*<arg_value>"
    return [
        of_texts(inner.partition("<arg_key>")[0], blocks(inner, key, "</arg_value>"), schemas)
        for _, inner in blocks(text, "<tool_call>", "</tool_call>")
    ]


def in_marks(text: str, tag: str, opening: str, closing: str, parameter: str, schemas: Schemas) -> list[Call]:
    """Calls between marks with a name, and within them parameters, in blocks of a tag that have one call or more."""
    calls = []
    for _, block in blocks(text, f"<{tag}>", f"</{tag}>"):
        named = list(blocks(block, opening, closing))
        calls += [of_texts(name, blocks(inner, parameter, "</parameter>"), schemas) for name, inner in named]
        if not named:
            calls.append(Call(problem=f"a call must be a name and parameters between marks, and end with {closing}"))
    return calls


def blocks(text: str, opening: str, closing: str) -> Iterator[tuple[str, str]]:
    """The name in each ``opening``, if it has one, and what stands before the next ``closing``: once through the text,
    however often a response repeats a mark."""
    at, pattern = 0, re.compile(opening)
    while (begin := pattern.search(text, at)) and (end := text.find(closing, begin.end())) >= 0:
        yield begin[pattern.groups], text[begin.end() : end]
        at = end + len(closing)


def of_texts(name: str, pairs: Iterable[tuple[str, str]], schemas: Schemas) -> Call:
    """A call whose values are texts, which may stand on lines of their own, and which JSON is made of where the schema
    wants no text."""
    name, arguments = name.strip(), dict[str, Any]()
    properties = schemas.get(name, {}).get("properties", {})
    for key, value in ((key.strip(), value.removeprefix("\n").removesuffix("\n")) for key, value in pairs):
        arguments[key] = value
        if properties.get(key, {}).get("type") != "string":
            with contextlib.suppress(ValueError):
                arguments[key] = parse_json(value)
    return Call(name, arguments)


@register("call format", "pythonic")
def pythonic(text: str, schemas: Schemas) -> list[Call]:
    """[name(key=value), ...], in a block ```tool_code``` or not: Llama 3.2, Llama 4, Gemma 3."""
    calls = []
    for block in [inner for _, inner in blocks(text, r"```(?:tool_code|python)\s*\n", "```")] or [_unmarked(text)]:
        source = block.strip()
        if not re.match(r"\[?\s*[A-Za-z_]\w*\(", source) or len(source) > 20_000:
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


def _of_node(node: Any) -> Call:
    try:
        if node.args or any(word.arg is None for word in node.keywords):
            raise ValueError
        return Call(node.func.id, {word.arg: ast.literal_eval(word.value) for word in node.keywords})
    except (AttributeError, ValueError, TypeError, RecursionError, MemoryError):
        return Call(problem='arguments must be named, and plain values, as in [name(key="value")]')


QUOTE = '<|"|>'
GEMMA_MARKS = re.compile(r"<\|tool_call>|<tool_call\|>|<start_function_call>|<end_function_call>")
TOKEN = re.compile(  # of its objects that is not the same in JSON: texts, names without quotes, and words
    r'<\|"\|>(?P<text>.*?)<\|"\|>|"(?:\\.|[^"\\])*"|(?<=[{,])\s*(?P<key>[\w.-]+)\s*:(?P<empty>\s*(?=[,}]))?|'
    r'(?P<bare>[^\s{}\[\],:"][^,\]}]*)',
    re.DOTALL,
)


@register("call format", "gemma4")
def gemma4(text: str, schemas: Schemas) -> list[Call]:
    """<|tool_call>call:NAME{key:value}<tool_call|>, texts between <|"|>: Gemma 4, FunctionGemma."""
    text, calls = text.replace("<escape>", QUOTE), []
    for block in GEMMA_MARKS.split(text):
        begins = re.finditer(r"call:\s*([A-Za-z_][\w.-]*)\s*(?=\{)", block)
        starts = [begin for begin in begins if GEMMA_MARKS.search(text) or begin[1] in schemas]
        for begin, end in zip(starts, [*(following.start() for following in starts[1:]), len(block)], strict=False):
            calls.append(_written(begin[1], block[begin.end() : end].strip(), schemas))
    return calls


def _written(name: str, written: str, schemas: Schemas) -> Call:
    """A call with Gemma's object. Without quotes, the names of the schema tell where a value ends."""
    if QUOTE not in written:
        names = _any_of(schemas.get(name, {}).get("properties", {}))
        _, *pieces = re.split(rf"(?:^\{{|,)\s*\"?({names})\"?\s*:", written.rpartition("}")[0])
        if pieces:
            return of_texts(name, zip(pieces[::2], map(_unquoted, pieces[1::2]), strict=True), schemas)
    with contextlib.suppress(ValueError, RecursionError):
        arguments, _ = json.JSONDecoder().raw_decode(TOKEN.sub(_as_json, written))
        return checked(name, arguments)
    return Call(problem='a call must be call:NAME{key:value, ...}, texts between <|"|>')


def _unquoted(value: str) -> str:
    with contextlib.suppress(ValueError):
        if isinstance(text := parse_json(value), str):
            return text
    return value.strip()


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
