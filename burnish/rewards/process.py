"""A scoring process as its owner sees it: asked one question at a time, and never waited for without end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burnish.rewards.base import AnyReward, Verdict
from burnish.types.prompt import Prompt

# multiprocessing's own spawn would run the user's script a second time in the child, torch and all
START = """\
import sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
sys.path[:] = pipe.recv()
from burnish.rewards.worker import main
main(pipe, int(sys.argv[2]))
"""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # it shares the machine with the trainer
LOOK = 1.0  # seconds between looks at whether a silent process still lives


class DiedError(Exception):
    """The process ended before it answered; the message says how."""


class ScoringProcess:
    """Starts at once. After an error it is of no more use and should be closed."""

    def __init__(self, rewards: Mapping[str, AnyReward], timeout: float) -> None:
        self._rewards, self._timeout = dict(rewards), timeout
        self._ready = False
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                env=os.environ | ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                process_group=0,  # out of reach of Ctrl-C, and ended together with what a reward starts
            )

    def load(self) -> None:
        """Wait until the rewards are loaded; at once where they are.

        Raises:
            TimeoutError: they are not in time.
            DiedError: the process ended.
        """
        if not self._ready:
            with self._deadline("its process, to load its rewards,"):
                self._pipe.send(sys.path)
                self._pipe.send(self._rewards)
                self._receive()
            self._ready = True

    def ask(self, label: str, samples: Sequence[Any], prompts: Sequence[Prompt]) -> list[Verdict]:
        """One reward's verdicts.

        Raises:
            TimeoutError: no answer in time; the message says what was waited for.
            DiedError: the process ended.
        """
        self.load()
        with self._deadline(f"its verdicts on {len(samples)} {self._rewards[label].judged}"):
            self._pipe.send((label, list(samples), list(prompts)))
            verdicts: list[Verdict] = self._receive()
            return verdicts

    def end(self) -> None:
        """Kill the process and all it has started; one that is dead already stays so."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and free what its owner holds of it."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a system call, which nobody can help
            self._process.wait(timeout=LOOK)
        self._pipe.close()

    def _receive(self) -> Any:
        while not self._pipe.poll(LOOK):
            if self._process.poll() is not None:
                raise EOFError
        return self._pipe.recv()

    @contextlib.contextmanager
    def _deadline(self, what: str) -> Iterator[None]:
        """Kill the process when time is up: that ends every wait for it, be it to send or to receive."""
        late = threading.Event()

        def strike() -> None:
            late.set()
            self.end()

        timer = threading.Timer(self._timeout, strike)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (EOFError, OSError):
            if not late.is_set():
                raise DiedError(self._how_it_ended()) from None
        finally:
            timer.cancel()
        if late.is_set():
            raise TimeoutError(f"waited for {what} longer than scoring.timeout={self._timeout:g} seconds")

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(timeout=LOOK)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if status >= 0:
            return f"exit status {status}"
        return f"signal {-status}, {signal.strsignal(-status)}"
