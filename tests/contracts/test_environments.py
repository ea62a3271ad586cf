"""Environments keep what plug-ins are asked for: a dialogue is a function of its prompt, its seed and the responses."""

import random
from pathlib import Path

import pytest

from burnish.environments.base import Environment, Observation
from burnish.registry import lookup, names
from burnish.testing import check_environment
from burnish.types.prompt import Prompt
from tests.support.processes import holds_nothing_up

PROMPT = Prompt(text="Which way?", answer="4")
ROOT = Path(__file__).parents[2]
MOVES = [f"<answer>{way}</answer>" for way in ("up", "left", "nowhere", "down", "right")]


def test_a_game_of_users() -> None:
    check_environment(lookup("environment", "function")(path=f"{ROOT}/examples/grid_game.py:GridGame"), PROMPT, MOVES)


def test_tools(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text('def add(a: int, b: int) -> int:\n    """The sum."""\n    return a + b\n')
    tools = lookup("environment", "tools")(functions={"add": f"{tmp_path / 'sums.py'}:add"})
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'
    broken = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    check_environment(tools, PROMPT, [call, broken, "It is 4."])


class Shared(Environment):
    """Its episodes share what they change."""

    def episode(self):
        return self

    def reset(self, prompt, seed):
        self.__dict__["turn"] = 0
        return Observation()

    def step(self, response):
        self.__dict__["turn"] += 1
        return Observation(str(self.__dict__["turn"]))


class Drawing(Shared):
    """It draws without the seed."""

    def step(self, response):
        return Observation(str(random.random()))


@pytest.mark.parametrize("broken", [Shared, Drawing])
def test_a_broken_one_is_found_out(broken: type[Environment]) -> None:
    with pytest.raises(AssertionError):
        check_environment(broken(), PROMPT, ["a", "b"])


MARKS = (
    "<tool_call>", "<tool_call><function=a><parameter=b>", "<tool_call><arg_key>", "<minimax:tool_call>", "functions.",
    '<minimax:tool_call><invoke name="a">', "<seed:tool_call><function=a>", "```python\n", "[TOOL_CALLS]",
    "<|tool_call>call:a{", "<|action_start|>", "<|tool_call_begin|>", "to=functions.a", "<｜tool▁call▁begin｜>a",
    "{", "[", "a(", " ", "\n",
)  # fmt: skip


@pytest.mark.parametrize("name", names("call format"))
def test_a_mark_that_a_response_repeats_holds_nothing_up(name: str) -> None:
    """Read in one pass, 20,000 of them take milliseconds; read anew from each, minutes."""
    read = lookup("call format", name)().read
    holds_nothing_up(lambda mark: read(f"<tool_call>{mark * 20_000}</tool_call>", {}), MARKS)
