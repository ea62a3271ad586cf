"""Work in a background thread whose end is waited for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

log = logging.getLogger(__name__)

TIMEOUT = 3600.0  # seconds
QUIET = 3.0  # seconds of a wait that is not logged


class Background:
    """One task in a daemon thread, which does not keep the process alive."""

    def __init__(self, what: str, work: Callable[[], None]) -> None:
        """Start it; ``what`` describes the wait in messages, such as "checkpoint X is written"."""
        self.what = what
        self._future: Future[None] = Future()
        threading.Thread(target=self._run, args=(work,), name=what, daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it has finished or failed."""
        return self._future.done()

    def wait(self) -> None:
        """Wait for the end.

        Raises:
            TimeoutError: it takes longer than an hour.
            Exception: what the work raised.
        """
        if not wait([self._future], timeout=QUIET).done:
            log.warning("waiting until %s", self.what)
        if not wait([self._future], timeout=TIMEOUT).done:
            raise TimeoutError(f"timed out after {TIMEOUT:g} s waiting until {self.what}")
        self._future.result()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._future.set_exception(error)  # raised by wait()
        else:
            self._future.set_result(None)
