"""Asks environments for many dialogues at once, in threads, each with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

POLL = 0.05  # seconds between looks at what is under way
Asked = Callable[[], Any]


class _Answer:
    """One question, asked in a thread of its own."""

    def __init__(self, ask: Asked) -> None:
        self._ask, self.done, self.began = ask, threading.Event(), time.monotonic()
        self.result: Any = None
        # a daemon: one that never returns must not keep the run from ending
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.result = answer(self._ask)
        self.done.set()


def answer(ask: Asked) -> Any:
    """What a question gives, or the exception that it raises: an environment may be the user's."""
    try:
        return ask()
    except (Exception, SystemExit) as error:
        return error


def answers(
    asked: Sequence[Asked], *, concurrency: int, deadline: float | None, check_cancelled: Callable[[], None]
) -> list[Any]:
    """What each question gives, in order; an exception where one fails or takes too long.

    Args:
        asked: questions.
        concurrency: how many are asked at a time. One at a time and without a deadline, all are asked in this thread.
        deadline: seconds that one may take; its thread is left behind then.
        check_cancelled: is called again and again; what it raises ends the wait.
    """
    if concurrency == 1 and deadline is None:
        found = []
        for ask in asked:
            check_cancelled()
            found.append(answer(ask))
        return found
    results: dict[int, Any] = {}
    waiting, under_way = list(range(len(asked)))[::-1], dict[int, _Answer]()
    while len(results) < len(asked):
        check_cancelled()
        while waiting and len(under_way) < concurrency:
            number = waiting.pop()
            under_way[number] = _Answer(asked[number])
        for number, one in list(under_way.items()):
            if one.done.is_set():
                results[number] = one.result
            elif deadline is not None and time.monotonic() - one.began > deadline:
                results[number] = TimeoutError(f"it took longer than {deadline:g} s (environment.deadline)")
            else:
                continue
            del under_way[number]
        if under_way:
            next(iter(under_way.values())).done.wait(POLL)
    return [results[number] for number in range(len(asked))]
