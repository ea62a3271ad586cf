"""Environments keep what plug-ins are asked for: a dialogue is a function of its prompt, its seed and the responses."""

import json
import random
import socket
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import yaml

from burnish.environments.base import Environment, Observation
from burnish.environments.function import action_in, shown
from burnish.registry import lookup, names
from burnish.testing import check_environment
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support.processes import holds_nothing_up

PROMPT = Prompt(text="Which way?", answer="4")
ROOT = Path(__file__).parents[2]
MOVES = [f"<answer>{way}</answer>" for way in ("up", "left", "nowhere", "down", "right")]


def test_a_game_of_users() -> None:
    function = lookup("environment", "function")
    check_environment(function(path=f"{ROOT}/examples/grid_game.py:GridGame"), PROMPT, MOVES)
    for arguments, said in ({}, "no method reset and no step"), ({"x": 1}, "can't be created"):
        with pytest.raises(UserError, match=said):
            function(path="builtins:object", arguments=arguments).check()


def test_tools(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text('def add(a: int, b: int) -> int:\n    """The sum."""\n    return a + b\n')
    tools = lookup("environment", "tools")(functions={"add": f"{tmp_path / 'sums.py'}:add"})
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'
    broken = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    check_environment(tools, PROMPT, [call, broken, "It is 4."])


def test_tools_of_a_server(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    (tmp_path / "server.py").write_text(yaml.safe_load((ROOT / "tests/environments/games.yaml").read_text())["server"])
    tools = lookup("environment", "tools")(servers={"sums": f"{sys.executable} {tmp_path / 'server.py'}"})
    tools.check()
    assert [one["function"]["name"] for one in tools.tools()[None]] == ["add", "shown", "heard"]
    call = '<tool_call>{"name": "add", "arguments": {"a": %s, "b": 2}}</tool_call>'
    picture = '<tool_call>{"name": "shown", "arguments": {"grey": 200}}</tool_call>'
    check_environment(tools, PROMPT, [call % 2, picture, call % 10, "It is 4."])
    episode = tools.episode()
    episode.reset(PROMPT, 0)
    assert [episode.step(call % a).words for a in (2, 10)] == ["4", "error: RuntimeError: Error executing tool add"]
    assert episode.step(picture).images[0].getpixel((0, 0)) in (200, (200, 200, 200))
    assert '"mimeType":"audio/wav"' in episode.step('<tool_call>{"name": "heard", "arguments": {}}</tool_call>').words
    tools.functions["add"] = "tests.support.tool_functions:add"
    with pytest.raises(UserError, match=r"environment\.functions has add, as a server"):
        tools.check()
    tools.close()
    twice = dict.fromkeys("ab", tools.servers["sums"])
    for servers, said in (({"sums": "true"}, r"servers\.sums is 'true'"), (twice, r"servers\.b has a tool add, as")):
        with pytest.raises(UserError, match=said):
            lookup("environment", "tools")(servers=servers).check()


def test_servers_of_openenv() -> None:
    pytest.importorskip("openenv")
    import uvicorn
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

    class Guess(Action):
        number: int

    class Told(Observation):
        said: str

    class Game(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        state = State()

        def reset(self, seed=None, high=4, **_):
            self.number = random.Random(seed).randint(1, high)
            return Told(said=f"1 to {high}?")

        def step(self, action, **_):
            right = action.number == self.number
            return Told(said="yes" if right else "no", reward=float(right), done=right)

    server = uvicorn.Server(
        uvicorn.Config(create_fastapi_app(Game, Guess, Told, max_concurrent_envs=99), log_level="error")
    )
    (listener := socket.socket()).bind(("127.0.0.1", 0))
    Thread(target=server.run, args=([listener],), daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    game = lookup("environment", "function")(path="openenv:GenericEnvClient", arguments={"base_url": url})
    says = ["who knows", '{"number": "x"}', *(f'It is {{"number": {number}}}' for number in range(1, 9))]
    prompt = replace(PROMPT, record='{"high": 8}')
    check_environment(game, prompt, says)
    episode = game.episode()
    assert episode.reset(prompt, 3).words == "said: 1 to 8?\n"
    steps = [episode.step(say) for say in says[: 2 + random.Random(3).randint(1, 8)]]
    assert "VALIDATION_ERROR" in steps[1].words
    assert [(step.reward, step.done) for step in steps] == [*[(0, False)] * (len(steps) - 1), (1, True)]
    server.should_exit = True


def test_environments_of_gymnasium() -> None:
    pytest.importorskip("gymnasium")
    function = lookup("environment", "function")
    lake = function(
        path="gymnasium:make", arguments={"id": "FrozenLake-v1", "is_slippery": False, "render_mode": "ansi"}
    )
    check_environment(lake, PROMPT, ["I go down: 1", "somewhere", "2", "1", "1"])
    episode = lake.episode()
    assert "SFFF" in episode.reset(PROMPT, 0).words.replace("\x1b[41mS\x1b[0m", "S")
    assert episode.step("not 1 but 9") == Observation("There is no action of Discrete(4) in this response.", reward=0.0)
    steps = [episode.step(f"To {way}") for way in (2, 2, 1, 1, 1, 2)]  # as the map has it, around the holes
    assert [(step.reward, step.done) for step in steps] == [(0.0, False)] * 5 + [(1.0, True)]
    boxes = function(path="tests.support.games:Boxes").episode()
    seen = boxes.reset(PROMPT, 3)
    assert (seen.words, np.asarray(seen.images[0]).max()) == ("image: [image]\nstep: 0\n", 3)
    assert boxes.step('so {"move": [0.5, -1], "name": "left"}').reward == -0.5
    for response in ('{"move": [0.5, 7], "name": "left"}', '{"move": [0.5, 1]}', "[]", "left"):
        assert ("no action" in (seen := boxes.step(response)).words, seen.reward) == (True, 0)
    import gymnasium.spaces as spaces

    both = spaces.Tuple([spaces.Discrete(4), spaces.Text(8)])
    assert action_in('not [1, "up"] [but [this] and {"a": "[2]"} and [3, "left"] {', both) == (3, "left")
    assert action_in(" go \n", spaces.Text(8)) == "go"
    assert action_in("1 of -2", spaces.Discrete(4, start=-3)) == -2
    assert shown(("a", {"b": np.zeros((2, 2, 2, 3), np.uint8)[0, 0, 0], "c": np.ones(2)})) == [
        "a", "\n", "b: ", "[0, 0, 0]", "\n", "c: ", "[1.0, 1.0]", "\n", "\n",
    ]  # fmt: skip


def test_another_environment_for_each_label(tmp_path: Path) -> None:
    game = {"name": "function", "path": f"{ROOT}/examples/grid_game.py:GridGame"}
    (tmp_path / "sums.py").write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    tools = {"name": "tools", "functions": {"add": f"{tmp_path / 'sums.py'}:add"}}
    given = {"game": game, "sums": tools, "asks": {"name": "agent", "command": [sys.executable]}, "removed": None}
    both = lookup("environment", "by_label")(environments=given, max_turns=9)
    both.check()
    assert (both.roles, both.user_code()) == (("tool",), [game["path"], *tools["functions"].values()])
    assert [both.longest(50)] + [replace(both, max_length=most).longest(50) for most in (400, 500)] == [450, 400, 450]
    assert [one["function"]["description"] for one in both.tools()["sums"]] == [""]
    for label in ("game", "sums", None):
        check_environment(both, replace(PROMPT, label=label), MOVES)
    assert [len(replace(PROMPT, label=label).told(both.tools())) for label in ("game", "sums", None)] == [0, 1, 0]
    with pytest.raises(ValueError, match="label 'other' has no environment"):
        both.episode().reset(replace(PROMPT, label="other"), 0)
    with pytest.raises(UserError, match=r"environments\.game\.max_turns is 7"):
        lookup("environment", "by_label")(environments={"game": game | {"max_turns": 7}}).check()
    both.close()


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


MARKS = json.loads(Path(__file__).with_name("marks.json").read_text())["calls"]


@pytest.mark.parametrize("name", names("call format"))
def test_a_mark_that_a_response_repeats_holds_nothing_up(name: str) -> None:
    """Read in one pass, 20,000 of them take milliseconds; read anew from each, minutes."""
    read = lookup("call format", name)().read
    holds_nothing_up(lambda mark: read(f"<tool_call>{mark * 20_000}</tool_call>", {}), MARKS)
