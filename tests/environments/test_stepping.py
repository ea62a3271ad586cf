"""Environments that are asked for many dialogues at once: in any order, within a deadline, each for itself."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from burnish.environments.base import Environment, Observation
from burnish.environments.call_formats import Call
from burnish.environments.stepping import answers
from burnish.environments.tools import Tools
from burnish.registry import options
from burnish.types.prompt import Prompt
from burnish.utils.errors import Cancelled
from tests.support.games import Shows, play, prompts

HERE = "tests.support.tool_functions"


def nothing() -> None:
    """No stop."""


def test_answers_come_in_the_order_of_the_questions_though_all_wait_for_each_other():
    barrier = threading.Barrier(4)

    def asked(number: int) -> int:
        barrier.wait(20)  # all four are under way
        return number

    questions = [lambda number=number: asked(number) for number in range(4)]
    assert answers(questions, concurrency=4, deadline=None, check_cancelled=nothing) == [0, 1, 2, 3]


def test_one_that_fails_or_never_ends_is_alone_with_that():
    def fails() -> None:
        raise RuntimeError("no")

    ended = threading.Event()
    questions = [lambda: 1, ended.wait, fails, lambda: exit(3), lambda: 5]
    first, late, failed, left, last = answers(questions, concurrency=2, deadline=0.5, check_cancelled=nothing)
    ended.set()
    assert (first, last) == (1, 5)
    assert "longer than 0.5 s (environment.deadline)" in str(late)
    assert isinstance(failed, RuntimeError)
    assert isinstance(left, SystemExit)


def test_no_more_are_asked_at_a_time_than_the_option_says():
    under_way, most, lock = [0], [0], threading.Lock()

    def ask() -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.01)
        with lock:
            under_way[0] -= 1

    answers([ask] * 9, concurrency=3, deadline=None, check_cancelled=nothing)
    assert most[0] <= 3


def test_a_stop_ends_the_wait():
    ended = threading.Event()

    def stop() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        answers([ended.wait], concurrency=2, deadline=None, check_cancelled=stop)
    ended.set()


def test_dialogues_are_the_same_however_many_are_answered_at_once():
    found = [play(Shows(concurrency=count, deadline=limit), prompts()) for count, limit in ((1, None), (3, 60.0))]
    (one, said), (other, told) = found
    assert [response.full_text for response in said] == [response.full_text for response in told]
    for name in ("ids", "mask", "logprob", "positions", "length"):
        assert torch.equal(getattr(one, name), getattr(other, name))


@options
class Hangs(Environment):
    """Never answers the second prompt."""

    def episode(self) -> Hangs:
        return Hangs(**{name: getattr(self, name) for name in ("max_turns", "concurrency", "deadline")})

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self.__dict__["text"] = prompt.text
        return Observation()

    def step(self, response: str) -> Observation:
        if self.__dict__["text"] == "Two?":
            time.sleep(5)
        return Observation(reward=1.0, done=True)


def test_a_dialogue_that_waits_too_long_breaks_alone():
    _, responses = play(Hangs(deadline=0.5, concurrency=2), prompts())
    errors = [response.dialogue.error for response in responses]
    assert [bool(error) for error in errors] == [False, False, True, True]
    assert "TimeoutError: it took longer than 0.5 s" in errors[2]


def test_tools_run_in_as_many_processes_as_are_asked_at_once():
    tools = Tools(functions={"sleep": f"{HERE}:sleep", "add": f"{HERE}:add"}, concurrency=3, timeout=30.0)
    try:
        assert tools.answer(Call("add", {"a": 1, "b": 2})) == ["3"]
        calls = [lambda: tools.answer(Call("add", {"a": 1, "b": 2}))] * 7
        assert answers(calls, concurrency=3, deadline=None, check_cancelled=nothing) == [["3"]] * 7
        assert len(tools.processes) == 3
    finally:
        tools.close()
