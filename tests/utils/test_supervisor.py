"""A child process and its owner: what rewards, tools and vLLM rely on, and see from one side only."""

from __future__ import annotations

import os
import random
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from burnish.utils.supervisor import ChildDied, LoadFailed, Server
from tests.support.misbehaving import Misbehaving

LIMIT = 60.0


def starts_others(note):
    """Answers with the process id of a child of its own, or does what it is told."""
    if note == "bad":
        raise ValueError("bad luck")

    def answer(order):
        child = subprocess.Popen(["sleep", "600"]).pid
        if order == "leave":
            os._exit(7)
        if order == "hang":
            Path(note).write_text(str(child))
            time.sleep(600)
        return child

    return answer


def ended(pid):
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_what_a_child_starts_ends_with_it_and_a_deadline_ends_both(tmp_path):
    server = Server(starts_others, str(tmp_path / "pid"))
    server.load(LIMIT, "late")
    child = server.call(LIMIT, "late", "start")
    with pytest.raises(TimeoutError, match="it took too long"):
        server.call(1.0, "it took too long", "hang")
    assert ended(child)
    assert ended(int((tmp_path / "pid").read_text()))
    server.close()


def test_a_death_and_an_error_while_loading_are_told_apart():
    server = Server(starts_others, "")
    server.load(LIMIT, "late")
    with pytest.raises(ChildDied, match="exit status 7"):
        server.call(LIMIT, "late", "leave")
    server.close()
    server = Server(starts_others, "bad")
    with pytest.raises(LoadFailed, match="bad luck"):
        server.load(LIMIT, "late")
    server.close()


def forks(_):
    """Doubles a number; where it is odd, in a process that comes back from here, too."""

    def answer(number):
        if number % 2 and not (child := os.fork()):
            return -1
        if number % 2:
            os.waitpid(child, 0)
        return 2 * number

    return answer


def test_a_forked_process_that_comes_back_answers_nothing():
    server = Server(forks, None)
    server.load(LIMIT, "late")
    assert [server.call(LIMIT, "late", number) for number in range(6)] == [0, 2, 4, 6, 8, 10]
    server.close()


def test_no_answer_is_ever_taken_for_that_to_another_request():
    chosen, right = random.Random(0), 0
    for _ in range(300):
        # a wrong value with the right number is the scorer's own mistake, so that "again" comes after "right"
        script = [
            ["right"] if chosen.random() < 0.7 else chosen.choices(["before", "after", "garbage", "nothing"], k=1)
            + chosen.choice([[], ["right"], ["right", "again"]])
            for _ in range(3)
        ]  # fmt: skip
        script.insert(chosen.randrange(4), chosen.choice([["right", "again"], ["right", "after"], ["right"]]))
        server = Misbehaving(script, lambda value: 2 * value)
        with suppress(ChildDied, TimeoutError):
            for value in range(1, 5):
                assert server.call(LIMIT, "late", value) == 2 * value
                right += 1
        server.close()
    assert right > 150
