"""The process that tools run in: it can be ended, whatever a tool does."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from burnish.environments.calling import READY

# as for scoring processes: the user's script must not run a second time in the child
START = """\
import sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
sys.path[:] = pipe.recv()
from burnish.environments.calling import main
main(pipe, int(sys.argv[2]))
"""
STARTING = 60.0  # seconds in which the functions must be loaded


class ToolProcess:
    """Calls functions by name. It starts with the first call, and anew after a call that it did not survive."""

    def __init__(self, functions: Mapping[str, str], timeout: float) -> None:
        self._functions, self._timeout = dict(functions), timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Any = None

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a function returned, as text, or why it did not.

        Raises:
            RuntimeError: the functions can't be loaded there.
        """
        if self._process is None:
            self._start()
        try:
            self._pipe.send((name, dict(arguments)))
            if self._pipe.poll(self._timeout):
                answer: str = self._pipe.recv()
                return answer
            why = f"took longer than {self._timeout:g} seconds"
        except (EOFError, OSError):
            why = "ended its process"
        self.close()
        return f"error: {name} {why}"

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._pipe.close()
            self._process = None

    def _start(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # out of reach of Ctrl-C
            )
        try:
            self._pipe.send(sys.path)
            self._pipe.send(self._functions)
            said = self._pipe.recv() if self._pipe.poll(STARTING) else f"it took longer than {STARTING:g} seconds"
        except (EOFError, OSError):
            said = "its process ended"
        if said != READY:
            self.close()
            raise RuntimeError(f"the tools can't be loaded: {said}")
