"""The process of vLLM as its owner sees it: asked one question at a time, and never waited for without end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from burnish.tasks.language.vllm.apart.burnish_vllm.wire import Arrays, Channel
from burnish.utils.errors import UserError

APART = Path(__file__).with_name("apart")  # all that vLLM's environment gets to see of Burnish
START = "import sys; from burnish_vllm.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
LOOK = 1.0  # seconds between looks at whether a silent process still lives
SHOWN = 20  # last lines of its log that an error quotes


class VllmFailedError(RuntimeError):
    """vLLM could not do what it was asked; the message says what that was, and quotes its log."""


class VllmDiedError(VllmFailedError):
    """Its process ended or hung."""


class VllmProcess:
    """Starts at once. After an error it is of no more use and should be closed."""

    def __init__(
        self, python: str, first: Mapping[str, Any], *, devices: str | None, start_timeout: float, timeout: float
    ) -> None:
        """Start the process and have it build vLLM, which takes a minute or more.

        Args:
            python: of the environment that vLLM is installed in.
            first: what the process is told: arguments of the engine, and tokens that are never written.
            devices: what it sees as CUDA_VISIBLE_DEVICES; None is what this process sees.
            start_timeout: seconds until vLLM must be ready.
            timeout: seconds without a sign of life after which it counts as hung.

        Raises:
            UserError: there is no such Python.
        """
        self._start_timeout, self._timeout = start_timeout, timeout
        self._ready: dict[str, Any] | None = None
        ours, theirs = socket.socketpair()
        self._log = tempfile.NamedTemporaryFile(prefix="burnish-vllm-", suffix=".log")  # noqa: SIM115 (until close)
        self._channel = Channel(ours)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [python, "-c", START, str(theirs.fileno()), str(os.getpid())],
                    pass_fds=[theirs.fileno()],
                    env=_environment(devices),
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    process_group=0,  # out of reach of Ctrl-C, and ended together with what vLLM starts
                )
            except OSError as error:
                self._channel.close()
                raise UserError(
                    f"rollout.vllm.python is {python}, which can't be run ({error.strerror}); "
                    "it must be the Python of an environment with vLLM, see docs/vllm.md"
                ) from error
        with contextlib.suppress(OSError):  # it has ended already: so says the first question
            self._channel.send(first)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self, between: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Wait until vLLM is there; at once where it is. Its version, and the longest text that it reads.

        Raises:
            VllmFailedError: it could not be built, or not in time.
        """
        if self._ready is None:
            self._ready, _ = next(self._answers("its start", self._start_timeout, between))
        return self._ready

    def ask(
        self,
        what: str,
        header: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray] | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[dict[str, Any], Arrays]]:
        """Put a question and yield the answers, until the caller has heard enough.

        Args:
            what: is asked for, in words.
            header: the question.
            arrays: that go with it.
            between: called once a second; what it raises ends the wait, and the process is of no more use.

        Raises:
            VllmFailedError: vLLM reported an error.
            VllmDiedError: its process ended, or gave no sign of life in time.
        """
        self.ready(between)
        self._channel.deadline(self._timeout)
        with self._watching(what, self._timeout):
            self._channel.send(header, arrays)
        yield from self._answers(what, self._timeout, between)

    def _answers(self, what: str, limit: float, between: Callable[[], None]) -> Iterator[tuple[dict[str, Any], Arrays]]:
        self._channel.deadline(limit)
        while True:
            with self._watching(what, limit):
                answer, data = self._hear(limit, between)
            if "error" in answer:
                raise VllmFailedError(self._complain(f"vLLM failed at {what}: {answer['error']}"))
            if "alive" not in answer:
                yield answer, data

    @contextlib.contextmanager
    def _watching(self, what: str, limit: float) -> Iterator[None]:
        """Say what was waited for when the process is gone or silent."""
        try:
            yield
        except TimeoutError:
            self.end()
            text = f"waited for {what} from vLLM, which gave no sign of life for {limit:g} seconds"
            raise VllmDiedError(self._complain(text)) from None
        except (EOFError, OSError):
            raise VllmDiedError(self._complain(f"vLLM ended while it was asked for {what}: {self._ending()}")) from None

    def _hear(self, limit: float, between: Callable[[], None]) -> tuple[dict[str, Any], Arrays]:
        begun = time.monotonic()
        between()
        while not self._channel.waits(LOOK):
            between()
            if self._process.poll() is not None:
                raise EOFError
            if time.monotonic() - begun > limit:
                raise TimeoutError
        return self._channel.receive()

    def end(self) -> None:
        """Kill the process and all it has started; one that is dead already stays so."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and free what its owner holds of it."""
        if not self._log.closed:
            self.end()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a system call, which nobody can help
                self._process.wait(timeout=LOOK)
            self._channel.close()
            self._log.close()

    def _ending(self) -> str:
        try:
            status = self._process.wait(timeout=LOOK)
        except subprocess.TimeoutExpired:
            return "it has closed its connection"
        return f"exit status {status}" if status >= 0 else f"signal {-status}, {signal.strsignal(-status)}"

    def _complain(self, text: str) -> str:
        lines = Path(self._log.name).read_text(errors="replace").splitlines()[-SHOWN:]
        return "\n".join([text, *([f"The last of what it wrote ({len(lines)} lines):"] if lines else []), *lines])


def _environment(devices: str | None) -> dict[str, str]:
    """Nothing of the trainer's Python may be seen by the other one; and nothing is sent to anybody."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
    own = {"PYTHONPATH": str(APART), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    if devices is not None:
        own["CUDA_VISIBLE_DEVICES"] = devices
    return {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"} | kept | own
