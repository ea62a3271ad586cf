"""A process beside a run that follows what the run writes, as copies of checkpoints do.

It is told when there is more to do, started again after a failure, and what it reports is logged. Nothing waits for it
before the end.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burnish.utils.addresses import redacted
from burnish.utils.supervisor import ChildDied, LoadFailed, Server
from burnish.utils.terminal import printable

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0  # seconds before one that failed is started again
STALL = 300.0  # seconds without progress after which a process counts as hanging
PERIOD = 0.5  # seconds between two reports


class Report:
    """What the work in the process says."""

    def __init__(self) -> None:
        self.messages: deque[tuple[str, Any]] = deque()

    def alive(self) -> None:
        """Work goes on."""
        if not self.messages:
            self.messages.append(("alive", None))

    def done(self, update: int) -> None:
        """An update is done."""
        self.messages.append(("done", update))

    def info(self, text: str) -> None:
        self.messages.append(("info", text))

    def warning(self, text: str) -> None:
        self.messages.append(("warning", text))


# makes, of arguments and a report, what does all that is to be done each time it is called
Factory = Callable[[Mapping[str, Any], Report], Callable[[], None]]


class Worker:
    """In the process: works in a thread, and answers how it goes."""

    def __init__(self, made: tuple[Factory, Mapping[str, Any]]) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # they are for the run, which then ends this process
        self._made, self._report = made, Report()
        self._work: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def __call__(self) -> tuple[list[tuple[str, Any]], bool]:
        """Begin to work, unless it has begun: messages of the next moment, and whether everything is done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._thread.join(PERIOD)
        if ended := not self._thread.is_alive():
            self._thread = None
        return [self._report.messages.popleft() for _ in range(len(self._report.messages))], ended

    def _run(self) -> None:
        try:
            if self._work is None:
                factory, arguments = self._made
                self._work = factory(arguments, self._report)
            self._work()
        except BaseException as error:  # whatever a library raises, SystemExit included
            text = " ".join(redacted(f"{type(error).__name__}: {error}").split())
            self._report.messages.append(("failed", text[:500]))


class Sidecar:
    """Keeps one process going, from a thread of the run."""

    def __init__(
        self,
        option: str,
        factory: Factory,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        option: that asks for it, which messages begin with.
        factory: of the work; at the top level of a module.
        arguments: of the factory.
        environment: variables beside those of this process.
        """
        self.option, self._made, self._environment = option, (factory, dict(arguments)), environment
        self.upto = self.delivered = -1  # updates
        self.done = False  # everything is done, and the process has ended
        self.failed = 0  # failures so far
        self.problem = ""  # the last one
        self._server: Server | None = None
        self._wake, self._ending, self._closed = threading.Event(), threading.Event(), False
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._follow, name=option, daemon=True)

    def start(self) -> None:
        """Start the process."""
        self._wake.set()
        self._thread.start()

    def allow(self, update: int) -> None:
        """Let it do everything up to an update."""
        if update > self.upto:
            self.upto = update
        self._wake.set()

    def end(self) -> None:
        """Let it do what is left, and end."""
        self._ending.set()
        self._wake.set()

    def wait(self, deadline: float) -> None:
        """Wait for its end, up to a time of ``time.monotonic``; then kill it."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, deadline - time.monotonic()))
        self._closed = True
        if self._server is not None:
            self._server.kill()

    def _follow(self) -> None:
        pause = FIRST_PAUSE
        while not self.done and not self._closed:
            self._wake.wait()
            self._wake.clear()
            ending, delivered = self._ending.is_set(), self.delivered
            self.problem = self._do_all()
            if not self.problem:
                self.done = ending
                continue
            self._close()
            if ending:
                return
            self.failed += 1
            self._warn(f"{self.problem}; the run goes on, and it is tried again")
            pause = FIRST_PAUSE if self.delivered > delivered else pause
            self._ending.wait(pause)  # the end of the run: at once, for the last time
            pause = min(2 * pause, LONGEST_PAUSE)
            self._wake.set()
        self._close()

    def _do_all(self) -> str:
        """Have everything done that there is: what went wrong, or ""."""
        hangs, moved = f"it has got nowhere for {STALL:g} s", time.monotonic()
        try:
            if self._server is None:
                with open(os.devnull, "wb") as nowhere:
                    self._server = Server(Worker, self._made, self._environment, output=nowhere)
                self._server.load(STALL, hangs)
            while time.monotonic() - moved < STALL:
                messages, ended = self._server.call(STALL, hangs)
                if messages:
                    moved = time.monotonic()
                for kind, value in messages:
                    if kind == "failed":
                        return str(value)
                    self._hear(kind, value)
                if ended:
                    return ""
        except (OSError, ChildDied, LoadFailed) as error:
            return str(error) if isinstance(error, TimeoutError) else f"its process has died: {error}"
        return hangs

    def _hear(self, kind: str, value: Any) -> None:
        if kind == "done":
            self.delivered = max(self.delivered, value)
        elif kind == "info":
            log.info("%s: %s", self.option, printable(value))
        elif kind == "warning":
            self._warn(value)

    def _warn(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s: %s", self.option, printable(text))

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def end_all(sidecars: Sequence[Sidecar], seconds: float) -> list[Sidecar]:
    """End processes, which together have N seconds to do what is left; those that have not done it all."""
    deadline = time.monotonic() + seconds
    for sidecar in sidecars:
        sidecar.end()
    try:
        for sidecar in sidecars:
            sidecar.wait(deadline)
    finally:
        for sidecar in sidecars:
            sidecar.wait(0.0)
    return [sidecar for sidecar in sidecars if not sidecar.done]
