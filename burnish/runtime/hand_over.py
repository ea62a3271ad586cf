"""A stream that is made by one thread while another one uses it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

END = object()
WAITING = 1  # items that are made and not yet used


def handed_over(made: Iterator[T], use: Callable[[T], None]) -> None:
    """``for one in made: use(one)``, where the next one is made while one is used, in another thread.

    Three items exist at a time: one that is made, one that waits, one that is used. When either side raises, the
    other one ends with what it is at, and the error is raised.
    """
    waiting: queue.Queue[Any] = queue.Queue(WAITING)
    failed: list[BaseException] = []

    def work() -> None:
        while (one := waiting.get()) is not END:
            if not failed:
                try:
                    use(one)
                except BaseException as error:
                    failed.append(error)
            del one

    user = threading.Thread(target=work, name="hand over", daemon=True)
    user.start()
    try:
        for one in made:
            if failed:
                break
            waiting.put(one)
            del one
    finally:
        waiting.put(END)
        user.join()
    if failed:
        raise failed[0]
