"""Functions that a policy may call: each call is answered with what the function returned."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from burnish.environments.base import Environment, Episode, Observation
from burnish.environments.calls import ToolProcess
from burnish.environments.schemas import schema
from burnish.options import Count, Seconds
from burnish.registry import register
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.user_code import load_object

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

RESULT = "<tool_response>\n{}\n</tool_response>"
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)  # as Qwen and Hermes write it


@register("environment", "tools")
class Tools(Environment):
    """Calls written as <tool_call>{"name": ..., "arguments": {...}}</tool_call>; a response without one ends it."""

    functions: dict[str, str] = Field(min_length=1)
    """Functions by the names that they are called by: package.module:function or path/to/file.py:function. They are
    run in a process of their own, get the arguments as keywords, and what they return is shown as text."""
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

    def tools(self) -> list[dict[str, Any]]:
        if not self.describe:
            return []
        return [schema(name, load_object(path, "tool")) for name, path in self.functions.items()]

    def user_code(self) -> list[str]:
        return list(self.functions.values())

    def check(self) -> None:
        for path in self.functions.values():
            load_object(path, "tool")
        if any(not name.strip() for name in self.functions):
            raise UserError("environment.functions has an empty name, by which nothing can be called")

    def close(self) -> None:
        self.process.close()

    @cached_property
    def process(self) -> ToolProcess:
        """Where the functions run, one call at a time."""
        return ToolProcess(self.functions, self.timeout)

    def answer(self, text: str) -> str:
        """The result of one call, or what is wrong with it."""
        try:
            call = parse_json(text)
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError):
            return 'error: a call must be JSON like {"name": "...", "arguments": {...}}'
        if not isinstance(name, str) or name not in self.functions:
            return f"error: there is no tool {name!r}; there are {', '.join(self.functions)}"
        if not isinstance(arguments, dict):
            return "error: arguments must be an object"
        return self.process.call(name, arguments)[: self.longest_result]


@dataclass
class _Calls:
    tools: Tools

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        return Observation()

    def step(self, response: str) -> Observation:
        calls = CALL.findall(response)
        if not calls:
            return Observation(done=True)
        results = [self.tools.answer(call) for call in calls]
        if self.tools.role == "tool":  # whose form is the chat template's, or its model's
            return Observation(results, role="tool")
        return Observation("\n".join(map(RESULT.format, results)), role=self.tools.role)
