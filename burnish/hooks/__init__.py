"""Hooks of the training loop: what is called after every update, and what asks the loop to stop.

A stop is requested by a signal (of Ctrl-C or a scheduler) or as the machine is reclaimed; the run then saves itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from burnish.utils.errors import Cancelled, UserError
from burnish.utils.user_code import load_module

if TYPE_CHECKING:
    from burnish.options import StepOptions
    from burnish.types.rollout import Collected


class Hook:
    """Called after every update with its metrics, to which it may add for later hooks."""

    def start(self, done: int) -> None:
        """Before the first update of this process, after ``done`` updates of earlier ones."""

    def observe(self, update: int, collected: Collected) -> None:
        """With the batch of an update, before anything is learned from it."""

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        """After ``update`` policy updates; 0 is before the first one."""

    def finish(self) -> None:
        """After the last update of this process, unless it failed."""

    def close(self) -> None:
        """Release resources, also after an error."""


class HookFunction(Protocol):
    """What a function registered as a "hook" is called with."""

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        """After ``update`` policy updates, with their metrics, to which it may add."""


class FunctionHook(Hook):
    """A function as a hook."""

    function: ClassVar[Callable[[int, dict[str, float]], None]]

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        type(self).function(update, metrics)


def registered_hooks(plugins: Sequence[str]) -> list[Hook]:
    """Those that the plugins of a run have registered, and the process itself."""
    from burnish.registry import entries  # which a command imports after it has said something

    modules = [load_module(where).__name__ for where in plugins]
    return [
        hook() for hook in entries("hook")
        if hook.__module__ == "__main__" or any(f"{hook.__module__}.".startswith(f"{one}.") for one in modules)
    ]  # fmt: skip


EXIT_STOPPED = 75
"""Exit code of a run that saved and stopped on request: EX_TEMPFAIL of sysexits.h. The same command resumes it."""
EXIT_INTERRUPTED = 130
"""Exit code after a second Ctrl-C, which does not wait for a checkpoint."""

# SIGUSR1 and SIGUSR2 are what Slurm, SGE and LSF are often told to send, or send, before they end a job
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class StopRequest:
    """In this context the first signal only sets ``requested``, which the loop checks after each update.

    A second Ctrl-C interrupts immediately; further signals are ignored, as schedulers send several. Signals
    are only handled in the main thread. Output that nobody reads any more requests a stop, too.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.answer = "cancelling sampling or finishing this update, then saving and stopping"  # to the first signal
        self._interrupts = 0  # how often Ctrl-C came
        self._at_once = False
        self._previous: dict[signal.Signals, Any] = {}
        self._streams: tuple[Any, Any] = (None, None)

    def request(self, reason: str) -> None:
        """Request a stop without a signal; the first reason counts."""
        self.requested = self.requested or reason

    @contextlib.contextmanager
    def cancellable(self) -> Iterator[None]:
        """A context that the first signal cancels, such as sampling.

        Raises:
            Cancelled: a stop was requested, now or before.
        """
        before, self._at_once = self._at_once, True
        try:
            if self.requested is not None:
                raise Cancelled
            yield
        except KeyboardInterrupt:
            if self._interrupts > 1 or self.requested is None:
                raise
            raise Cancelled from None  # Ray turns it into a plain KeyboardInterrupt
        finally:
            self._at_once = before

    def __enter__(self) -> Self:
        self._streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Stream(sys.stdout, self), _Stream(sys.stderr, self)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # started by nohup
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            # None: the handler was not installed by Python, which can't restore it
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        sys.stdout, sys.stderr = self._streams

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.requested is not None:
            _print(f"\n{signal.Signals(number).name}: already stopping, after {self.requested}\n")
            return
        self.requested = signal.Signals(number).name
        _print(f"\n{self.requested}: {self.answer}\n")
        if number == signal.SIGINT:
            _print("press Ctrl-C again to stop immediately, without saving\n")
        if self._at_once:
            raise Cancelled


class _Stream:
    """A stream whose reader may go: that requests a stop, as a signal does, and what is written then is lost."""

    def __init__(self, stream: Any, stop: StopRequest) -> None:
        self._stream, self._stop = stream, stop

    def write(self, text: str) -> int:
        with self._unread():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._unread():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _unread(self) -> Iterator[None]:
        """A closed terminal or pipe must not prevent the checkpoint of a run that stops."""
        try:
            yield
        except OSError as error:
            if self._stop.requested is None:
                if not isinstance(error, BrokenPipeError):
                    raise
                self._stop.request("its output, which nobody reads any more")
                _print("\nnobody reads the output any more: finishing this update, then saving and stopping\n")
            with contextlib.suppress(OSError, ValueError):  # Python flushes the buffer when it exits
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._stream.fileno())
                os.close(null)


def _print(text: str) -> None:
    """Print from a signal handler, which may interrupt print or logging."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def ignore_further_signals() -> None:
    """Keep the exit code of a command that has finished."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


VARIABLES = (
    "SLURM_JOB_END_TIME",  # of the job's time limit
    # also read by verl
    "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
    "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
)


@dataclass(frozen=True, kw_only=True)
class ReclaimTime:
    """When the machine will be reclaimed, and the option or environment variable that says so."""

    at: float  # Unix seconds
    by: str

    def __str__(self) -> str:
        return f"{datetime.fromtimestamp(self.at, UTC):%Y-%m-%d %H:%M:%S} UTC ({self.by})"


def reclaim_time(options: StepOptions) -> ReclaimTime | None:
    """The time of the options, else the earliest of the environment; None if there is none.

    Raises:
        UserError: it is no time, or past.
    """
    given: dict[str, Any] = {name: value for name in VARIABLES if (value := os.environ.get(name))}
    if options.walltime is not None:
        given = {"trainer.walltime": options.walltime}
    times = []
    for name, value in given.items():
        try:
            times.append(ReclaimTime(at=float(value), by=name))
        except ValueError:
            raise UserError(f"{name} is {value!r}, which is not Unix seconds; unset it, or correct it") from None
    first = min(times, key=lambda one: one.at, default=None)
    if first is not None and first.at <= time.time():
        raise UserError(
            f"the time at which this machine will be reclaimed is past: {first}; correct {first.by}, or unset it if it "
            "belongs to an earlier machine"
        )
    return first


class Expiry(Hook):
    """Requests a stop when another update would not fit before the machine is reclaimed.

    The expected time of an update is the longest one so far, including hooks, so this is the last hook. An update that
    takes longer than that can still be cancelled while it samples.
    """

    def __init__(
        self,
        expected: ReclaimTime | None,
        stop: StopRequest,
        *,
        margin: float,
        saving: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set the deadline.

        Args:
            expected: when the machine will be reclaimed; None disables this hook.
            stop: of the run.
            margin: seconds before ``expected`` at which the run has stopped.
            saving: expected seconds of a checkpoint.
            clock: Unix seconds.
        """
        self.expected, self.stop, self.margin, self.saving, self.clock = expected, stop, margin, saving, clock
        self._since, self._longest = 0.0, 0.0

    def start(self, done: int) -> None:
        self._since = self.clock()

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        now = self.clock()
        if update > 0:  # the first validation is no update
            self._longest = max(self._longest, now - self._since)
        self._since = now
        self.due(self._longest)

    def due(self, seconds: float = 0.0) -> bool:
        """Whether ``seconds`` and a checkpoint no longer fit before the deadline; if so, request a stop."""
        if self.expected is None:
            return False
        late = self.clock() + seconds + self.saving() + self.margin > self.expected.at
        if late:
            self.stop.request(f"the walltime of {self.expected}")
        return late
