"""Stop requests by a signal (Ctrl-C, a scheduler's) or the machine's expiry, after which the run saves a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

from burnish.utils.errors import Cancelled

EXIT_STOPPED = 75
"""Exit code of a run that saved and stopped on request: EX_TEMPFAIL of sysexits.h. The same command resumes it."""
EXIT_INTERRUPTED = 130
"""Exit code after a second Ctrl-C, which does not wait for a checkpoint."""

# SIGUSR1 and SIGUSR2 are what Slurm, SGE and LSF are often told to send, or send, before they end a job
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class StopRequest:
    """In this context the first signal only sets ``requested``, which the loop checks after each update.

    A second Ctrl-C interrupts immediately; further signals are ignored, as schedulers send several. Signals
    are only handled in the main thread. Output that nobody reads any more requests a stop, too. The context is
    reentrant.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.insisted = False  # Ctrl-C came twice
        self._interrupted = False
        self._at_once = False
        self._entered = 0
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
            if self.insisted or self.requested is None:
                raise
            raise Cancelled from None  # Ray turns it into a plain KeyboardInterrupt
        finally:
            self._at_once = before

    def __enter__(self) -> Self:
        self._entered += 1
        if self._entered == 1:
            self._streams = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = _Stream(sys.stdout, self), _Stream(sys.stderr, self)
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
        sys.stdout, sys.stderr = self._streams

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            self.insisted = True
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or number == signal.SIGINT
        if self.requested is not None:
            _print(f"\n{signal.Signals(number).name}: already stopping, after {self.requested}\n")
            return
        self.requested = signal.Signals(number).name
        _print(f"\n{self.requested}: cancelling sampling or finishing this update, then saving and stopping\n")
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
