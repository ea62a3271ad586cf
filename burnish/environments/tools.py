"""Functions that a policy may call: each call is answered with what the function returned.

Tools of servers that speak the Model Context Protocol (MCP) are functions, too, by its SDK.
"""

from __future__ import annotations

import base64
import inspect
import shlex
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from burnish.environments.base import Environment, Episode, Observation, is_video, shown
from burnish.environments.call_formats import Call, calls_in
from burnish.options import Count, Rules, Seconds
from burnish.registry import Choice, register
from burnish.utils.addresses import redacted, secret_in
from burnish.utils.contracts import arguments, summary
from burnish.utils.errors import UserError
from burnish.utils.installed import require
from burnish.utils.media import open_image
from burnish.utils.supervisor import ChildDied, LoadFailed, ServerPool
from burnish.utils.user_code import awaited, load_object, reason

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from mcp import Client
    from PIL.Image import Image

    from burnish.types.prompt import LabelledTools, Prompt

    Result = str | Image

BEFORE, AFTER = "<tool_response>\n", "\n</tool_response>"
LONGEST_START = 60.0  # seconds in which a server must start, and list its tools
LONGEST_LOAD = 300.0  # seconds in which the functions must be loaded, with what their classes load
CONNECTIONS = ExitStack()  # of this process to MCP servers, until it ends
GIVEN = ("images", "seed")  # keyword-only parameters that no model writes; see ``takes``


@register("environment", "tools")
class Tools(Environment):
    """Functions that the model calls in its family's way; a response without a call ends the dialogue."""

    functions: dict[Annotated[str, Field(pattern=r"\S")], str] = field(default_factory=dict)
    """Functions by the names that they are called by: package.module:function or path/to/file.py:function. They are
    run in a process of their own, may be async, get the arguments as keywords, and what they return is shown: images
    and videos as such, all else as text. A keyword-only parameter images gets the images of the dialogue so far, and
    seed a number of this call. Of a class, an instance is made in that process and called."""
    arguments: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Keyword arguments of classes among the functions, by the functions' names."""
    servers: dict[str, Annotated[str, Field(pattern=r"\S")]] = field(default_factory=dict)
    """MCP servers whose tools may be called too, by names of yours: the command that starts one, or its http address.
    Every process of the functions has connections of its own."""
    calls: Annotated[Any, Choice("call format")] = Field(default="hermes", validate_default=True)
    """How the model writes calls: hermes (Qwen2.5, Qwen3, Qwen-VL: JSON in <tool_call>), qwen3_coder (Qwen3-Coder,
    Qwen3.5: XML), glm45 (GLM-4.5, GLM-4.6V), llama3_json (Llama 3.1 and later), mistral, pythonic (Llama 4, Gemma 3,
    LFM2), gemma4, deepseek_v3, kimi_k2, openai (GPT-OSS), internlm (InternVL2), granite, phi4_mini_json, minimax_m2,
    seed_oss; or a function or class of yours, file.py:NAME."""
    timeout: Seconds = 10.0
    """Seconds that a call may take; one that takes longer is ended, and the model is told so."""
    role: Literal["tool", "user"] = "tool"
    """Who speaks, as the model's chat template knows it."""
    longest_result: Count = 2000
    """Characters of a result that are shown."""
    describe: bool = True
    """Give the functions' names, docstrings and parameters to the chat template, which tells the model of them if it
    has a place for tools. false leaves that to the prompts."""

    def episode(self) -> Episode:
        return _Calls(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def tools(self) -> LabelledTools:
        return {None: list(self.schemas.values())} if self.describe else {}

    def user_code(self) -> list[str]:
        return [*self.functions.values(), *([self.calls.name] if ":" in self.calls.name else [])]

    def contradictions(self, run: Any) -> Rules:
        return [
            (
                "://" in where and secret_in(where),
                f"servers.{name} is an address with a secret, which would be saved; give a command that connects to it",
            )
            for name, where in self.servers.items()
        ] + [
            (not self.functions and not self.servers, "functions and servers are empty; name a function or a server"),
            *(
                (name not in self.functions, f"arguments has {name}, but functions has {', '.join(self.functions)}")
                for name in self.arguments
            ),
        ]

    def check(self) -> None:
        try:
            calls_in("", self.calls, {})
        except Exception as error:  # the function may be the user's
            raise UserError(
                f"environment.calls is {self.calls.name}, which fails for an empty text: {reason(error)}"
            ) from error
        for name, path in self.functions.items():
            tool, own, option = load_object(path, "tool"), self.arguments.get(name, {}), f"environment.arguments.{name}"
            if not isinstance(tool, type):
                if own:
                    raise UserError(f"{option} is given, but {path} is not a class, which would take it")
                continue
            if "__call__" not in vars(tool):
                raise UserError(f"environment.functions.{name} is {path}, which has no __call__ of its own")
            try:
                inspect.signature(tool).bind(**own)
            except TypeError as error:
                raise UserError(f"{option} does not fit {path}: {error}") from None
            if hasattr(tool, "check"):
                tool.check(**own)
        if twice := [name for name in self._served if name in self.functions]:
            raise UserError(f"environment.functions has {twice[0]}, as a server of environment.servers; rename yours")

    def close(self) -> None:
        self._processes.close()

    @cached_property
    def _processes(self) -> ServerPool:
        return ServerPool(self.concurrency, _load, (self.functions, self.arguments, self.servers))

    @cached_property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """JSON schemas of what may be called, by name."""
        return {name: schema(name, load_object(path, "tool")) for name, path in self.functions.items()} | self._served

    @cached_property
    def _served(self) -> dict[str, dict[str, Any]]:
        if not self.servers:
            return {}
        with closing(ExitStack()) as stack:  # an error that the connections saw would come in groups of theirs
            return {name: tool.schema for name, tool in connect(self.servers, stack).items()}

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schemas of the parameters of each tool."""
        return {name: one["function"]["parameters"] for name, one in self.schemas.items()}

    @cached_property
    def sees(self) -> bool:
        """Whether a function gets the images of the dialogue."""
        return any(takes(load_object(path, "tool"), "images") for path in self.functions.values())

    def answer(self, call: Call, images: Sequence[Image] = (), seed: int = 0) -> list[Result]:
        """The result of one call, as texts and images, or what is wrong with it."""
        if call.problem:
            return [f"error: {call.problem}"]
        if call.name not in self.schemas:
            return [f"error: there is no tool {call.name!r}; there are {', '.join(self.schemas)}"]
        result = self._result(call.name, call.arguments or {}, {"images": list(images), "seed": seed})
        return [part[: self.longest_result] if isinstance(part, str) else part for part in result]

    def _result(self, name: str, arguments: Mapping[str, Any], given: Mapping[str, Any]) -> list[Result]:
        """What a function returned, or why it did not, whatever it does: its process can be killed."""
        loaded = False
        try:
            with self._processes.one() as process:
                process.load(LONGEST_LOAD, f"it took longer than {LONGEST_LOAD:g} seconds")
                loaded = True
                late = f"took longer than {self.timeout:g} seconds"
                return process.call(self.timeout, late, name, dict(arguments), given)  # type: ignore[no-any-return]
        except RecursionError:  # of pickling: nothing was sent
            return [f"error: the arguments of {name} are nested too deeply"]
        except (LoadFailed, TimeoutError, ChildDied) as error:
            ended = isinstance(error, ChildDied)
            if not loaded:
                raise RuntimeError(f"the tools can't be loaded: {'its process ended' if ended else error}") from None
            return [f"error: {name} {'ended its process' if ended else error}"]


def _load(given: tuple[dict[str, str], dict[str, dict[str, Any]], dict[str, str]]) -> Callable[..., list[Result]]:
    paths, arguments, servers = given
    sys.stdout = sys.stderr  # what a tool prints is no metric of the run
    tools = {name: load_object(path, "tool") for name, path in paths.items()}
    functions = {
        name: tool(**arguments.get(name, {})) if isinstance(tool, type) else tool for name, tool in tools.items()
    }
    wanted = {name: [one for one in GIVEN if takes(tool, one)] for name, tool in tools.items()}
    served = connect(servers, CONNECTIONS) if servers else {}
    functions, wanted = functions | served, wanted | {name: [] for name in served}

    def answer(name: str, written: Mapping[str, Any], given: Mapping[str, Any]) -> list[Result]:
        try:
            returned = awaited(functions[name](**written, **{one: given[one] for one in wanted[name]}))
            parts = list(returned) if isinstance(returned, list | tuple) else [returned]
            if not any(map(_is_image, parts)):
                return [str(returned)]
            return [shown(part) if _is_image(part) else str(part) for part in parts]
        except (Exception, SystemExit) as error:  # the function is the user's, the arguments are the model's
            return [f"error: {type(error).__name__}: {redacted(str(error))}"]

    return answer


def _is_image(value: Any) -> bool:
    return type(value).__module__.startswith("PIL.") or type(value).__name__ == "ndarray"


def called(tool: Callable[..., Any]) -> Callable[..., Any]:
    """What answers the calls of a tool: the function, or of a class what its instances are called by."""
    return vars(tool).get("__call__", tool) if isinstance(tool, type) else tool


def takes(tool: Callable[..., Any], name: str) -> bool:
    """Whether a tool has a keyword-only parameter of that name."""
    parameter = inspect.signature(called(tool)).parameters.get(name)
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY


@dataclass
class _Calls:
    tools: Tools
    images: list[Image] = field(default_factory=list)  # of the dialogue so far
    seed: int = 0
    count: int = 0  # calls so far

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self.seed = seed
        if self.tools.sees:
            self.images = [media.image() for media in prompt.images]
        return Observation()

    def step(self, response: str) -> Observation:
        from burnish.utils import random  # brings torch

        calls = calls_in(response, self.tools.calls, self.tools.parameters)
        if not calls:
            return Observation(done=True)
        first, self.count = self.count, self.count + len(calls)
        results = [
            self.tools.answer(call, self.images, random.key(self.seed, "call", first + number))
            for number, call in enumerate(calls)
        ]
        shown = [part for result in results for part in result if not isinstance(part, str)]
        self.images += [part for part in shown if not is_video(part)]
        if self.tools.role == "tool":  # whose form is the chat template's, or its model's
            return Observation([part for result in results for part in result], role="tool")
        told: list[Result] = []
        for part in (part for result in results for part in (BEFORE, *result, AFTER + "\n")):
            if isinstance(part, str) and told and isinstance(told[-1], str):
                told[-1] += part
            else:
                told.append(part)
        return Observation([*told[:-1], str(told[-1]).removesuffix("\n")], role=self.tools.role)


def schema(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a tool: its name, its docstring, and its parameters with their annotations.

    Args:
        name: of the tool.
        function: annotations and docstring are optional; the section "Args:" describes parameters. Of a class, what
            its instances are called by.
    """
    bound, function = isinstance(function, type), called(function)
    text = inspect.getdoc(function) or ""
    descriptions = arguments(text)
    properties, required = {}, []
    for parameter in list(inspect.signature(function).parameters.values())[bound:]:
        given = parameter.name in GIVEN and parameter.kind is parameter.KEYWORD_ONLY  # no model writes it
        if given or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            continue
        properties[parameter.name] = _kind(parameter.annotation, function)
        if parameter.name in descriptions:
            properties[parameter.name]["description"] = descriptions[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": summary(text), "parameters": parameters},
    }


def _kind(annotation: Any, function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of an annotation, which may be a text; {} takes anything, also where the annotation names what is
    imported for type checkers alone, or what JSON has no form for."""
    try:
        known = getattr(inspect.unwrap(function), "__globals__", {})
        hint = typing.get_type_hints(types.SimpleNamespace(__annotations__={"it": annotation}), known)["it"]
        return TypeAdapter(hint).json_schema()
    except Exception:
        return {}


@dataclass(frozen=True)
class McpTool:
    """A tool of a server to which there is a connection."""

    schema: dict[str, Any]  # as functions have it
    client: Client
    portal: BlockingPortal  # to the thread in whose event loop the client runs

    def __call__(self, **arguments: Any) -> str | list[Any]:
        """What the tool gives: a text, or texts and images.

        Raises:
            RuntimeError: the tool failed, with what it says.
        """
        result = self.portal.call(self.client.call_tool, self.schema["function"]["name"], arguments)
        parts = [_part(block) for block in result.content]
        if result.is_error:
            raise RuntimeError(" ".join(map(str, parts)))
        return "\n".join(parts) if all(isinstance(part, str) for part in parts) else parts


def _part(block: Any) -> Any:
    """A text, an image, or of other content its JSON."""
    if block.type == "image":
        return open_image(base64.b64decode(block.data))
    return block.text if block.type == "text" else block.model_dump_json(by_alias=True, exclude_none=True)


def connect(servers: Mapping[str, str], stack: ExitStack) -> dict[str, McpTool]:
    """The tools of some servers by name; connections last as long as ``stack``.

    Args:
        servers: by name, each as the command that starts it (it speaks over stdin and stdout), or as its address (over
            streamable HTTP). A command gets no environment variables but those that a program needs to start.
        stack: closes the connections, and ends what the commands started.

    Raises:
        UserError: a server can't be reached, or two tools have the same name.
    """
    require("mcp", "environment.servers")
    from anyio.from_thread import start_blocking_portal
    from mcp import Client, StdioServerParameters

    portal = stack.enter_context(start_blocking_portal())
    found: dict[str, McpTool] = {}
    for name, where in servers.items():
        server: Any = where
        try:
            if "://" not in where:
                program, *arguments = shlex.split(where)
                server = StdioServerParameters(command=program, args=arguments)
            client = Client(server, read_timeout_seconds=LONGEST_START)
            stack.enter_context(portal.wrap_async_context_manager(client))
            tools = portal.call(_listed, client)
        except Exception as error:
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):  # of the client's tasks
                first = first.exceptions[0]
            raise UserError(f"environment.servers.{name} is {where!r}, which can't be used: {reason(first)}") from error
        for tool in tools:
            if tool.name in found:
                raise UserError(f"environment.servers.{name} has a tool {tool.name}, as another has; remove one server")
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            found[tool.name] = McpTool({"type": "function", "function": function}, client, portal)
    return found


async def _listed(client: Client) -> list[Any]:
    """All tools of a server, which gives them page by page."""
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools
