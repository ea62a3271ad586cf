"""A process beside a run that follows what the run writes, as copies of checkpoints do: the run's side of it.

It is started, told up to which update there is something to do, started again after a failure, and what it says is
logged. Nothing waits for it before the end. ``burnish.utils.feed_process`` is its own side.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.utils.json_text import parse_json
from burnish.utils.supervisor import Child
from burnish.utils.terminal import printable

log = logging.getLogger(__name__)

START = """\
import json, socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
lines = end.makefile("r", encoding="utf-8")
sys.path[:] = json.loads(lines.readline())
from importlib import import_module
serve = import_module(sys.argv[3]).serve
serve(end, lines, int(sys.argv[2]))
"""
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0  # seconds before one that failed is started again
POLL = 0.05  # seconds
TAKES = 5.0  # seconds in which a process has to take what it is told first, which it reads at once


@dataclass
class Timing:
    """Time, so that tests need none."""

    clock: Callable[[], float] = time.monotonic
    stall: float = 300.0  # seconds without progress after which a process counts as hanging


class Feed:
    """Keeps one process going."""

    def __init__(
        self,
        option: str,
        module: str,
        told: Mapping[str, Any],
        timing: Timing,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        option: that asks for it, which messages begin with.
        module: whose ``serve`` the process runs; see ``burnish.utils.feed_process``.
        told: what it is told first, as JSON has it.
        timing: of failures.
        environment: variables beside those of this process.
        """
        self.option, self.module, self.told, self.timing = option, module, told, timing
        self.environment = dict(environment or {})
        self.upto = self.delivered = -1
        self.done = False  # everything is done, and the process has ended
        self.problem = ""  # the last one
        self._child: Child | None = None
        self._outcome: str | None = None
        self.failed = 0  # failures so far
        self._failures, self._retry_at, self._moved = 0, 0.0, 0.0  # failures in a row
        self._heard, self._unsent = b"", b""
        self._orders: dict[str, Any] = {}  # not sent yet; later ones replace earlier ones
        self._said: set[str] = set()

    def start(self) -> None:
        """Start the process."""
        self._heard, self._unsent, self._orders, self._moved = b"", b"", {}, self.timing.clock()
        try:
            with open(os.devnull, "wb") as nowhere:
                code = START.replace("sys.argv[3]", repr(self.module))
                self._child = Child(_whole, code, environment=os.environ | self.environment, output=nowhere)
            end: socket.socket = self._child.wire
            end.settimeout(TAKES)
            end.sendall(json.dumps(sys.path).encode() + b"\n" + json.dumps(self.told).encode() + b"\n")
            end.setblocking(False)
        except OSError as error:
            self._failed(f"its process can't be started: {error}")
            return
        self._tell(upto=self.upto)

    def allow(self, update: int) -> None:
        """Let it do everything up to an update."""
        self.poll()
        if self.delivered >= self.upto:
            self._moved = self.timing.clock()  # it had nothing to do until now
        self.upto = max(self.upto, update)
        self._tell(upto=self.upto)

    def end(self, outcome: str) -> None:
        """Let it do what is left, and end."""
        self._outcome = outcome
        self.poll()
        if self._child is None and not self.done:
            self.start()  # at once, for the last time
        self._tell(end=outcome)

    def poll(self) -> None:
        """Hear what it has to say; end it if it hangs, and start it again after a while."""
        now = self.timing.clock()
        if self._child is None:
            if not self.done and self._outcome is None and now >= self._retry_at:
                self.start()
            return
        self._flush()
        gone = self._listen()
        if self.done:
            self.close()
        elif gone:
            self._failed(self.problem or "its process has died")
        elif self.delivered < self.upto and now - self._moved > self.timing.stall:
            self._failed(f"it has got nowhere for {self.timing.stall:g} s")

    def close(self) -> None:
        """Kill the process."""
        if self._child is not None:
            self._child.close()
            self._child = None

    @property
    def left(self) -> int:
        """Updates that it has not got to."""
        return self.upto - self.delivered

    @property
    def running(self) -> bool:
        """Whether its process is at work."""
        return self._child is not None

    def _failed(self, problem: str) -> None:
        self.close()
        self.problem = problem
        pause = min(FIRST_PAUSE * 2**self._failures, LONGEST_PAUSE)
        self._failures += 1
        self.failed += 1
        self._retry_at = self.timing.clock() + pause
        if problem not in self._said:
            self._said.add(problem)
            log.warning("%s: %s; the run goes on, and it is tried again", self.option, printable(problem))

    def _tell(self, **order: Any) -> None:
        self._orders |= order
        self._flush()

    def _flush(self) -> None:
        while self._child is not None and (self._unsent or self._orders):
            if not self._unsent:
                self._unsent, self._orders = json.dumps(self._orders).encode() + b"\n", {}
            try:
                self._unsent = self._unsent[self._child.wire.send(self._unsent) :]
            except OSError:  # it hangs, and is told later; or it has died, which poll finds out
                return

    def _listen(self) -> bool:
        """Read what it says; whether it is gone."""
        assert self._child is not None
        while True:
            try:
                some = self._child.wire.recv(1 << 16)
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not some:
                return True
            self._heard += some
            *lines, self._heard = self._heard.split(b"\n")
            for line in lines:
                self._hear(parse_json(line))

    def _hear(self, message: dict[str, Any]) -> None:
        if (step := message.get("step")) is not None:
            if step > self.delivered:
                self.delivered, self._failures = step, 0
            self._moved = self.timing.clock()
        if "failed" in message:
            self.problem = message["failed"]
        if message.get("opened"):
            log.info("%s: %s", self.option, printable(message["opened"]))
        if "warning" in message and message["warning"] not in self._said:
            self._said.add(message["warning"])
            log.warning("%s: %s", self.option, printable(message["warning"]))
        self.done = self.done or "done" in message


def end_all(feeds: Sequence[Feed], outcome: str, seconds: float) -> list[Feed]:
    """End processes, which together have N seconds to do what is left; those that have not done it all."""
    try:
        for feed in feeds:
            feed.end(outcome)
        deadline = time.monotonic() + seconds
        while any(feed.running for feed in feeds) and time.monotonic() < deadline:
            time.sleep(POLL)
            for feed in feeds:
                feed.poll()
    finally:
        for feed in feeds:
            feed.close()
    return [feed for feed in feeds if not feed.done]


def _whole(end: socket.socket) -> socket.socket:
    return end
