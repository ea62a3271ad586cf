"""Stops of a run: by signals, and before its time is over."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Self

from burnish.hooks import Hook
from burnish.options import StepOptions, unix_seconds
from burnish.utils.errors import Cancelled, UserError

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


def reclaim_time(
    options: StepOptions, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.time
) -> ReclaimTime | None:
    """The time of the options, else the earliest of the environment; None if there is none.

    Raises:
        UserError: it is no time, or past.
    """
    if options.expires_at is not None:
        found = [ReclaimTime(at=unix_seconds(options.expires_at), by="trainer.expires_at")]
    else:
        found = [_of_variable(name, environment[name]) for name in VARIABLES if environment.get(name)]
    if not found:
        return None
    first = min(found, key=lambda one: one.at)
    if first.at <= clock():
        raise UserError(
            f"the time at which this machine will be reclaimed is past: {first}; correct {first.by}, or unset it if it "
            "belongs to an earlier machine"
        )
    return first


def _of_variable(name: str, value: str) -> ReclaimTime:
    try:
        return ReclaimTime(at=unix_seconds(float(value)), by=name)
    except ValueError:
        raise UserError(f"{name} is {value!r}, which is not Unix seconds; unset it, or correct it") from None


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
        notice: Callable[[], ReclaimTime | None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set the deadline.

        Args:
            expected: when the machine will be reclaimed; None disables this hook.
            stop: of the run.
            margin: seconds before ``expected`` at which the run has stopped.
            saving: expected seconds of a checkpoint.
            notice: what was announced since the start, see ``Notices``.
            clock: Unix seconds.
        """
        self.expected, self.stop, self.margin, self.saving, self.clock = expected, stop, margin, saving, clock
        self.notice = notice
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
        known = [one for one in (self.expected, self.notice()) if one is not None]
        if not known:
            return False
        first = min(known, key=lambda one: one.at)
        late = self.clock() + seconds + self.saving() + self.margin > first.at
        if late:
            self.stop.request(f"the machine's expiry at {first}")
        return late


EXIT_STOPPED = 75
"""Exit code of a run that saved and stopped on request: EX_TEMPFAIL of sysexits.h. The same command resumes it."""
EXIT_INTERRUPTED = 130
"""Exit code after a second Ctrl-C, which does not wait for a checkpoint."""

# SIGUSR1 and SIGUSR2 are what Slurm, SGE and LSF are often told to send, or send, before they end a job
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class StopRequest:
    """In this context the first signal only sets ``requested``, which the loop checks after each update.

    A second Ctrl-C interrupts immediately; further signals are ignored, as schedulers send several. Signals
    are only handled in the main thread. The context is reentrant.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.insisted = False  # Ctrl-C came twice
        self._interrupted = False
        self._at_once = False
        self._entered = 0
        self._previous: dict[signal.Signals, Any] = {}
        self._streams: list[tuple[str, Any]] = []

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
            if self.insisted or self.requested is None:
                raise
            raise Cancelled from None  # Ray turns it into a plain KeyboardInterrupt
        finally:
            self._at_once = before

    @contextlib.contextmanager
    def without_readers(self) -> Iterator[None]:
        """A context in which a pipe or terminal that nobody reads any more requests a stop, as a signal does."""
        before = [(name, getattr(sys, name)) for name in ("stdout", "stderr")]
        for name, stream in before:
            setattr(sys, name, _ReadStream(stream, self))
        try:
            yield
        finally:
            for name, stream in before:
                setattr(sys, name, stream)

    def __enter__(self) -> Self:
        self._entered += 1
        if self._entered == 1 and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # started by nohup
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        self._entered -= 1
        if self._entered:
            return
        for number, handler in self._previous.items():
            # None: the handler was not installed by Python, which can't restore it
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()
        for name, stream in self._streams:
            setattr(sys, name, stream)
        self._streams.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            self.insisted = True
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or number == signal.SIGINT
        if self.requested is not None:
            _print(f"\n{signal.Signals(number).name}: already stopping, after {self.requested}\n")
            return
        self.requested = signal.Signals(number).name
        self._ignore_closed_streams()
        _print(f"\n{self.requested}: cancelling sampling or finishing this update, then saving and stopping\n")
        if number == signal.SIGINT:
            _print("press Ctrl-C again to stop immediately, without saving\n")
        if self._at_once:
            raise Cancelled

    def _ignore_closed_streams(self) -> None:
        """Drop output that can't be written from now on: a closed terminal or pipe must not prevent the checkpoint."""
        if not self._streams:
            self._streams = [(name, getattr(sys, name)) for name in ("stdout", "stderr")]
            for name, stream in self._streams:
                setattr(sys, name, _LenientStream(stream))


class _LenientStream:
    """A stream that ignores write errors."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._silent():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._silent():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _silent(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """Write to nowhere from now on: Python flushes the buffer when it exits."""
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


class _ReadStream(_LenientStream):
    """A stream whose reader, once it is gone, is taken for a signal; other errors are raised."""

    def __init__(self, stream: Any, stop: StopRequest) -> None:
        super().__init__(stream)
        self._stop = stop

    @contextlib.contextmanager
    def _silent(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            if self._stop.requested is None:
                self._stop.request("its output, which nobody reads any more")
                _print("\nnobody reads the output any more: finishing this update, then saving and stopping\n")
            self._drop()


def _print(text: str) -> None:
    """Print from a signal handler, which may interrupt print or logging."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def end_with_parent(parent: int) -> None:
    """Stop as after SIGTERM once the process that started this one is gone, however it ended."""

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()


def ignore_further_signals() -> None:
    """Keep the exit code of a command that has finished."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
