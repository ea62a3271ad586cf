"""Processes that answer too often, too seldom, or for another request. They are threads, so that many are cheap."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from burnish.utils.supervisor import Server


class Misbehaving(Server):
    """Answers each request as its script says, and rightly when the script is over.

    Its answers have the number of the request before (before), of the next one (after), or the right number a second
    time (again); they are too short (less) or too long (more), can't be read (garbage), or don't come (nothing).
    """

    def __init__(self, script: Iterable[Sequence[str]], answer: Callable[..., Any]) -> None:
        """Args: ``script`` says what is sent for each request, in order; ``answer`` is given what was asked."""
        ours, self._end = socket.socketpair()
        self.wire, self._theirs = Connection(ours.detach()), Connection(os.dup(self._end.fileno()))
        self._loaded, self.process = True, self
        self._script, self._answer = iter(script), answer
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        before: tuple[int, Any] = (0, None)
        with suppress(EOFError, OSError):  # it is killed
            while True:
                number, asked = self._theirs.recv()
                right = self._answer(*asked)
                for way in next(self._script, ["right"]):
                    if way == "garbage":
                        self._theirs.send_bytes(b"no pickle")
                    elif way == "nothing":
                        self.kill()  # it ends without an answer, so that nobody has to wait for the deadline
                    else:
                        self._theirs.send(self._sent(way, number, right, before))
                before = number, right

    def _sent(self, way: str, number: int, right: Any, before: tuple[int, Any]) -> tuple[int, Any]:
        """The number of a request, and what is said to be the answer to it."""
        match way:
            case "less":
                return number, right[:-1]
            case "more":
                return number, [*right, right[0]]
            case "before":
                return before
            case "after":
                return number + 1, before[1]
            case "again":
                return number, before[1]
        return number, right

    def poll(self) -> None:
        return None

    def wait(self, timeout: float) -> int:
        return 0

    def kill(self) -> None:
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        self._thread.join()  # or it might write to what is opened next
        for end in (self._theirs, self._end):
            end.close()
