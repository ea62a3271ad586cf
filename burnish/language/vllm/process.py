"""The process of vLLM as its owner sees it; the other side is apart/burnish_vllm/worker.py."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from burnish.utils.allocator import ON_GPU
from burnish.utils.errors import UserError
from burnish.utils.supervisor import Child, ChildDied

APART = Path(__file__).with_name("apart")  # all that vLLM's environment gets to see of Burnish
START = "import sys; from burnish_vllm.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
SHOWN = 20  # last lines of its log that an error quotes


class VllmFailedError(RuntimeError):
    """vLLM could not do what it was asked; the message says what that was, and quotes its log."""


class VllmDiedError(VllmFailedError):
    """Its process ended or hung."""


class VllmProcess(Child):
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
        self._asked = 0  # requests so far
        self._log = tempfile.NamedTemporaryFile(prefix="burnish-vllm-", suffix=".log")  # noqa: SIM115 (until close)
        try:
            super().__init__(
                START, python=python, environment=_environment(devices), output=self._log.file,
            )  # fmt: skip
        except OSError as error:
            raise UserError(
                f"rollout.vllm.python is {python}, which can't be run ({error.strerror}); "
                "it must be the Python of an environment with vLLM, see docs/vllm.md"
            ) from error
        with contextlib.suppress(OSError):  # it has ended already: so says the first question
            self.wire.send((0, first))

    def ready(self, check_cancelled: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Wait until vLLM is there; at once where it is. Its version, and the longest text that it reads.

        Raises:
            VllmFailedError: it could not be built, or not in time.
        """
        if self._ready is None:
            self._ready = next(self._responses("its start", self._start_timeout, check_cancelled))
        return self._ready

    def ask(self, what: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request that has one; see ``answers``."""
        return next(self.answers(what, message))

    def answers(
        self, what: str, message: Mapping[str, Any], check_cancelled: Callable[[], None] = lambda: None
    ) -> Iterator[dict[str, Any]]:
        """Send a request and yield the responses, until the caller has enough.

        Args:
            what: is asked for, in words.
            message: the request.
            check_cancelled: called once a second; what it raises ends the wait, and the process is of no more use.

        Raises:
            VllmFailedError: vLLM reported an error.
            VllmDiedError: its process ended, or gave no sign of life in time.
        """
        self.ready(check_cancelled)
        self._asked += 1
        with self._watched(what, self._timeout):
            self.wire.send((self._asked, message))
        yield from self._responses(what, self._timeout, check_cancelled)

    def close(self) -> None:
        """Kill the process and free what its owner holds of it."""
        if not self._log.closed:
            super().close()
            self._log.close()

    def _responses(self, what: str, limit: float, check_cancelled: Callable[[], None]) -> Iterator[dict[str, Any]]:
        while True:
            with self._watched(what, limit):
                self.await_message(check_cancelled)
                number, response = self.wire.recv()
            if number != self._asked:
                raise VllmDiedError(f"vLLM answered another request when it was asked for {what}")
            if "error" in response:
                raise VllmFailedError(self._quoting_log(f"vLLM failed at {what}: {response['error']}"))
            if "alive" not in response:
                yield response

    @contextlib.contextmanager
    def _watched(self, what: str, limit: float) -> Iterator[None]:
        try:
            with self.deadline(
                limit, f"timed out after {limit:g} s without a sign of life from vLLM, waiting for {what}"
            ):
                yield
        except TimeoutError as error:
            raise VllmDiedError(self._quoting_log(str(error))) from None
        except ChildDied as error:
            raise VllmDiedError(self._quoting_log(f"vLLM ended while it was asked for {what}: {error}")) from None

    def _quoting_log(self, text: str) -> str:
        lines = Path(self._log.name).read_text(errors="replace").splitlines()[-SHOWN:]
        return "\n".join([text, *([f"The last of what it wrote ({len(lines)} lines):"] if lines else []), *lines])


def _environment(devices: str | None) -> dict[str, str]:
    """Nothing of the trainer's Python may be seen by the other one; and nothing is sent to anybody."""
    # segments that grow, which are good for training, end a vLLM that sleeps or is shared out over GPUs
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV", *ON_GPU)}
    own = {"PYTHONPATH": str(APART), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    if devices is not None:
        own["CUDA_VISIBLE_DEVICES"] = devices
    if torch.are_deterministic_algorithms_enabled():
        own["VLLM_BATCH_INVARIANT"] = "1"  # who else is in a batch depends on when each was done
    return {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"} | kept | own
