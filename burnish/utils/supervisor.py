"""A child process that answers one request after another: how its owner starts, asks and ends it, and how it serves."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from functools import partial
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import IO, Any

POLL = 1.0  # seconds between checks whether a silent process is still alive

# multiprocessing's own spawn would run the user's script a second time in the child, torch and all
START = """\
import sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
sys.path[:] = pipe.recv()
from burnish.utils.supervisor import serve
serve(pipe, int(sys.argv[2]))
"""


class ChildDied(Exception):
    """The process ended before it answered; the message says how."""


class LoadFailed(Exception):
    """The process could not load what it is to serve; the message says why."""


class Child:
    """A process and the connection to it. After an error it is of no more use and should be closed."""

    def __init__(
        self,
        code: str,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        """Start it.

        Args:
            code: what it runs, with the descriptor of its end and its parent's process id as arguments.
            python: the interpreter.
            environment: all of its variables; None passes on those of this process.
            output: takes what it prints; None leaves that to this process's own streams.

        Raises:
            OSError: ``python`` can't be run.
        """
        ours, theirs = socket.socketpair()
        self.wire = Connection(ours.detach())
        with theirs:
            self.process = subprocess.Popen(
                [python, "-c", code, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                process_group=0,  # out of reach of Ctrl-C, and ended together with what it starts
            )

    @contextlib.contextmanager
    def deadline(self, seconds: float, message: str) -> Iterator[None]:
        """Kill the process when time is up, which ends every wait for it, be it to send or to receive.

        Raises:
            TimeoutError: time was up; with the message.
            ChildDied: the process ended by itself.
        """
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.kill()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (EOFError, OSError):
            if not expired.is_set():
                raise ChildDied(self._how_it_ended()) from None
        finally:
            timer.cancel()
        if expired.is_set():
            raise TimeoutError(message)

    def await_message(self, check_cancelled: Callable[[], None] = lambda: None) -> None:
        """Wait until a message begins to arrive.

        Args:
            check_cancelled: called once a second; what it raises ends the wait.

        Raises:
            EOFError: the process is dead.
        """
        check_cancelled()
        while not wait([self.wire.fileno()], POLL):
            check_cancelled()
            if self.process.poll() is not None:
                raise EOFError

    def kill(self) -> None:
        """Kill the process and all it has started; one that is dead already stays so."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process and free what its owner holds of it."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a system call, which nobody can help
            self.process.wait(timeout=POLL)
        self.wire.close()

    def _how_it_ended(self) -> str:
        try:
            status = self.process.wait(timeout=POLL)
        except subprocess.TimeoutExpired:
            return "it has closed its connection"
        return f"exit status {status}" if status >= 0 else f"signal {-status}, {signal.strsignal(-status)}"


class Server(Child):
    """A Python process like this one, but for the script it runs, that calls one function again and again."""

    def __init__(
        self,
        load: Callable[[Any], Callable[..., Any]],
        argument: Any,
        environment: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        """Start it.

        Args:
            load: is called in the process and returns the function that answers; at the top level of a module.
            argument: of ``load``.
            environment: variables beside those of this process.
            output: takes what it prints; None leaves that to this process's own streams.
        """
        self._load, self._loaded = (load, argument), False
        super().__init__(START, environment=os.environ | dict(environment or {}), output=output)

    def load(self, seconds: float, message: str) -> None:
        """Wait until it is ready to answer; at once where it is.

        Raises:
            LoadFailed: ``load`` raised.
            TimeoutError, ChildDied: see ``deadline``.
        """
        if self._loaded:
            return
        with self.deadline(seconds, message):
            self.wire.send(sys.path)
            error = self._exchange(self._load)
        if error is not None:
            raise LoadFailed(error)
        self._loaded = True

    def call(self, seconds: float, message: str, *arguments: Any) -> Any:
        """What the function returns.

        Raises:
            TimeoutError, ChildDied: see ``deadline``.
        """
        with self.deadline(seconds, message):
            return self._exchange(arguments)

    def _exchange(self, message: Any) -> Any:
        self.wire.send(message)
        self.await_message()
        return self.wire.recv()


class ServerPool:
    """Processes alike, each for one caller at a time. One starts when it is first needed, and anew where it failed."""

    def __init__(
        self,
        count: int,
        load: Callable[[Any], Callable[..., Any]],
        argument: Any,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is started yet. Of ``count`` processes each is as ``Server`` has it."""
        self.closed = False
        self._start = partial(Server, load, argument, environment)
        self._lock, self._running = threading.Lock(), set[Server]()
        self._count, self._free = count, SimpleQueue[Server | None]()  # None has to be started
        for _ in range(count):
            self._free.put(None)

    @contextlib.contextmanager
    def one(self) -> Iterator[Server]:
        """A process that nobody else asks meanwhile; it is ended where what is raised says that it is of no more use.

        Raises:
            CancelledError: all were ended.
        """
        server = self._free.get()
        try:
            with self._lock:
                if self.closed:
                    raise CancelledError
                server = server or self._start()
                self._running.add(server)
            yield server
        except (LoadFailed, TimeoutError, ChildDied):
            self._end(server)
            server = None
            raise
        finally:
            self._free.put(server)

    def kill(self) -> None:
        """End them now and for good, whoever waits for an answer."""
        with self._lock:
            self.closed = True
            for server in self._running:
                server.kill()

    def close(self) -> None:
        """The same, and free what this process holds of them, once nobody asks them any more."""
        self.kill()
        for server in [self._free.get() for _ in range(self._count)]:
            self._end(server)
            self._free.put(None)

    def _end(self, server: Server | None) -> None:
        if server is not None:
            with self._lock:
                self._running.discard(server)
            server.close()


def serve(pipe: Connection, parent: int) -> None:
    """The child's side of a ``Server``.

    Args:
        pipe: to the parent; brings what to load, then the arguments of each call.
        parent: process id; the process ends when this is no longer its parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    os.set_inheritable(pipe.fileno(), False)
    os.register_at_fork(after_in_child=pipe.close)  # a process that the function has forked can't answer for it
    when_parent_ends(parent, lambda: os._exit(1))
    # a closed pipe: the parent is gone, or wants no more
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        load, argument = pipe.recv()
        try:
            function = load(argument)
        except Exception as error:
            pipe.send(str(error))
            return
        pipe.send(None)
        while True:
            pipe.send(function(*pipe.recv()))


def when_parent_ends(parent: int, end: Callable[[], object]) -> None:
    """Call a function once the process that started this one is gone, however it ended."""

    def follow() -> None:
        # a pipe tells nothing to a process that is busy, or while a child of the parent holds its other end
        while os.getppid() == parent:
            time.sleep(0.5)
        end()

    threading.Thread(target=follow, daemon=True).start()
