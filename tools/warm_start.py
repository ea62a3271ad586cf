"""Starts commands of Burnish as forks of a process that has imported what they need: seconds less for each.

``Starter`` is for tools; this file as a program is the process that forks. It learns what to import from the commands
themselves: a fork tells which modules it has at its end, and what is new is imported before the next one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

TIMED_OUT = -1000
POLL = 0.02  # seconds


class Starter:
    """Runs commands one after the other. It has a process of its own once there was one."""

    def __init__(self, checkout: Path, environment: Mapping[str, str]) -> None:
        self._checkout, self._environment = checkout, dict(environment)
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, arguments: Sequence[str], log: Path, timeout: float) -> int:
        """Run ``burnish ARGUMENTS``: its exit status, or ``TIMED_OUT``."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve())], cwd=self._checkout, env=self._environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"arguments": list(arguments), "log": str(log.resolve()), "timeout": timeout}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that starts commands has ended with {self._process.wait()}; it said why")
        return int(answer)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate(timeout=60)
            self._process = None


def serve() -> None:
    """Fork for every line of standard input, until it ends."""
    sys.path.pop(0)  # the folder of this file, where a command would not look
    for line in sys.stdin:
        order = json.loads(line)
        with tempfile.TemporaryFile("w+") as told:
            child = os.fork()
            if child == 0:
                become(order["arguments"], order["log"], told)
            status = wait(child, order["timeout"])
            told.seek(0)
            modules = told.read().split()
        print(status, flush=True)
        load(modules)


def load(modules: list[str]) -> None:
    """Import what was not here yet, without what modules say of themselves when they are imported."""
    said, silence = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    for name in modules:
        # Ray reads the environment when it is imported
        if name not in sys.modules and name.partition(".")[0] not in ("__main__", "__mp_main__", "ray"):
            with suppress(Exception):  # a name that a module gave itself
                __import__(name)
    os.dup2(said, 2)
    os.close(said)
    os.close(silence)


def become(arguments: list[str], log: str, told: IO[str]) -> NoReturn:
    """The command, in this process."""
    os.setpgid(0, 0)
    streams = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for number, stream in enumerate((streams[0], streams[1], streams[1])):
        os.dup2(stream, number)
    sys.argv = ["burnish", *arguments]
    status = 1
    try:
        from burnish.cli import main

        status = main()
        print(*sys.modules, file=told, flush=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def wait(child: int, timeout: float) -> int:
    """The exit status of a fork, which is killed with all that it started when its time is over."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMED_OUT


if __name__ == "__main__":
    serve()
