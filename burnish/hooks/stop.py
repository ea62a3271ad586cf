"""Asking a run to stop: Ctrl-C, SIGTERM, SIGHUP, or the announced end of the machine let it save what was learned."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from burnish.utils.errors import Cancelled

EXIT_STOPPED = 75
"""Exit code of a run that saved and stopped when asked: EX_TEMPFAIL of sysexits.h, "try again later".

The same command goes on where it stopped, so a scheduler may simply start it again.
"""
EXIT_INTERRUPTED = 130
"""Exit code after a second Ctrl-C, which does not wait until everything is saved."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """While it is entered, the first signal is only noted in ``requested``; the loop asks when it suits.

    A second Ctrl-C interrupts at once; a further SIGTERM or SIGHUP changes nothing, as schedulers send several. Only
    the main thread gets signals: entered elsewhere it notes nothing. It may be entered again while it is entered.
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
        """Ask for it without a signal; the first reason stays."""
        self.requested = self.requested or reason

    @contextlib.contextmanager
    def cancellable(self) -> Iterator[None]:
        """What is done in here is needed no more once a stop is asked for: the first signal ends it at once.

        Raises:
            Cancelled: so it was, or the stop was asked for before.
        """
        before, self._at_once = self._at_once, True
        try:
            if self.requested is not None:
                raise Cancelled
            yield
        except KeyboardInterrupt:
            if self.insisted or self.requested is None:
                raise
            raise Cancelled from None  # Ray's waits make a plain one of it
        finally:
            self._at_once = before

    def __enter__(self) -> Self:
        self._entered += 1
        if self._entered == 1 and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup: the run is to outlive its terminal
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if self._entered:
            return
        for number, handler in self._previous.items():
            # None: somebody installed a handler without Python, and Python can't put it back
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
            _say(f"\n{signal.Signals(number).name}: already stopping, after {self.requested}\n")
            return
        self.requested = signal.Signals(number).name
        self._outlive_readers()
        what = "giving up the samples that are being made, or finishing this update; then saving and stopping"
        _say(f"\n{self.requested}: {what}\n")
        if number == signal.SIGINT:
            _say("press Ctrl-C again to stop without waiting until everything is saved\n")
        if self._at_once:
            raise Cancelled

    def _outlive_readers(self) -> None:
        """The terminal may be gone, and so may a program that reads what is printed: neither may cost what is learned.

        So from now on what can't be written is dropped.
        """
        if not self._streams:
            self._streams = [(name, getattr(sys, name)) for name in ("stdout", "stderr")]
            for name, stream in self._streams:
                setattr(sys, name, _Forgiving(stream))


class _Forgiving:
    """A stream that stays silent when nobody reads it any more."""

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
            with contextlib.suppress(OSError, ValueError):  # what is buffered is flushed when Python ends
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)


def _say(text: str) -> None:
    """Not print or logging: a handler may come in the middle of either."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def ignore_further_signals() -> None:
    """For the last moments of a command: all is saved, and its exit code says so."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
