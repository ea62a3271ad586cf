"""Asking a run to stop: Ctrl-C, SIGTERM, or the announced end of the machine let it save what it has learned."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_STOPPED = 75
"""Exit code of a run that saved and stopped when asked: EX_TEMPFAIL of sysexits.h, "try again later".

The same command goes on where it stopped, so a scheduler may simply start it again.
"""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While it is entered, the first signal is only noted in ``requested``; the loop asks when it suits.

    A second Ctrl-C interrupts at once. Only the main thread gets signals: entered elsewhere it notes nothing.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self._interrupted = False
        self._previous: dict[signal.Signals, Any] = {}

    def request(self, reason: str) -> None:
        """Ask for it without a signal; the first reason stays."""
        self.requested = self.requested or reason

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None: somebody installed a handler without Python, and Python can't put it back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or number == signal.SIGINT
        if self.requested is None:
            self.requested = signal.Signals(number).name
            # not print or logging: a handler may come in the middle of either
            what = "giving up the samples that are being made, or finishing this update; then saving and stopping"
            os.write(2, f"\n{self.requested}: {what}\n".encode())
            if number == signal.SIGINT:
                os.write(2, b"press Ctrl-C again to stop at once, without saving\n")
