"""Tools that a policy calls: results, everything that can be wrong with a call, and calls that never end."""

from __future__ import annotations

import pytest

from burnish.config import load
from burnish.environments.call_formats import Call
from burnish.environments.tools import Tools
from burnish.types.prompt import Prompt
from burnish.utils.errors import ConfigError, UserError
from tests.support.games import play

HERE = "tests.support.tool_functions"
SUM = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 40}}</tool_call>'


@pytest.fixture(scope="module")
def tools():
    made = Tools(functions={name: f"{HERE}:{name}" for name in ("add", "sleep", "leave")}, timeout=3.0)
    yield made
    made.close()


def asked(tools, response):
    episode = tools.episode()
    assert episode.reset(Prompt(text="?"), 0).content == ()
    return episode.step(response)


def test_a_call_is_answered_and_a_response_without_one_ends_the_dialogue(tools):
    seen = asked(tools, f"Let me see. {SUM}")
    assert (seen.words, seen.messages) == ("42", [{"role": "tool", "content": [{"type": "text", "text": "42"}]}])
    assert (seen.role, seen.done, seen.reward) == ("tool", False, None)
    assert asked(tools, SUM + SUM).words.count("42") == 2
    assert len(asked(tools, SUM + SUM).messages) == 2
    assert asked(tools, "It is 42.").done
    asking = Tools(functions=tools.functions, role="user")
    assert asked(asking, SUM).words == "<tool_response>\n42\n</tool_response>"
    asking.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("add(2, 40)", "error: a call must be JSON"),
        ("[1]", "error: a call must be JSON"),
        ('{"name": "sub", "arguments": {}}', "error: there is no tool 'sub'; there are add, sleep, leave"),
        ('{"name": ["add"], "arguments": {}}', "error: there is no tool"),
        ('{"name": "add", "arguments": [2, 40]}', "error: arguments must be an object"),
        ('{"name": "add", "arguments": {"a": 2}}', "error: TypeError: add() missing 1 required"),
        ('{"name": "add", "arguments": {"a": 2, "b": "x"}}', "error: TypeError"),
    ],
)
def test_a_wrong_call_is_told_so_to_the_model(tools, call, message):
    assert message in asked(tools, f"<tool_call>{call}</tool_call>").words


@pytest.mark.parametrize("depth", [100, 500, 800, 900, 940, 980, 5000, 100_000])
def test_however_deep_a_call_is_nested_the_model_is_told(tools, depth):
    """Python's JSON and pickles end at depths of their own."""
    call = '{"name": "add", "arguments": {"a": ' + depth * "[" + depth * "]" + "}}"
    assert asked(tools, f"<tool_call>{call}</tool_call>").words.startswith("error: ")
    assert "42" in asked(tools, SUM).words


def test_a_tool_that_never_returns_or_dies_is_ended_and_the_next_call_works():
    tools = Tools(functions={name: f"{HERE}:{name}" for name in ("add", "sleep", "leave")}, timeout=1.0)
    assert tools.answer(Call("add", {"a": 1, "b": 1})) == ["2"]
    assert tools.answer(Call("sleep", {"seconds": 60})) == ["error: sleep took longer than 1 seconds"]
    tools.timeout = 30.0
    assert tools.answer(Call("leave", {})) == ["error: leave ended its process"]
    assert "2" in asked(tools, SUM).words
    tools.close()


def test_a_tool_may_be_async_and_show_videos():
    tools = Tools(functions={name: f"tests.support.tool_functions:{name}" for name in ("later", "empty")})
    told = tools.episode().step('<tool_call>{"name": "later", "arguments": {"a": 4}}</tool_call>')
    assert told.words == "[picture]\n[video]\n?"
    assert (len(told.pictures), [video.shape for video in told.videos]) == (1, [(4, 28, 28, 3)])
    assert [part["type"] for part in told.messages[0]["content"]] == ["image", "video", "text"]
    nothing = tools.episode().step('<tool_call>{"name": "empty", "arguments": {}}</tool_call>')
    assert nothing.words == "error: OSError: a picture of 0 x 0 pixels has nothing to show"
    tools.close()


def test_long_results_are_cut():
    tools = Tools(functions={"add": f"{HERE}:add"}, longest_result=3)
    assert tools.answer(Call("add", {"a": "abc", "b": "def"})) == ["abc"]
    tools.close()


def test_without_calls_a_dialogue_is_one_response(tools):
    completion, responses = play(tools, [Prompt(text="One?")])
    assert [len(one.dialogue.responses) for one in responses] == [1, 1]
    assert completion.mask.sum(1).tolist() == completion.length.tolist()


def test_tools_that_are_not_there_are_refused():
    with pytest.raises(UserError, match="path of tool is 'nowhere:add'"):
        Tools(functions={"add": "nowhere:add"}).check()
    with pytest.raises(ConfigError, match=r"environment\.functions"):
        load("vlm_quickstart", ["environment.name=tools", "environment.functions={}"])
    config = load("vlm_quickstart", ["environment.name=tools", f"environment.functions.add={HERE}:add"])
    assert isinstance(config.environment, Tools)
