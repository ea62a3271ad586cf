"""Work that goes on in a thread of its own, and whose end somebody will wait for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

log = logging.getLogger(__name__)

PATIENCE = 3600.0  # seconds to wait for an end
SHORT = 3.0  # seconds of a wait that is not worth a line


class Background:
    """One piece of work. Its thread does not keep a process alive that ends otherwise."""

    def __init__(self, what: str, work: Callable[[], None]) -> None:
        """Start it; ``what`` it is, messages say."""
        self.what = what
        self._future: Future[None] = Future()
        threading.Thread(target=self._run, args=(work,), name=what, daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it is at its end, a good one or a bad one."""
        return self._future.done()

    def wait(self) -> None:
        """Wait for the end.

        Raises:
            TimeoutError: it has not come within an hour.
            Exception: what the work raised.
        """
        if not wait([self._future], timeout=SHORT).done:
            log.warning("waiting until %s", self.what)
        if not wait([self._future], timeout=PATIENCE).done:
            raise TimeoutError(f"waited {PATIENCE:g} s until {self.what}")
        self._future.result()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._future.set_exception(error)  # whoever waits learns of it
        else:
            self._future.set_result(None)
