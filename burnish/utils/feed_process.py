"""A process beside a run: hears from ``burnish.utils.feed`` how far the run has got, and says what it has done."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, Literal

from burnish.utils.json_text import parse_json
from burnish.utils.secrets import redacted

GRACE = 60.0  # seconds that it may still work after its run was killed

Outcome = Literal["finished", "stopped", "failed"]  # of a run
Work = Callable[[dict[str, Any], "Orders", Callable[..., None]], None]


class Orders:
    """What the run says: up to which update its files are complete, and how it ended."""

    def __init__(self, lines: IO[str]) -> None:
        self.changed = threading.Event()
        self.upto = -1
        self.outcome: Outcome | None = None
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: IO[str]) -> None:
        try:
            for line in lines:
                order = parse_json(line)
                self.upto = max(self.upto, order.get("upto", -1))
                self.outcome = order.get("end", self.outcome)
                self.changed.set()
        finally:
            self.outcome = self.outcome or "failed"  # the run was killed
            self.changed.set()


def serve(end: socket.socket, lines: IO[str], parent: int, work: Work) -> None:
    """Work beside a run until it ends.

    Args:
        end: of the connection to the run's process.
        lines: what comes from there: what it is told first; then orders.
        parent: process id of the run.
        work: is called with what it was told, the orders, and a function that takes what is to be said: ``step``, the
            last update that is done, also to say that work goes on; ``opened`` and ``warning``, texts that are logged.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the run, which then ends this process
    os.set_inheritable(end.fileno(), False)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()

    def say(**message: Any) -> None:
        with suppress(OSError):  # the run was killed; what it left is sent all the same
            end.sendall(json.dumps(message).encode() + b"\n")

    told = parse_json(lines.readline())
    orders = Orders(lines)
    try:
        work(told, orders, say)
    except BaseException as error:  # whatever a library raises, SystemExit included
        text = " ".join(redacted(f"{type(error).__name__}: {error}").split())
        say(failed=text[:500])
        os._exit(1)  # what a library does at exit may hang
    say(done=True)
    os._exit(0)


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    time.sleep(GRACE)
    os._exit(1)
